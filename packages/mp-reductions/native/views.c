/* Views: arrays of any layout, over a part of a block or with their own bytes in the message.
 *
 * Note [An array's own bytes]
 *   A private array that is small travels in the message. If the memory that it reaches has no
 *   gaps, it is sent as it is, with the same strides: every order, reversed axes, repeated
 *   elements. Otherwise the elements are gathered in the order of their addresses. That keeps the
 *   order of the axes in memory, the direction of each, and axes of stride 0 (layout.py does the
 *   same). */
#include <string.h>

#include "native.h"

/* The bytes that an array of this layout reaches, relative to its first element: 0, or -1. */
static int span_of(const npy_intp *dims, const npy_intp *strides, int nd, int64_t itemsize,
                   int64_t *first, int64_t *end)
{
    *first = 0;
    *end = itemsize;
    for (int i = 0; i < nd; i++) {
        int64_t reach;
        if (dims[i] <= 0 ||
            __builtin_mul_overflow((int64_t)dims[i] - 1, (int64_t)strides[i], &reach))
            return -1;
        int64_t *side = reach < 0 ? first : end;
        if (__builtin_add_overflow(*side, reach, side))
            return -1;
    }
    return 0;
}

static int is_inside(const mpshm_block *block, int64_t offset, const npy_intp *dims,
                     const npy_intp *strides, int nd, int64_t itemsize)
{
    int64_t first, end;

    return block->data != NULL && span_of(dims, strides, nd, itemsize, &first, &end) == 0 &&
           !__builtin_add_overflow(first, offset, &first) &&
           !__builtin_add_overflow(end, offset, &end) && first >= 0 &&
           (uint64_t)end <= block->nbytes;
}

int mp_view_of(PyObject *op, const mp_dtype **dtype, mp_place *place)
{
    PyArrayObject *a = (PyArrayObject *)op;

    *place = (mp_place){.keeper = NULL};
    if (Py_TYPE(op) != &PyArray_Type)
        return 0;
    *dtype = mp_dtype_of(a); /* may change the array */
    if (*dtype == NULL)
        return PyErr_Occurred() ? -1 : 0;
    if ((PyArray_FLAGS(a) & NPY_ARRAY_WRITEBACKIFCOPY) != 0 || PyArray_NDIM(a) > NPY_MAXDIMS ||
        !mp_memory_of(a, place))
        return 0;
    const char *data = PyArray_DATA(a);
    if (place->block.data == NULL ||
        is_inside(&place->block, data - (const char *)place->block.data, PyArray_DIMS(a),
                  PyArray_STRIDES(a), PyArray_NDIM(a), (int64_t)(*dtype)->itemsize))
        return 1;
    mp_core.release_place(place);
    return 0;
}

/* ---- an array's own bytes ---- */

/* The axes of the array that have a stride, the one with the longest first. */
static int axes_by_stride(const npy_intp *strides, int nd, int *axes)
{
    int count = 0;

    for (int i = 0; i < nd; i++) {
        int at = count;
        if (strides[i] == 0)
            continue;
        for (; at > 0 && Py_ABS(strides[axes[at - 1]]) < Py_ABS(strides[i]); at--)
            axes[at] = axes[at - 1];
        axes[at] = i;
        count++;
    }
    return count;
}

int mp_own_bytes_of(PyArrayObject *a, size_t itemsize, mp_own_bytes *own)
{
    const npy_intp *dims = PyArray_DIMS(a), *strides = PyArray_STRIDES(a);
    int nd = PyArray_NDIM(a), axes[MP_DIMS];
    int64_t first, end, elements = 1, nbytes;

    if (span_of(dims, strides, nd, (int64_t)itemsize, &first, &end) < 0)
        return 0;
    own->itemsize = itemsize;
    own->from = (const char *)PyArray_DATA(a) + first;
    for (int i = 0; i < nd; i++)
        if (__builtin_mul_overflow(elements, (int64_t)dims[i], &elements))
            return 0;
    own->has_gaps =
        !__builtin_mul_overflow(elements, (int64_t)itemsize, &nbytes) && end - first > nbytes;
    if (!own->has_gaps) {
        own->offset = -first;
        own->nbytes = (size_t)(end - first);
        for (int i = 0; i < nd; i++) /* a scalar array has no strides, a null pointer */
            own->strides[i] = strides[i];
        return 1;
    }
    own->count = axes_by_stride(strides, nd, axes);
    own->nbytes = itemsize;
    own->offset = 0;
    memset(own->strides, 0, (size_t)nd * sizeof(strides[0]));
    for (int k = own->count - 1; k >= 0; k--) {
        int i = axes[k];
        int is_reversed = strides[i] < 0;
        own->lengths[k] = dims[i];
        own->steps[k] = Py_ABS(strides[i]);
        own->strides[i] = is_reversed ? -(npy_intp)own->nbytes : (npy_intp)own->nbytes;
        if (is_reversed)
            own->offset += (int64_t)own->nbytes * (dims[i] - 1);
        own->nbytes *= (size_t)dims[i];
    }
    return 1;
}

/* Gather `n` elements; the compiler makes a load and a store of a memcpy of constant size. */
#define GATHER_OF(size)                                                                            \
    case size:                                                                                     \
        for (npy_intp i = 0; i < n; i++)                                                           \
            memcpy(to + i * (size), from + i * step, (size));                                      \
        return to + n * (size)

static char *gather_line(const char *from, npy_intp n, npy_intp step, size_t itemsize, char *to)
{
    switch (itemsize) {
        GATHER_OF(1);
        GATHER_OF(2);
        GATHER_OF(4);
        GATHER_OF(8);
        GATHER_OF(16);
    }
    for (npy_intp i = 0; i < n; i++, to += itemsize)
        memcpy(to, from + i * step, itemsize);
    return to;
}

static char *gather(const mp_own_bytes *own, int k, const char *from, char *to)
{
    npy_intp n = own->lengths[k], step = own->steps[k];

    if (k == own->count - 1) {
        if (step != (npy_intp)own->itemsize)
            return gather_line(from, n, step, own->itemsize, to);
        memcpy(to, from, (size_t)n * own->itemsize);
        return to + (size_t)n * own->itemsize;
    }
    for (npy_intp i = 0; i < n; i++)
        to = gather(own, k + 1, from + i * step, to);
    return to;
}

void mp_copy_own_bytes(const mp_own_bytes *own, char *to)
{
    if (!own->has_gaps)
        memcpy(to, own->from, own->nbytes);
    else if (own->count == 0)
        memcpy(to, own->from, own->itemsize);
    else
        gather(own, 0, own->from, to);
}

/* ---- for Python: one look at an array that another thread may change ---- */

/* own_nbytes(a) -> bytes that copy_own_bytes(a, memory) needs */
PyObject *mp_py_own_nbytes(PyObject *module, PyObject *a)
{
    mp_own_bytes own;

    if (!PyArray_Check(a))
        return PyErr_Format(PyExc_TypeError, "own_nbytes takes an array, not %R", Py_TYPE(a));
    size_t itemsize = (size_t)PyDataType_ELSIZE(PyArray_DESCR((PyArrayObject *)a));
    int rc = mp_own_bytes_of((PyArrayObject *)a, itemsize, &own);
    return PyLong_FromSize_t(rc ? own.nbytes : 0);
}

typedef struct {
    const mp_own_bytes *own;
    char *to;
} own_copy;

static void copy_own(void *what)
{
    const own_copy *copy = what;

    mp_copy_own_bytes(copy->own, copy->to);
}

/* copy_own_bytes(a, memory) -> (dtype, shape, offset, strides, writeable), or None if the array needs
 * another number of bytes than the memory has. All is read at one moment, and then the bytes are
 * copied: what other threads do to the array changes neither. */
PyObject *mp_py_copy_own_bytes(PyObject *module, PyObject *args)
{
    PyArrayObject *a;
    Py_buffer memory;
    mp_own_bytes own;
    npy_intp dims[MP_DIMS];
    PyObject *result = NULL;

    if (!PyArg_ParseTuple(args, "O!w*:copy_own_bytes", &PyArray_Type, &a, &memory))
        return NULL;
    PyObject *descr = Py_NewRef((PyObject *)PyArray_DESCR(a));
    int nd = PyArray_NDIM(a), writeable = (PyArray_FLAGS(a) & NPY_ARRAY_WRITEABLE) != 0;
    for (int i = 0; i < nd; i++)
        dims[i] = PyArray_DIM(a, i);
    if (!mp_own_bytes_of(a, (size_t)PyDataType_ELSIZE((PyArray_Descr *)descr), &own)) {
        own = (mp_own_bytes){.nbytes = 0};
        for (int i = 0; i < nd; i++)
            own.strides[i] = PyArray_STRIDE(a, i);
    }
    if (own.nbytes == (size_t)memory.len) {
        own_copy copy = {&own, memory.buf};
        if (own.nbytes > 0)
            mp_copy_held(a, own.nbytes, copy_own, &copy);
        PyObject *shape = mp_tuple_of(dims, nd), *strides = mp_tuple_of(own.strides, nd);
        if (shape != NULL && strides != NULL)
            result = Py_BuildValue("OOLOO", descr, shape, (long long)own.offset, strides,
                                   writeable ? Py_True : Py_False);
        Py_XDECREF(shape);
        Py_XDECREF(strides);
    } else {
        result = Py_NewRef(Py_None);
    }
    Py_DECREF(descr);
    PyBuffer_Release(&memory);
    return result;
}

/* ---- receiving ---- */

static PyObject *array_at(PyObject *keeper, char *data, const mp_layout *layout,
                          const npy_intp *strides, int writeable)
{
    PyObject *a = PyArray_NewFromDescr(
        &PyArray_Type, (PyArray_Descr *)Py_NewRef(layout->dtype->descr), layout->nd, layout->dims,
        strides, data, writeable ? NPY_ARRAY_WRITEABLE : 0, NULL);

    if (a != NULL && PyArray_SetBaseObject((PyArrayObject *)a, Py_NewRef(keeper)) < 0)
        Py_CLEAR(a);
    return a;
}

/* The error of an array that leads out of its memory. */
static PyObject *leads_out(int64_t offset, uint64_t nbytes)
{
    return MP_DAMAGED("its shape and strides at %lld lead "
                      "out of %llu bytes",
                      (long long)offset, (unsigned long long)nbytes);
}

PyObject *mp_array_over_part(PyObject *memory, const mp_layout *layout, int64_t offset,
                             const npy_intp *strides, int writeable)
{
    const mpshm_block *block = &((mp_buffer *)memory)->block;

    if (!is_inside(block, offset, layout->dims, strides, layout->nd,
                   (int64_t)layout->dtype->itemsize))
        return leads_out(offset, block->nbytes);
    return array_at(memory, (char *)block->data + offset, layout, strides, writeable);
}

PyObject *mp_array_of_own_bytes(const char *bytes, size_t nbytes, const mp_layout *layout,
                                int64_t offset, const npy_intp *strides, int writeable)
{
    mpshm_block memory = {.data = (void *)bytes, .nbytes = nbytes};

    if (!is_inside(&memory, offset, layout->dims, strides, layout->nd,
                   (int64_t)layout->dtype->itemsize))
        return leads_out(offset, nbytes);
    PyObject *copy = PyByteArray_FromStringAndSize(bytes, (Py_ssize_t)nbytes);
    PyObject *a =
        copy ? array_at(copy, PyByteArray_AsString(copy) + offset, layout, strides, writeable)
             : NULL;
    Py_XDECREF(copy);
    return a;
}

/* (memory, name, shape, offset, strides, writeable) */
typedef struct {
    PyObject *memory;
    mp_layout layout;
    npy_intp strides[NPY_MAXDIMS];
    long long offset;
    int writeable;
} arguments;

static int parse(PyObject *args, arguments *to)
{
    PyObject *name, *shape, *steps;

    if (!PyArg_ParseTuple(args, "OOOLO!p", &to->memory, &name, &shape, &to->offset, &PyTuple_Type,
                          &steps, &to->writeable) ||
        mp_check_layout(name, shape, &to->layout) < 0)
        return -1;
    if (PyTuple_Size(steps) != to->layout.nd) {
        MP_DAMAGED("its strides are %R in %d dimensions", steps, to->layout.nd);
        return -1;
    }
    for (int i = 0; i < to->layout.nd; i++) {
        to->strides[i] = PyLong_AsSsize_t(PyTuple_GetItem(steps, i));
        if (to->strides[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* rebuild_view(block, name, shape, offset, strides, writeable) */
PyObject *mp_py_rebuild_view(PyObject *module, PyObject *args)
{
    arguments given;

    if (parse(args, &given) < 0)
        return NULL;
    if (!PyObject_TypeCheck(given.memory, (PyTypeObject *)*mp_core.block_type))
        return MP_DAMAGED("it lies in %R, which is no block", given.memory);
    return mp_array_over_part(given.memory, &given.layout, given.offset, given.strides,
                              given.writeable);
}

/* rebuild_strided(bytes, name, shape, offset, strides, writeable) */
PyObject *mp_py_rebuild_strided(PyObject *module, PyObject *args)
{
    arguments given;
    char *bytes;
    Py_ssize_t nbytes;

    if (parse(args, &given) < 0 || PyBytes_AsStringAndSize(given.memory, &bytes, &nbytes) < 0)
        return NULL;
    return mp_array_of_own_bytes(bytes, (size_t)nbytes, &given.layout, given.offset, given.strides,
                                 given.writeable);
}
