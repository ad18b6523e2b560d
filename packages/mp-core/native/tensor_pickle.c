/* The pickle of a tensor in a small message: contiguous, on the CPU, all of its storage, without a
 * gradient.
 *
 *   module, rebuild_one, STACK_GLOBAL | handle | layout (dlpack.c) | TUPLE2 | REDUCE
 *
 * DLPack's exchange tells where its bytes are and makes the received one. The package of the
 * tensors is asked for the rest, by two functions:
 *
 *   ready(tensor, address, bytes)   move its storage into a block, unless it is in one; False if it
 *                                   is not all of its storage, or cannot be moved
 *   arrived(tensor, address)        a tensor was made over the block at the address */
#include <errno.h>
#include <string.h>

#include "dlpack.h"

enum { HANDLE = 2 + MPSHM_HANDLE_SIZE, LAYOUT = 255 };

static struct {
    const dl_exchange *exchange;
    PyObject *dtypes, *ready, *arrived;
    PyObject *dtype, *requires_grad, *is_neg, *is_conj, *untyped_storage, *nbytes; /* names */
    mp_global rebuild;
} of;

/* ---- writing ---- */

static size_t layout_of(const dl_tensor *t)
{
    return sizeof(dl_record) + (size_t)t->ndim * sizeof(t->shape[0]);
}

/* 1 if the attribute, or what its method returns, is False. */
static int is_false(PyObject *object, PyObject *name, int is_method)
{
    PyObject *value =
        is_method ? PyObject_CallMethodObjArgs(object, name, NULL) : PyObject_GetAttr(object, name);
    int answer = value == Py_False;

    Py_XDECREF(value);
    return answer;
}

/* Whether DLPack knows all that there is to the tensor; an exception is possible. */
static int is_plain(PyObject *tensor, dl_tensor *t)
{
    if (of.exchange->from_object(tensor, t) < 0 || mp_dl_contiguous_nbytes(t) <= 0 ||
        layout_of(t) > LAYOUT)
        return 0;
    PyObject *dtype = PyObject_GetAttr(tensor, of.dtype);
    int plain = dtype != NULL && PySet_Contains(of.dtypes, dtype) == 1;

    Py_XDECREF(dtype);
    return plain && is_false(tensor, of.requires_grad, 0) && is_false(tensor, of.is_neg, 1) &&
           is_false(tensor, of.is_conj, 1);
}

static const char *data_of(const dl_tensor *t)
{
    return (const char *)t->data + t->byte_offset;
}

/* Whether it is all of its storage. */
static int is_whole(PyObject *tensor, const dl_tensor *t)
{
    PyObject *storage = PyObject_CallMethodObjArgs(tensor, of.untyped_storage, NULL);
    PyObject *size = storage ? PyObject_CallMethodObjArgs(storage, of.nbytes, NULL) : NULL;
    int whole = size != NULL && PyLong_AsLongLong(size) == mp_dl_contiguous_nbytes(t);

    Py_XDECREF(storage);
    Py_XDECREF(size);
    return whole;
}

static int tensor_fits(mp_writer *to, PyObject *tensor)
{
    dl_tensor t;
    int fit = is_plain(tensor, &t) && is_whole(tensor, &t) && mp_writer_is_first(to, data_of(&t));

    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return -1; /* of a signal handler */
    PyErr_Clear(); /* the pickler says what is wrong with the tensor */
    return fit;
}

/* Retain the block whose bytes are all those of the tensor. 1, 0, or -1 with an exception. */
static int block_of(PyObject *tensor, dl_tensor *t, mpshm_block *block)
{
    PyObject *done =
        is_plain(tensor, t)
            ? PyObject_CallFunction(of.ready, "ONL", tensor, PyLong_FromVoidPtr((void *)data_of(t)),
                                    (long long)mp_dl_contiguous_nbytes(t))
            : NULL;
    int ready = done == Py_True;

    Py_XDECREF(done);
    /* Its memory may be elsewhere now, and another thread may have changed its shape. */
    if (!ready || of.exchange->from_object(tensor, t) < 0 || layout_of(t) > LAYOUT)
        return PyErr_Occurred() ? -1 : 0;
    if (mp_find_block(data_of(t), block) < 0)
        return 0;
    if (block->data == data_of(t) && (int64_t)block->nbytes == mp_dl_contiguous_nbytes(t))
        return 1;
    mpshm_block_release(block);
    return 0;
}

static int write_tensor(mp_writer *to, PyObject *tensor)
{
    dl_tensor t;
    mpshm_block block;
    int rc = block_of(tensor, &t, &block);

    if (rc != 1)
        return rc;
    dl_record record = {t.dtype.code, t.dtype.bits, (uint8_t)t.ndim, 0};
    size_t layout = layout_of(&t);
    char *at = mp_writer_room(to, of.rebuild.nbytes + HANDLE + 2 + layout + 2);
    PyObject *handle = at != NULL ? mp_make_handle(&block, 0) : NULL;
    mpshm_block_release(&block);
    if (handle == NULL)
        return -1;
    at = mp_put(at, of.rebuild.bytes, of.rebuild.nbytes);
    at = mp_put_sized(at, 'C', PyBytes_AsString(handle), MPSHM_HANDLE_SIZE);
    *at++ = 'C';
    *at++ = (char)layout;
    at = mp_put(at, &record, sizeof(record));
    at = mp_put(at, t.shape, layout - sizeof(record));
    mp_put(at, "\x86R", 2);
    Py_DECREF(handle);
    return 1;
}

/* ---- reading ---- */

/* Read a layout of one tensor: -1 if it is damaged. */
static int read_layout(const unsigned char *bytes, size_t nbytes, dl_record *record, int64_t *dims)
{
    if (nbytes < sizeof(*record))
        return -1;
    memcpy(record, bytes, sizeof(*record));
    size_t shape = record->nd * sizeof(dims[0]);
    if (record->same_shape || record->bits == 0 || record->bits % 8 != 0 || record->nd > DL_DIMS ||
        nbytes != sizeof(*record) + shape)
        return -1;
    memcpy(dims, bytes + sizeof(*record), shape);
    return 0;
}

static PyObject *receive(const unsigned char *handle, dl_record record, const int64_t *dims)
{
    mpshm_block block;

    if (mp_take_block((const char *)handle, &block) < 0)
        return NULL;
    void *data = block.data;
    PyObject *tensor = mp_dl_tensor_over(of.exchange, &block, record, dims);
    PyObject *done =
        tensor ? PyObject_CallFunction(of.arrived, "ON", tensor, PyLong_FromVoidPtr(data)) : NULL;
    if (done == NULL)
        Py_CLEAR(tensor);
    Py_XDECREF(done);
    return tensor;
}

/* A damaged one is left to the unpickler, which says so. */
static PyObject *read_tensor(mp_reader *from)
{
    mp_reader rest = *from;
    int64_t dims[DL_DIMS];
    dl_record record;

    if (!mp_take_these(&rest, of.rebuild.bytes, of.rebuild.nbytes))
        return NULL;
    const unsigned char *handle = mp_take_handle(&rest);
    const unsigned char *head = handle != NULL ? mp_take(&rest, 2) : NULL;
    const unsigned char *layout = head != NULL && head[0] == 'C' ? mp_take(&rest, head[1]) : NULL;
    if (layout == NULL || !mp_take_these(&rest, "\x86R", 2) ||
        read_layout(layout, head[1], &record, dims) < 0)
        return NULL;
    *from = rest;
    from->received = 1;
    return receive(handle, record, dims);
}

/* ---- registration ---- */

static int set_names(void)
{
    of.dtype = PyUnicode_InternFromString("dtype");
    of.requires_grad = PyUnicode_InternFromString("requires_grad");
    of.is_neg = PyUnicode_InternFromString("is_neg");
    of.is_conj = PyUnicode_InternFromString("is_conj");
    of.untyped_storage = PyUnicode_InternFromString("untyped_storage");
    of.nbytes = PyUnicode_InternFromString("nbytes");
    return PyErr_Occurred() ? -1 : 0;
}

/* setup_tensors(exchange, type, reducer, dtypes, ready, arrived, rebuild), once for the process,
 * which keeps them. An unpickler calls rebuild(handle, layout). */
PyObject *mp_py_setup_tensors(PyObject *self, PyObject *args)
{
    PyObject *capsule, *type, *reducer, *dtypes, *ready, *arrived, *rebuild;
    (void)self;

    if (!PyArg_ParseTuple(args, "OO!OOOOO:setup_tensors", &capsule, &PyType_Type, &type, &reducer,
                          &dtypes, &ready, &arrived, &rebuild))
        return NULL;
    of.exchange = mp_dl_exchange(capsule);
    if (of.exchange == NULL || set_names() < 0 || mp_make_global(&of.rebuild, rebuild) < 0)
        return NULL;
    of.dtypes = Py_NewRef(dtypes);
    of.ready = Py_NewRef(ready);
    of.arrived = Py_NewRef(arrived);
    mp_pickler pickler = {.type = (PyTypeObject *)Py_NewRef(type),
                          .reducer = reducer,
                          .prefix = of.rebuild.bytes,
                          .prefix_nbytes = of.rebuild.module_nbytes,
                          .fits = tensor_fits,
                          .write = write_tensor,
                          .read = read_tensor};
    mp_set_pickler(&pickler);
    Py_RETURN_NONE;
}
