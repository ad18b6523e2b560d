/* The short way of plain arrays: their reducer and what rebuilds them. The module
 * mp_reductions._plain.
 *
 * Nearly every array that is sent is plain: exactly an ndarray, C-contiguous, aligned, writable, of
 * a dtype that is one object per process and has a character of its own ('d', 'i', '?'). A
 * character and a shape say all about it. What is not plain, and what goes wrong, is Python's
 * (array.py).
 *
 * Note [No NumPy here]
 *   mp-core is installed without NumPy and is built without its headers. The fields below are those
 *   that every extension built for NumPy 1.x or 2.x reads; knows() compares them with what Python
 * says about some arrays, and where they differ (a NumPy of the future) nothing here reads them. */
#include <errno.h>
#include <string.h>

#include "native.h"

struct ndarray {
    PyObject_HEAD char *data;
    int nd;
    Py_ssize_t *dims;
    Py_ssize_t *strides;
    PyObject *base;
    PyObject *descr;
    int flags;
};

struct descr {
    PyObject_HEAD PyObject *typeobj;
    char kind;
    char type;
};

/* C-contiguous, aligned, writable; and no copy that is to be written back. */
enum { CARRAY = 0x0001 | 0x0100 | 0x0400, WRITEBACKIFCOPY = 0x2000, CHARS = 128 };

static struct {
    PyObject *dtype, *name;
    size_t itemsize;
} known[CHARS];

static PyTypeObject *ndarray_type;
static PyObject *any_array; /* reduce_ndarray(a), the long way */
static PyObject *notice;    /* what is told of each large array and the handle of its copy */
static PyObject *rebuild_carried, *rebuild_shared;
static size_t limit;
static int fields_known; /* see Note [No NumPy here] */

/* ---- what an array is ---- */

/* The number of bytes of the array, or -1 when it is not plain. */
static Py_ssize_t plain_nbytes(PyObject *op)
{
    const struct ndarray *a = (const struct ndarray *)op;
    unsigned char c;

    if (Py_TYPE(op) != ndarray_type || (a->flags & (CARRAY | WRITEBACKIFCOPY)) != CARRAY)
        return -1;
    c = (unsigned char)((const struct descr *)a->descr)->type;
    if (c >= CHARS || known[c].dtype != a->descr)
        return -1;
    size_t nbytes = known[c].itemsize;
    for (int i = 0; i < a->nd; i++)
        nbytes *= (size_t)a->dims[i];
    return (Py_ssize_t)nbytes;
}

/* The shape, as a tuple. The arrays of a message often have the same one, and what is the same
 * object is pickled once; so the tuple is kept for the next array. */
static PyObject *shape_of(const struct ndarray *a)
{
    enum { KEPT = 4 };
    static PyObject *kept;
    static Py_ssize_t dims[KEPT];
    static int nd;

    if (kept != NULL && a->nd == nd && memcmp(a->dims, dims, (size_t)nd * sizeof dims[0]) == 0)
        return Py_NewRef(kept);
    PyObject *shape = PyTuple_New(a->nd);

    for (int i = 0; shape != NULL && i < a->nd; i++) {
        PyObject *n = PyLong_FromSsize_t(a->dims[i]);
        if (n == NULL || PyTuple_SetItem(shape, i, n) < 0)
            Py_CLEAR(shape);
    }
    if (shape != NULL && a->nd > 0 && a->nd <= KEPT) {
        PyObject *before = kept;
        kept = Py_NewRef(shape);
        nd = a->nd;
        memcpy(dims, a->dims, (size_t)nd * sizeof dims[0]);
        Py_XDECREF(before);
    }
    return shape;
}

/* (rebuild, (memory, char, shape)); takes over `memory` */
static PyObject *reduced(PyObject *rebuild, PyObject *memory, const struct ndarray *a)
{
    PyObject *shape = memory ? shape_of(a) : NULL;
    PyObject *name = known[((const struct descr *)a->descr)->type].name;
    PyObject *args = shape ? PyTuple_Pack(3, memory, name, shape) : NULL;
    PyObject *pickle = args ? PyTuple_Pack(2, rebuild, args) : NULL;

    Py_XDECREF(args);
    Py_XDECREF(shape);
    Py_XDECREF(memory);
    return pickle;
}

/* ---- sending ---- */

/* A claim on a new block with a copy of these bytes. NULL without an exception: the long way may
 * try. */
static PyObject *moved(PyObject *op, size_t nbytes)
{
    const struct ndarray *a = (const struct ndarray *)op;
    PyObject *handle;
    mpshm_block block;
    int rc;

    if (nbytes < MP_TAKES_A_WHILE) {
        rc = mpshm_block_allocate(mp_strategy, nbytes, MPSHM_NOWAIT, &block);
        if (rc == 0)
            memcpy(block.data, a->data, nbytes);
    } else {
        Py_BEGIN_ALLOW_THREADS /* the array is the caller's, so its memory stays */
            rc = mpshm_block_allocate(mp_strategy, nbytes, 0, &block);
        if (rc == 0)
            memcpy(block.data, a->data, nbytes);
        Py_END_ALLOW_THREADS
    }
    if (rc < 0)
        return NULL;
    mp_copied(nbytes);
    handle = mp_claim_on(&block, MPSHM_COPY);
    mpshm_block_release(&block); /* the claim keeps it */
    if (handle != NULL && nbytes >= MP_LARGE) {
        PyObject *told = PyObject_CallFunctionObjArgs(notice, op, handle, NULL);
        if (told == NULL)
            Py_CLEAR(handle); /* a signal's exception, say; the message takes the claim back */
        Py_XDECREF(told);
    }
    return handle;
}

/* reduce_plain(a) -> its pickle; the long way for what is not plain */
static PyObject *reduce_plain(PyObject *module, PyObject *op)
{
    const struct ndarray *a = (const struct ndarray *)op;
    Py_ssize_t nbytes = plain_nbytes(op);
    const struct ndarray *owner = a;
    PyObject *base, *handle;
    mpshm_block block;
    (void)module;

    if (nbytes < 0 || mp_by_value())
        return PyObject_CallFunctionObjArgs(any_array, op, NULL);
    if (a->base != NULL && (PyObject *)Py_TYPE(a->base) == mp_block_type) {
        const mpshm_block *block = &((mp_buffer *)a->base)->block;
        if (block->data != a->data || block->nbytes != (uint64_t)nbytes)
            return PyObject_CallFunctionObjArgs(any_array, op, NULL);
        Py_INCREF(a->base);
        return reduced(rebuild_shared, a->base, a);
    }
    for (base = a->base; base != NULL; base = owner->base) {
        if (Py_TYPE(base) != ndarray_type)
            return PyObject_CallFunctionObjArgs(any_array, op,
                                                NULL); /* who knows whose memory that is */
        owner = (const struct ndarray *)base;
    }
    if (mp_block_at(owner->data, &block) == 0) {
        int whole = block.data == a->data && block.nbytes == (uint64_t)nbytes;
        handle = whole ? mp_claim_on(&block, 0) : NULL;
        mpshm_block_release(&block);
        if (!whole)
            return PyObject_CallFunctionObjArgs(any_array, op, NULL);
        return reduced(rebuild_shared, handle, a);
    }
    if (mp_message_has_room((size_t)nbytes, limit))
        return reduced(rebuild_carried, PyBytes_FromStringAndSize(a->data, nbytes), a);
    handle = moved(op, (size_t)nbytes);
    if (handle == NULL)
        return PyErr_Occurred() ? NULL : PyObject_CallFunctionObjArgs(any_array, op, NULL);
    return reduced(rebuild_shared, handle, a);
}

/* ---- receiving ---- */

static PyObject *damaged(const char *why)
{
    return PyErr_Format(PyExc_ValueError, "the message of an array is damaged: %s", why);
}

/* The number of bytes of such an array, or -1 with an exception. */
static Py_ssize_t checked(PyObject *name, PyObject *shape, int *c)
{
    Py_UCS4 ch = PyUnicode_Check(name) && PyUnicode_GetLength(name) == 1
                     ? PyUnicode_ReadChar(name, 0)
                     : CHARS;
    if (ch >= CHARS || known[ch].dtype == NULL) {
        PyErr_Format(PyExc_ValueError, "the message of an array is damaged: no dtype is called %R",
                     name);
        return -1;
    }
    Py_ssize_t nbytes = (Py_ssize_t)known[ch].itemsize;
    if (!PyTuple_Check(shape)) {
        damaged("its shape is no tuple");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(shape); i++) {
        Py_ssize_t n = PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
        if (n < 0 || __builtin_mul_overflow(nbytes, n, &nbytes)) {
            PyErr_Clear();
            PyErr_Format(PyExc_ValueError, "the message of an array is damaged: its shape is %R",
                         shape);
            return -1;
        }
    }
    *c = (int)ch;
    return nbytes;
}

/* A new array whose memory is its own, at `into`. */
static PyObject *private(PyObject *shape, int c, void **into)
{
    PyObject *a =
        PyObject_CallFunctionObjArgs((PyObject *)ndarray_type, shape, known[c].dtype, NULL);
    Py_buffer view;

    if (a != NULL && fields_known) {
        *into = ((struct ndarray *)a)->data;
    } else if (a != NULL && PyObject_GetBuffer(a, &view, PyBUF_WRITABLE) == 0) {
        *into = view.buf; /* which stays there: nobody else knows the array */
        PyBuffer_Release(&view);
    } else {
        Py_CLEAR(a);
    }
    return a;
}

/* rebuild_carried(data, char, shape): its memory is its own */
static PyObject *rebuild_from_bytes(PyObject *module, PyObject *args)
{
    PyObject *name, *shape;
    const char *data;
    Py_ssize_t len, nbytes;
    int c;
    (void)module;

    if (!PyArg_ParseTuple(args, "y#OO:rebuild_carried", &data, &len, &name, &shape))
        return NULL;
    nbytes = checked(name, shape, &c);
    if (nbytes < 0)
        return NULL;
    if (nbytes != len)
        return PyErr_Format(PyExc_ValueError,
                            "the message of an array is damaged: it has %zd bytes and not %zd", len,
                            nbytes);
    void *into;
    PyObject *a = private(shape, c, &into);
    if (a != NULL)
        memcpy(into, data, (size_t)nbytes);
    return a;
}

/* rebuild_shared of a handle whose block cannot be shared: by value, if it is a copy. */
static PyObject *by_value(PyObject *handle, int rc, PyObject *name, PyObject *shape)
{
    int c;
    void *into;
    Py_ssize_t there = mp_size_of_copy(handle, rc);
    PyObject *a = NULL;

    /* moved() made the block as large as the array. */
    if (there >= 0 && checked(name, shape, &c) == there)
        a = private(shape, c, &into);
    if (a != NULL && mp_read_copy(handle, rc, into, (uint64_t)there) == 0)
        return a;
    Py_XDECREF(a);
    return mp_refuse(handle, rc);
}

/* rebuild_shared(handle or block, char, shape): over the whole of the block */
static PyObject *rebuild_from_block(PyObject *module, PyObject *args)
{
    PyObject *memory, *name, *shape, *a;
    int c, rc;
    (void)module;

    if (!PyArg_UnpackTuple(args, "rebuild_shared", 3, 3, &memory, &name, &shape))
        return NULL;
    if (PyBytes_Check(memory)) {
        PyObject *handle = memory;
        memory = mp_receive_block(handle, &rc);
        if (memory == NULL && rc < 0)
            return by_value(handle, rc, name, shape);
    } else if (PyObject_TypeCheck(memory, (PyTypeObject *)mp_block_type)) {
        Py_INCREF(memory);
    } else {
        return PyErr_Format(PyExc_ValueError,
                            "the message of an array is damaged: it lies in %R, which is no block",
                            memory);
    }
    if (memory == NULL)
        return NULL;
    Py_ssize_t nbytes = checked(name, shape, &c);
    uint64_t room = ((mp_buffer *)memory)->block.nbytes;
    if (nbytes >= 0 && (uint64_t)nbytes > room) {
        PyErr_Format(PyExc_ValueError,
                     "the message of an array is damaged: %zd bytes do not fit in a block of %llu",
                     nbytes, (unsigned long long)room);
        nbytes = -1;
    }
    a = nbytes < 0 ? NULL
                   : PyObject_CallFunctionObjArgs((PyObject *)ndarray_type, shape, known[c].dtype,
                                                  memory, NULL);
    Py_DECREF(memory);
    return a;
}

/* ---- the module ---- */

/* setup(ndarray, {char: dtype}, reduce_ndarray, notice) */
static PyObject *setup(PyObject *module, PyObject *args)
{
    PyObject *type, *dtypes, *slow, *large, *name, *dtype;
    Py_ssize_t at = 0;

    if (!PyArg_ParseTuple(args, "O!O!OO:setup", &PyType_Type, &type, &PyDict_Type, &dtypes, &slow,
                          &large))
        return NULL;
    while (PyDict_Next(dtypes, &at, &name, &dtype)) {
        Py_UCS4 c = PyUnicode_ReadChar(name, 0);
        PyObject *size = PyObject_GetAttrString(dtype, "itemsize");
        if (c >= CHARS || size == NULL)
            return NULL;
        known[c].itemsize = PyLong_AsSize_t(size);
        Py_DECREF(size);
        Py_INCREF(name), Py_INCREF(dtype); /* for as long as the process lives */
        known[c].name = name;
        known[c].dtype = dtype;
    }
    Py_INCREF(type), Py_INCREF(slow), Py_INCREF(large);
    ndarray_type = (PyTypeObject *)type;
    any_array = slow;
    notice = large;
    rebuild_carried = PyObject_GetAttrString(module, "rebuild_carried");
    rebuild_shared = PyObject_GetAttrString(module, "rebuild_shared");
    if (rebuild_carried == NULL || rebuild_shared == NULL)
        return NULL;
    Py_RETURN_NONE;
}

/* knows(a, address, ndim, base, dtype, flags) -> are the fields where they are thought to be, in
 * this array and all before? */
static PyObject *knows(PyObject *module, PyObject *args)
{
    PyObject *op, *base, *descr;
    unsigned long long address;
    int nd, flags;
    (void)module;

    if (!PyArg_ParseTuple(args, "OKiOOi:knows", &op, &address, &nd, &base, &descr, &flags))
        return NULL;
    const struct ndarray *a = (const struct ndarray *)op;
    fields_known = a->data == (char *)(uintptr_t)address && a->nd == nd &&
                   a->base == (base == Py_None ? NULL : base) && a->descr == descr &&
                   a->flags == flags;
    return PyBool_FromLong(fields_known);
}

static PyObject *set_limit(PyObject *module, PyObject *number)
{
    (void)module;
    size_t nbytes = PyLong_AsSize_t(number);
    if (PyErr_Occurred())
        return NULL;
    limit = nbytes;
    Py_RETURN_NONE;
}

/* has_room(nbytes) -> may an array of that size travel in this message? Counts it if so. */
static PyObject *has_room(PyObject *module, PyObject *number)
{
    (void)module;
    size_t nbytes = PyLong_AsSize_t(number);
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(mp_message_has_room(nbytes, limit));
}

PyDoc_STRVAR(reduce_doc, "reduce_plain(a, /)\n--\n\nThe pickle of an array, the short way.");
PyDoc_STRVAR(
    carried_doc,
    "rebuild_carried(data, char, shape, /)\n--\n\n"
    "A plain array from its bytes; its memory is its own. Anything else is a `ValueError`.");
PyDoc_STRVAR(shared_doc,
             "rebuild_shared(memory, char, shape, /)\n--\n\n"
             "A plain array over a whole block, or what the handle of one speaks of. A shape that "
             "reaches beyond the block is a `ValueError`.");

static PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, NULL},
    {"knows", knows, METH_VARARGS, NULL},
    {"set_limit", set_limit, METH_O, NULL},
    {"has_room", has_room, METH_O, NULL},
    {"reduce_plain", reduce_plain, METH_O, reduce_doc},
    {"rebuild_carried", rebuild_from_bytes, METH_VARARGS, carried_doc},
    {"rebuild_shared", rebuild_from_block, METH_VARARGS, shared_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef plain_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_plain",
    .m_doc = "The short way of plain arrays.",
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__plain(void)
{
    return PyModuleDef_Init(&plain_module);
}
