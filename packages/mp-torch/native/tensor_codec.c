/* The codec of tensors and Parameters: of those that are contiguous, on the CPU, all of their
 * storage, and leaves.
 *
 *   module, rebuild_one, STACK_GLOBAL | handle | layout (dlpack.c) | TUPLE2 | REDUCE
 *
 * DLPack's exchange tells where its bytes are and makes the received one; storages.c knows the
 * storage. */
#include <errno.h>
#include <string.h>

#include "native.h"

enum { HANDLE = 2 + MPSHM_HANDLE_SIZE, LAYOUT = 255, DL_COMPLEX = 5 };
enum { REQUIRES_GRAD = 1, PARAMETER = 2 }; /* flags of a record */

static struct {
    const dl_exchange *exchange;
    PyObject *dtypes;
    PyObject *dtype, *requires_grad, *is_leaf, *hooks, *is_neg, *is_conj; /* names */
    mp_global rebuild;
} of;

/* ---- writing ---- */

static size_t layout_of(const dl_shape *shape)
{
    return sizeof(dl_record) + shape->record.nd * sizeof(shape->dims[0]);
}

/* 1 if the attribute, or what its method returns, is that object. */
static int is(PyObject *object, PyObject *name, int is_method, PyObject *what)
{
    PyObject *value =
        is_method ? PyObject_CallMethodObjArgs(object, name, NULL) : PyObject_GetAttr(object, name);
    int answer = value == what;

    Py_XDECREF(value);
    return answer;
}

/* torch.nn.Parameter, borrowed; NULL with an exception. */
static PyObject *parameter_type(void)
{
    static PyObject *type;

    if (type == NULL) {
        PyObject *module = PyImport_ImportModule("torch.nn.parameter");
        type = module ? PyObject_GetAttrString(module, "Parameter") : NULL;
        Py_XDECREF(module);
    }
    return type;
}

/* The flags of a tensor; -1, perhaps with an exception, for one that torch's reducer refuses or
 * warns of. */
static int flags_of(PyObject *tensor)
{
    int flags = (PyObject *)Py_TYPE(tensor) == parameter_type() ? PARAMETER : 0;

    if (is(tensor, of.requires_grad, 0, Py_False))
        return flags;
    return is(tensor, of.is_leaf, 0, Py_True) && is(tensor, of.hooks, 0, Py_None)
               ? flags | REQUIRES_GRAD
               : -1;
}

static int has_dtype_of_dlpack(PyObject *tensor)
{
    PyObject *dtype = PyObject_GetAttr(tensor, of.dtype);
    int has = dtype != NULL && PySet_Contains(of.dtypes, dtype) == 1;

    Py_XDECREF(dtype);
    return has;
}

static int is_whole(PyObject *tensor, int64_t nbytes)
{
    PyObject *storage = mp_storage_of(tensor);
    int whole = storage != NULL && mp_storage_has(storage, nbytes);

    Py_XDECREF(storage);
    return whole;
}

/* 1 if DLPack knows all that there is to the tensor, and the tensor is all of its storage; 0,
 * perhaps with an exception. */
static int is_plain(PyObject *tensor, dl_shape *shape)
{
    dl_tensor t;

    return of.exchange != NULL && of.exchange->from_object(tensor, &t) == 0 &&
           mp_dl_shape_of(&t, shape) == 0 && has_dtype_of_dlpack(tensor) &&
           is(tensor, of.is_neg, 1, Py_False) &&
           (shape->record.code != DL_COMPLEX || is(tensor, of.is_conj, 1, Py_False)) &&
           is_whole(tensor, shape->nbytes);
}

/* Clear what torch raises for a tensor that it cannot describe, about which the pickler says what
 * is wrong: 0; or -1 with any other exception, as of a signal handler. */
static int without_error(void)
{
    PyObject *const theirs[] = {PyExc_RuntimeError, PyExc_TypeError, PyExc_ValueError,
                                PyExc_AttributeError, PyExc_BufferError};

    for (size_t i = 0; PyErr_Occurred() && i < sizeof(theirs) / sizeof(theirs[0]); i++)
        if (PyErr_ExceptionMatches(theirs[i]))
            PyErr_Clear();
    return PyErr_Occurred() ? -1 : 0;
}

static int survey_tensor(mp_entry *entry)
{
    dl_shape shape;
    int flags = flags_of(entry->object);
    int fit = flags >= 0 && is_plain(entry->object, &shape) && layout_of(&shape) <= LAYOUT;

    if (without_error() < 0)
        return -1;
    if (fit) {
        entry->memory = shape.data;
        entry->own[0] = (uint64_t)flags;
    }
    return fit;
}

static int write_tensor(const mp_entry *entry, mp_writer *to)
{
    dl_shape shape;
    mpshm_block block;
    int rc = mp_block_of_tensor(entry->object, &shape, &block);

    if (rc != 1)
        return rc;
    size_t layout = layout_of(&shape);
    char *at = layout <= LAYOUT
                   ? mp_core.writer_room(to, of.rebuild.nbytes + HANDLE + 2 + layout + 2)
                   : NULL;
    PyObject *handle = at != NULL ? mp_core.make_handle(&block, 0) : NULL;
    mp_core.block_release(&block);
    if (handle == NULL)
        return PyErr_Occurred() ? -1 : 0;
    at = mp_put(at, of.rebuild.bytes, of.rebuild.nbytes);
    at = mp_put_sized(at, 'C', PyBytes_AsString(handle), MPSHM_HANDLE_SIZE);
    *at++ = 'C';
    *at++ = (char)layout;
    shape.record.flags = (uint8_t)entry->own[0];
    at = mp_put(at, &shape.record, sizeof(shape.record));
    at = mp_put(at, shape.dims, layout - sizeof(shape.record));
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
    if (record->flags > (REQUIRES_GRAD | PARAMETER) || record->bits == 0 || record->bits % 8 != 0 ||
        record->nd > DL_DIMS || nbytes != sizeof(*record) + shape)
        return -1;
    memcpy(dims, bytes + sizeof(*record), shape);
    return 0;
}

/* Also in a process that writes none. */
static PyObject *arrived(const char *handle, dl_record record, const int64_t *dims)
{
    PyObject *tensor = mp_tensor_arrived(handle, record, dims), *whole = tensor;
    PyObject *grad = record.flags & REQUIRES_GRAD ? Py_True : Py_False, *type;

    if (tensor == NULL || record.flags == 0)
        return tensor;
    if (!(record.flags & PARAMETER))
        whole = PyObject_CallMethod(tensor, "requires_grad_", NULL);
    else if ((type = parameter_type()) != NULL)
        whole = PyObject_CallFunctionObjArgs(type, tensor, grad, NULL);
    else
        whole = NULL;
    Py_DECREF(tensor);
    return whole;
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
    return arrived((const char *)handle, record, dims);
}

/* receive_tensor(handle, layout), for an unpickler */
PyObject *mp_py_receive_tensor(PyObject *self, PyObject *args)
{
    const char *handle, *layout;
    Py_ssize_t length, nbytes;
    int64_t dims[DL_DIMS];
    dl_record record;

    if (!PyArg_ParseTuple(args, "y#y#:receive_tensor", &handle, &length, &layout, &nbytes))
        return NULL;
    if (length != MPSHM_HANDLE_SIZE ||
        read_layout((const unsigned char *)layout, (size_t)nbytes, &record, dims) < 0)
        return PyErr_Format(PyExc_ValueError,
                            "the message of a tensor is damaged: %zd bytes are no handle, or %zd "
                            "no layout",
                            length, nbytes);
    return arrived(handle, record, dims);
}

/* ---- registration ---- */

static int set_names(void)
{
    of.dtype = PyUnicode_InternFromString("dtype");
    of.requires_grad = PyUnicode_InternFromString("requires_grad");
    of.is_leaf = PyUnicode_InternFromString("is_leaf");
    of.hooks = PyUnicode_InternFromString("_backward_hooks");
    of.is_neg = PyUnicode_InternFromString("is_neg");
    of.is_conj = PyUnicode_InternFromString("is_conj");
    return PyErr_Occurred() ? -1 : 0;
}

/* setup_tensors(exchange, type, reducer, dtypes, rebuild), once for the process, which keeps them.
 * An unpickler calls rebuild(handle, layout). */
PyObject *mp_py_setup_tensors(PyObject *self, PyObject *args)
{
    PyObject *capsule, *type, *reducer, *dtypes, *rebuild;

    if (!PyArg_ParseTuple(args, "OO!OOO:setup_tensors", &capsule, &PyType_Type, &type, &reducer,
                          &dtypes, &rebuild))
        return NULL;
    of.exchange = mp_dl_exchange(capsule);
    if (of.exchange == NULL || set_names() < 0 || parameter_type() == NULL ||
        mp_core.make_global(&of.rebuild, rebuild) < 0)
        return NULL;
    of.dtypes = Py_NewRef(dtypes);
    mp_codec codec = {.type = (PyTypeObject *)Py_NewRef(type),
                      .reducer = reducer,
                      .prefix = of.rebuild.bytes,
                      .prefix_nbytes = of.rebuild.module_nbytes,
                      .survey = survey_tensor,
                      .write = write_tensor,
                      .read = read_tensor};
    mp_core.register_codec(&codec);
    codec.type = (PyTypeObject *)parameter_type();
    mp_core.register_codec(&codec);
    Py_RETURN_NONE;
}
