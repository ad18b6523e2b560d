/* Exchange the memory of two arrays.
 *
 * NumPy has no call for this: the setter of ndarray.data was removed in 2.x. Both arrays stay
 * valid, because each pointer is exchanged together with the object or handler that frees it. */
#include "native.h"

#define SWAP(type, x, y)                                                                           \
    do {                                                                                           \
        type kept = (x);                                                                           \
        (x) = (y);                                                                                 \
        (y) = kept;                                                                                \
    } while (0)

PyObject *mp_py_swap_memory(PyObject *module, PyObject *args)
{
    PyObject *first, *second;

    if (!PyArg_ParseTuple(args, "O!O!:swap_memory", &PyArray_Type, &first, &PyArray_Type, &second))
        return NULL;
    PyArrayObject_fields *a = (PyArrayObject_fields *)first, *b = (PyArrayObject_fields *)second;
    if (a->nd != b->nd || !PyArray_CompareLists(a->dimensions, b->dimensions, a->nd))
        return PyErr_Format(PyExc_ValueError, "swap_memory needs two arrays of the same shape");
    SWAP(char *, a->data, b->data);
    SWAP(npy_intp *, a->dimensions, b->dimensions); /* one allocation with the strides */
    SWAP(npy_intp *, a->strides, b->strides);
    SWAP(PyObject *, a->base, b->base);
    SWAP(PyObject *, a->mem_handler, b->mem_handler);
    SWAP(int, a->flags, b->flags);
    Py_RETURN_NONE;
}
