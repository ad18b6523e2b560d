/* The fast path: pickle and unpickle contiguous arrays of dtypes that have a name (dtypes.c).
 *
 * Nearly every array that is sent can take it: exactly an ndarray, C-contiguous, aligned, writable.
 * The name and the shape describe such an array completely. All other arrays take the slow path, in
 * Python (array.py). */
#include <errno.h>
#include <string.h>

#include "native.h"

static PyTypeObject *ndarray_type;
static PyObject *slow_path;               /* array.reduce_ndarray */
static PyObject *on_large_copy;           /* called with a large array and the handle of its copy */
static size_t large_nbytes;               /* from which size on */
static PyObject *from_bytes, *from_block; /* the module's rebuild functions */

/* ---- arrays ---- */

Py_ssize_t mp_fast_nbytes(PyObject *op, const mp_dtype **dtype)
{
    enum {
        NEEDED = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | NPY_ARRAY_WRITEABLE,
        NOT = NPY_ARRAY_WRITEBACKIFCOPY,
    };
    const PyArrayObject *a = (const PyArrayObject *)op;

    if (Py_TYPE(op) != ndarray_type || (PyArray_FLAGS(a) & (NEEDED | NOT)) != NEEDED)
        return -1;
    const mp_dtype *known = mp_dtype_of(a); /* may change the array */
    if (known == NULL || (PyArray_FLAGS(a) & (NEEDED | NOT)) != NEEDED)
        return -1;
    size_t nbytes = known->itemsize;
    for (int i = 0; i < PyArray_NDIM(a); i++)
        nbytes *= (size_t)PyArray_DIM(a, i);
    *dtype = known;
    return (Py_ssize_t)nbytes;
}

PyObject *mp_tuple_of(const npy_intp *numbers, int n)
{
    PyObject *tuple = PyTuple_New(n);

    for (int i = 0; tuple != NULL && i < n; i++) {
        PyObject *number = PyLong_FromSsize_t(numbers[i]);
        if (number == NULL || PyTuple_SetItem(tuple, i, number) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* Return the shape as a tuple. The arrays of a message often have the same shape, and pickle writes
 * one object once; so the last tuple is kept for the next array. `dims` is no array's: a new tuple
 * may start the garbage collector, and so any code. */
static PyObject *shape_of(const npy_intp *dims, int nd)
{
    enum { KEPT = 4 };
    static PyObject *kept;
    static npy_intp kept_dims[KEPT];
    static int kept_nd;

    if (kept != NULL && nd == kept_nd && memcmp(dims, kept_dims, (size_t)nd * sizeof dims[0]) == 0)
        return Py_NewRef(kept);
    PyObject *shape = mp_tuple_of(dims, nd);

    if (shape != NULL && nd > 0 && nd <= KEPT) {
        PyObject *before = kept;
        kept = Py_NewRef(shape);
        kept_nd = nd;
        memcpy(kept_dims, dims, (size_t)nd * sizeof dims[0]);
        Py_XDECREF(before);
    }
    return shape;
}

/* Return (rebuild, (memory, name, shape)). Takes over the reference to `memory`, which may be NULL
 * with an exception set. */
static PyObject *reduced(PyObject *rebuild, PyObject *memory, const npy_intp *dims, int nd,
                         const mp_dtype *dtype)
{
    PyObject *shape = memory ? shape_of(dims, nd) : NULL;
    PyObject *args = shape ? PyTuple_Pack(3, memory, dtype->name, shape) : NULL;
    PyObject *pickle = args ? PyTuple_Pack(2, rebuild, args) : NULL;

    Py_XDECREF(args);
    Py_XDECREF(shape);
    Py_XDECREF(memory);
    return pickle;
}

/* ---- sending ---- */

typedef struct {
    const mpshm_block *to;
    const void *from;
    size_t nbytes;
} one_copy;

static void copy_whole(void *what)
{
    const one_copy *copy = what;

    mp_core.block_write(copy->to, copy->from, copy->nbytes);
}

/* 1 if no other thread has changed what describes the array's bytes. */
static int has_still(PyObject *op, size_t nbytes, const mp_dtype *dtype)
{
    const mp_dtype *now;

    return mp_fast_nbytes(op, &now) == (Py_ssize_t)nbytes && now == dtype;
}

PyObject *mp_copy_to_block(PyObject *op, size_t nbytes, const mp_dtype *dtype)
{
    int strategy = *mp_core.strategy, is_large = nbytes >= MP_RELEASE_GIL_BYTES, rc = -EAGAIN;
    PyObject *handle;
    mpshm_block block;
    uint64_t began = mp_core.copy_begins();

    /* Under file_system libshm reserves all pages of a large block, which takes long. */
    if (!is_large || strategy != MPSHM_FILE_SYSTEM)
        rc = mp_core.block_allocate(strategy, nbytes, MPSHM_NOWAIT, &block);
    if (rc == -EAGAIN && is_large) {
        Py_BEGIN_ALLOW_THREADS
        rc = mp_core.block_allocate(strategy, nbytes, 0, &block);
        Py_END_ALLOW_THREADS
        if (rc == 0 && !has_still(op, nbytes, dtype)) {
            mp_core.block_release(&block);
            return NULL;
        }
    }
    if (rc < 0)
        return NULL;
    one_copy copy = {&block, PyArray_DATA((PyArrayObject *)op), nbytes};
    mp_copy_held((PyArrayObject *)op, nbytes, copy_whole, &copy);
    mp_core.count_copied(nbytes);
    mp_core.copy_ends(began, copy.from, block.data, nbytes);
    handle = mp_core.make_handle(&block, MPSHM_COPY);
    mp_core.block_release(&block); /* the in-flight reference keeps it */
    if (handle != NULL && nbytes >= large_nbytes) {
        PyObject *done = PyObject_CallFunctionObjArgs(on_large_copy, op, handle, NULL);
        if (done == NULL)
            Py_CLEAR(handle); /* perhaps KeyboardInterrupt; the failed message discards it */
        Py_XDECREF(done);
    }
    return handle;
}

static PyObject *reduce_slowly(PyObject *op)
{
    return PyObject_CallFunctionObjArgs(slow_path, op, NULL);
}

int mp_memory_of(PyArrayObject *a, mp_place *place)
{
    PyArrayObject *owner = a;
    PyObject *base = PyArray_BASE(a);

    *place = (mp_place){.keeper = NULL};
    for (; base != NULL; base = PyArray_BASE(owner)) {
        PyObject *of = mp_is_held_view(owner) ? PyTuple_GetItem(base, 0) : base;
        if (of == base && Py_TYPE(base) != ndarray_type)
            break;
        owner = (PyArrayObject *)of;
    }
    if (base != NULL && (PyObject *)Py_TYPE(base) == *mp_core.block_type) {
        *place = (mp_place){((mp_buffer *)base)->block, Py_NewRef(base)};
        return 1;
    }
    if (base != NULL)
        return 0;
    if (mp_core.heap_block_at(PyArray_DATA(owner), &place->block) < 0) {
        place->block.data = NULL;
        return 1;
    }
    if (!PyDataType_FLAGCHK(PyArray_DESCR(owner), NPY_ITEM_HASOBJECT))
        return 1;
    mp_core.release_place(place); /* of pointers to Python objects: it is not shared, nor a field */
    return 0;
}

int mp_place_of(PyObject *op, Py_ssize_t nbytes, mp_place *place)
{
    PyArrayObject *a = (PyArrayObject *)op;

    if (!mp_memory_of(a, place))
        return 0;
    if (place->block.data == NULL ||
        (place->block.data == PyArray_DATA(a) && place->block.nbytes == (uint64_t)nbytes))
        return 1;
    mp_core.release_place(place);
    return 0;
}

/* reduce_array(a) -> its reduction, by the slow path if the array cannot take the fast one */
PyObject *mp_py_reduce_array(PyObject *module, PyObject *op)
{
    PyArrayObject *a = (PyArrayObject *)op;
    const mp_dtype *dtype;
    Py_ssize_t nbytes = mp_fast_nbytes(op, &dtype);
    npy_intp dims[MP_DIMS]; /* as it is now, whatever another thread makes of it */
    PyObject *handle;
    mp_place place;

    if (nbytes < 0 && PyErr_Occurred())
        return NULL;
    if (nbytes < 0 || mp_core.goes_by_value() || !mp_place_of(op, nbytes, &place))
        return reduce_slowly(op);
    int nd = PyArray_NDIM(a);
    for (int i = 0; i < nd; i++)
        dims[i] = PyArray_DIM(a, i);
    if (place.keeper != NULL)
        return reduced(from_block, place.keeper, dims, nd, dtype);
    if (place.block.data != NULL) {
        handle = mp_core.make_handle(&place.block, 0);
        mp_core.release_place(&place);
        return reduced(from_block, handle, dims, nd, dtype);
    }
    if (mp_core.message_has_room((size_t)nbytes, mp_inline_limit()))
        return reduced(from_bytes, PyBytes_FromStringAndSize(PyArray_DATA(a), nbytes), dims, nd,
                       dtype);
    handle = mp_copy_to_block(op, (size_t)nbytes, dtype);
    return handle != NULL || PyErr_Occurred() ? reduced(from_block, handle, dims, nd, dtype)
                                              : reduce_slowly(op);
}

/* ---- receiving ---- */

int mp_check_layout(PyObject *name, PyObject *shape, mp_layout *out)
{
    Py_ssize_t length;
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &length) : NULL;
    const mp_dtype *dtype = text ? mp_dtype_named(text, (size_t)length) : NULL;

    if (dtype == NULL) {
        if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
            return -1; /* of a signal handler */
        PyErr_Clear();
        MP_DAMAGED("no dtype is called %R", name);
        return -1;
    }
    Py_ssize_t nd = PyTuple_Check(shape) ? PyTuple_Size(shape) : -1;
    if (nd < 0 || nd > NPY_MAXDIMS) {
        MP_DAMAGED("its shape is %R", shape);
        return -1;
    }
    out->dtype = dtype;
    out->nbytes = (Py_ssize_t)dtype->itemsize;
    out->nd = (int)nd;
    for (Py_ssize_t i = 0; i < nd; i++) {
        Py_ssize_t n = PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
        if (n < 0 || __builtin_mul_overflow(out->nbytes, n, &out->nbytes)) {
            PyErr_Clear();
            MP_DAMAGED("its shape is %R", shape);
            return -1;
        }
        out->dims[i] = n;
    }
    return 0;
}

PyObject *mp_array_over(const mp_layout *layout, void *data)
{
    return PyArray_NewFromDescr(ndarray_type, (PyArray_Descr *)Py_NewRef(layout->dtype->descr),
                                layout->nd, layout->dims, NULL, data, data ? NPY_ARRAY_CARRAY : 0,
                                NULL);
}

PyObject *mp_array_of(const mp_layout *layout, const void *bytes)
{
    PyObject *a = mp_array_over(layout, NULL);

    if (a != NULL)
        memcpy(PyArray_DATA((PyArrayObject *)a), bytes, (size_t)layout->nbytes);
    return a;
}

/* rebuild_from_bytes(data, name, shape) */
PyObject *mp_py_rebuild_from_bytes(PyObject *module, PyObject *args)
{
    PyObject *name, *shape;
    const char *data;
    Py_ssize_t len;
    mp_layout layout;

    if (!PyArg_ParseTuple(args, "y#OO:rebuild_from_bytes", &data, &len, &name, &shape) ||
        mp_check_layout(name, shape, &layout) < 0)
        return NULL;
    if (layout.nbytes != len)
        return MP_DAMAGED("it has %zd bytes and not %zd", len, layout.nbytes);
    return mp_array_of(&layout, data);
}

PyObject *mp_array_of_pack(const mp_layout *layout, const char *pack, uint64_t nbytes,
                           uint64_t offset)
{
    if (offset > nbytes || (uint64_t)layout->nbytes > nbytes - offset)
        return MP_DAMAGED("%zd bytes at %llu of a pack of %llu", layout->nbytes,
                          (unsigned long long)offset, (unsigned long long)nbytes);
    mp_core.count_copied((unsigned long long)layout->nbytes);
    return mp_array_of(layout, pack + offset);
}

/* rebuild_from_pack(block or bytearray, offset, name, shape) */
PyObject *mp_py_rebuild_from_pack(PyObject *module, PyObject *args)
{
    PyObject *memory, *name, *shape;
    unsigned long long offset;
    mp_layout layout;

    if (!PyArg_ParseTuple(args, "OKOO:rebuild_from_pack", &memory, &offset, &name, &shape) ||
        mp_check_layout(name, shape, &layout) < 0)
        return NULL;
    if (PyByteArray_CheckExact(memory))
        return mp_array_of_pack(&layout, PyByteArray_AsString(memory),
                                (uint64_t)PyByteArray_Size(memory), offset);
    const mpshm_block *block = PyObject_TypeCheck(memory, (PyTypeObject *)*mp_core.block_type)
                                   ? &((mp_buffer *)memory)->block
                                   : NULL;
    if (block == NULL || block->data == NULL)
        return MP_DAMAGED("%R is no pack", memory);
    return mp_array_of_pack(&layout, block->data, block->nbytes, offset);
}

/* The block of `handle` cannot be shared: take its bytes if they were copied for this receiver. */
static PyObject *receive_by_value(PyObject *handle, int rc, const mp_layout *layout)
{
    Py_ssize_t nbytes = mp_core.size_of_copy(handle, rc);
    PyObject *a = NULL;

    /* mp_copy_to_block() made the block as large as the array. */
    if (nbytes >= 0 && layout->nbytes == nbytes)
        a = mp_array_over(layout, NULL);
    if (a != NULL &&
        mp_core.read_copy(handle, rc, PyArray_DATA((PyArrayObject *)a), (uint64_t)nbytes) == 0)
        return a;
    Py_XDECREF(a);
    return mp_core.refuse(handle, rc);
}

PyObject *mp_array_over_block(PyObject *memory, const mp_layout *layout)
{
    const mpshm_block *block = &((mp_buffer *)memory)->block;
    PyObject *a = NULL;

    if (block->data == NULL)
        MP_DAMAGED("its block was never allocated");
    else if ((uint64_t)layout->nbytes > block->nbytes)
        MP_DAMAGED("%zd bytes do not fit in a block of %llu", layout->nbytes,
                   (unsigned long long)block->nbytes);
    else
        a = mp_array_over(layout, block->data);
    if (a == NULL)
        Py_DECREF(memory);
    else if (PyArray_SetBaseObject((PyArrayObject *)a, memory) < 0)
        Py_CLEAR(a);
    return a;
}

PyObject *mp_receive_array(PyObject *handle, const mp_layout *layout)
{
    int rc;
    PyObject *memory = mp_core.receive_block(handle, &rc);

    if (memory != NULL)
        return mp_array_over_block(memory, layout);
    return rc < 0 ? receive_by_value(handle, rc, layout) : NULL;
}

/* rebuild_from_block(handle or block, name, shape) */
PyObject *mp_py_rebuild_from_block(PyObject *module, PyObject *args)
{
    PyObject *memory, *name, *shape;
    mp_layout layout;

    if (!PyArg_UnpackTuple(args, "rebuild_from_block", 3, 3, &memory, &name, &shape) ||
        mp_check_layout(name, shape, &layout) < 0)
        return NULL;
    if (PyBytes_Check(memory))
        return mp_receive_array(memory, &layout);
    if (PyObject_TypeCheck(memory, (PyTypeObject *)*mp_core.block_type))
        return mp_array_over_block(Py_NewRef(memory), &layout);
    return MP_DAMAGED("it lies in %R, which is no block", memory);
}

int mp_layout_of(const mp_dtype *dtype, int nd, const int64_t *dims, mp_layout *out)
{
    if (dtype == NULL || nd > NPY_MAXDIMS)
        return -1;
    out->dtype = dtype;
    out->nbytes = (Py_ssize_t)dtype->itemsize;
    out->nd = nd;
    for (int i = 0; i < nd; i++) {
        if (dims[i] < 0 || __builtin_mul_overflow(out->nbytes, dims[i], &out->nbytes))
            return -1;
        out->dims[i] = (npy_intp)dims[i];
    }
    return 0;
}

/* ---- settings ---- */

int mp_init_fast_path(PyObject *module)
{
    ndarray_type = &PyArray_Type;
    from_bytes = PyObject_GetAttrString(module, "rebuild_from_bytes");
    from_block = PyObject_GetAttrString(module, "rebuild_from_block");
    return from_bytes == NULL || from_block == NULL ? -1 : 0;
}

int mp_setup_fast_path(PyObject *args)
{
    PyObject *dtypes, *names, *reads, *slow, *notice;
    Py_ssize_t large;

    if (!PyArg_ParseTuple(args, "O!OOOOn:setup", &PyDict_Type, &dtypes, &names, &reads, &slow,
                          &notice, &large))
        return -1;
    slow_path = Py_NewRef(slow);
    on_large_copy = Py_NewRef(notice);
    large_nbytes = (size_t)large;
    return mp_setup_dtypes(dtypes, names, reads);
}
