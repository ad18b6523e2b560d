/* The type under mp_core's connections: one end of a channel of libshm, with its pipe.
 *
 *   class ChannelConnection(Channel, multiprocessing.connection.Connection)
 *
 * Its methods come first in the method resolution order; what they leave out (send_bytes, closed,
 * the context manager) is multiprocessing's own Python code on the attributes _handle, _readable
 * and _writable.
 *
 * Note [The GIL and a channel]
 *   A message that is there is taken, and one that fits is sent, with the GIL held: that takes less
 *   time than to release it. libshm surrounds each wait with begin_wait and end_wait, which release
 *   it and look for signals. Another thread may close the connection meanwhile. Its descriptor is
 *   closed at once, as multiprocessing does; the mapping goes with the last thread inside. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/socket.h>
#include <unistd.h>

#include "native.h"

typedef struct {
    PyObject_HEAD mpshm_channel *end;
    int fd; /* -1: closed */
    int side;
    int users; /* threads inside a call */
    char readable, writable;
} Channel;

/* One call. */
struct call {
    Channel *self;
    PyThreadState *state;
    PyObject *bytes;
};

static PyObject *plain_dumps, *protocol, *forking_pickler, *loads_name, *send_object_name;

static void *call_allocate(void *of, uint64_t nbytes)
{
    struct call *call = of;

    Py_CLEAR(call->bytes);
    if (nbytes > PY_SSIZE_T_MAX) {
        PyErr_NoMemory();
        return NULL;
    }
    call->bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)nbytes);
    return call->bytes == NULL ? NULL : PyBytes_AsString(call->bytes);
}

static void call_begin_wait(void *of)
{
    ((struct call *)of)->state = PyEval_SaveThread();
}

static int call_end_wait(void *of)
{
    struct call *call = of;

    PyEval_RestoreThread(call->state);
    if (call->self->fd < 0)
        return -EBADF;
    return PyErr_CheckSignals() < 0 ? -ECANCELED : 0;
}

#define WAITER(call) (&(mpshm_waiter){(call), call_allocate, call_begin_wait, call_end_wait})

static void release(Channel *self)
{
    if (self->users == 0 && self->fd < 0 && self->end != NULL) {
        mpshm_channel_close(self->end);
        self->end = NULL;
    }
}

static int enter(Channel *self, int may, const char *direction)
{
    if (self->fd < 0)
        PyErr_SetString(PyExc_OSError, "handle is closed");
    else if (!may)
        PyErr_Format(PyExc_OSError, "connection is %s-only", direction);
    else
        return self->users++, 0;
    return -1;
}

static void leave(Channel *self)
{
    self->users--;
    release(self);
}

static PyObject *fail(int rc)
{
    if (PyErr_Occurred())
        return NULL;
    if (rc == -EBADF) {
        PyErr_SetString(PyExc_OSError, "handle is closed");
        return NULL;
    }
    if (rc == -ENOMEM)
        return PyErr_NoMemory();
    errno = -rc;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* Seconds, or None for ever, as nanoseconds; -1 for ever. 0, or -1 with an exception. */
static int timeout_of(PyObject *seconds, int64_t *ns)
{
    *ns = -1;
    if (seconds == Py_None)
        return 0;
    double value = PyFloat_AsDouble(seconds);
    if (value == -1.0 && PyErr_Occurred())
        return -1;
    if (isnan(value)) {
        PyErr_SetString(PyExc_ValueError, "a timeout is a number of seconds, not nan");
        return -1;
    }
    *ns = value <= 0 ? 0 : value > 9e9 ? -1 : (int64_t)(value * 1e9);
    return 0;
}

/* ---- sending ---- */

static int send_view(Channel *self, PyObject *data, int64_t timeout)
{
    struct call call = {.self = self};
    Py_buffer view;

    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0)
        return -ECANCELED;
    int rc = mpshm_channel_send(self->end, self->fd, view.buf, (uint64_t)view.len, timeout,
                                WAITER(&call));
    PyBuffer_Release(&view);
    return rc;
}

/* _send_bytes(data): send one message */
static PyObject *channel_send_bytes(PyObject *op, PyObject *data)
{
    Channel *self = (Channel *)op;

    if (enter(self, self->writable, "read") < 0)
        return NULL;
    int rc = send_view(self, data, -1);
    leave(self);
    return rc < 0 ? fail(rc) : Py_NewRef(Py_None);
}

/* _try_send_bytes(data) -> False when that would have to wait */
static PyObject *channel_try_send_bytes(PyObject *op, PyObject *data)
{
    Channel *self = (Channel *)op;

    if (enter(self, self->writable, "read") < 0)
        return NULL;
    int rc = send_view(self, data, 0);
    leave(self);
    if (rc == -EAGAIN)
        Py_RETURN_FALSE;
    return rc < 0 ? fail(rc) : Py_NewRef(Py_True);
}

/* 1 for an object that pickles without reducers: numbers, texts, and small containers of them. */
static int is_plain(PyObject *object, int depth)
{
    enum { FEW = 16 };
    Py_ssize_t n;

    if (object == Py_None || PyLong_CheckExact(object) || PyFloat_CheckExact(object) ||
        PyUnicode_CheckExact(object) || PyBytes_CheckExact(object) || PyBool_Check(object))
        return 1;
    if (depth == 0)
        return 0;
    if (PyTuple_CheckExact(object)) {
        if ((n = PyTuple_Size(object)) > FEW)
            return 0;
        for (Py_ssize_t i = 0; i < n; i++)
            if (!is_plain(PyTuple_GetItem(object, i), depth - 1))
                return 0;
        return 1;
    }
    if (PyList_CheckExact(object)) {
        if ((n = PyList_Size(object)) > FEW)
            return 0;
        for (Py_ssize_t i = 0; i < n; i++)
            if (!is_plain(PyList_GetItem(object, i), depth - 1))
                return 0;
        return 1;
    }
    return 0;
}

/* plain_pickle(object) -> bytes, or None for an object whose pickle needs a ForkingPickler */
PyObject *mp_py_plain_pickle(PyObject *module, PyObject *object)
{
    (void)module;
    if (!is_plain(object, 3))
        Py_RETURN_NONE;
    return PyObject_CallFunctionObjArgs(plain_dumps, object, protocol, NULL);
}

static PyObject *channel_send(PyObject *op, PyObject *object)
{
    Channel *self = (Channel *)op;

    if (self->fd < 0 || !self->writable || !is_plain(object, 3))
        return PyObject_CallMethodObjArgs(op, send_object_name, object, NULL);
    PyObject *data = PyObject_CallFunctionObjArgs(plain_dumps, object, protocol, NULL);
    PyObject *result = data == NULL ? NULL : channel_send_bytes(op, data);
    Py_XDECREF(data);
    return result;
}

/* ---- receiving ---- */

/* The next message as bytes; NULL with an exception, or without one when none came in time. */
static PyObject *receive(Channel *self, int64_t timeout)
{
    struct call call = {.self = self};

    if (enter(self, self->readable, "write") < 0)
        return NULL;
    int rc = mpshm_channel_receive(self->end, self->fd, timeout, WAITER(&call));
    leave(self);
    if (rc == 1)
        return call.bytes;
    Py_XDECREF(call.bytes);
    if (rc == 0)
        PyErr_SetNone(PyExc_EOFError);
    else if (rc != -EAGAIN)
        fail(rc);
    return NULL;
}

static PyObject *channel_recv(PyObject *op, PyObject *unused)
{
    (void)unused;
    PyObject *data = receive((Channel *)op, -1);
    /* Looked up in each call, since packages replace it. */
    PyObject *object =
        data == NULL ? NULL : PyObject_CallMethodObjArgs(forking_pickler, loads_name, data, NULL);

    Py_XDECREF(data);
    return object;
}

static PyObject *channel_recv_bytes(PyObject *op, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"maxlength", NULL};
    Channel *self = (Channel *)op;
    PyObject *most = Py_None;

    if (!PyArg_ParseTupleAndKeywords(args, names, "|O:recv_bytes", keywords, &most))
        return NULL;
    if (enter(self, self->readable, "write") < 0)
        return NULL;
    leave(self);
    Py_ssize_t limit = most == Py_None ? PY_SSIZE_T_MAX : PyNumber_AsSsize_t(most, NULL);
    if (limit == -1 && PyErr_Occurred())
        return NULL;
    if (limit < 0) {
        PyErr_SetString(PyExc_ValueError, "negative maxlength");
        return NULL;
    }
    PyObject *data = receive(self, -1);
    if (data == NULL || PyBytes_Size(data) <= limit)
        return data;
    Py_DECREF(data);
    PyObject *told = PyObject_CallMethod(op, "_bad_message_length", NULL);
    Py_XDECREF(told);
    return NULL;
}

/* _receive_within(seconds or None) -> bytes, or None when no message came in time */
static PyObject *channel_receive_within(PyObject *op, PyObject *seconds)
{
    int64_t timeout;

    if (timeout_of(seconds, &timeout) < 0)
        return NULL;
    PyObject *data = receive((Channel *)op, timeout);
    return data == NULL && !PyErr_Occurred() ? Py_NewRef(Py_None) : data;
}

static PyObject *channel_poll(PyObject *op, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"timeout", NULL};
    Channel *self = (Channel *)op;
    struct call call = {.self = self};
    PyObject *seconds = NULL;
    int64_t timeout = 0;

    if (!PyArg_ParseTupleAndKeywords(args, names, "|O:poll", keywords, &seconds) ||
        (seconds != NULL && timeout_of(seconds, &timeout) < 0) ||
        enter(self, self->readable, "write") < 0)
        return NULL;
    int rc = mpshm_channel_poll(self->end, self->fd, timeout, WAITER(&call));
    leave(self);
    return rc < 0 ? fail(rc) : PyBool_FromLong(rc);
}

/* ---- descriptors ---- */

static PyObject *channel_fileno(PyObject *op, PyObject *unused)
{
    Channel *self = (Channel *)op;
    struct call call = {.self = self};
    (void)unused;

    if (enter(self, 1, "") < 0)
        return NULL;
    int fd = self->fd, rc = 0;
    if (self->readable)
        rc = mpshm_channel_selectable(self->end, fd, WAITER(&call));
    leave(self);
    return rc < 0 || PyErr_Occurred() ? fail(rc) : PyLong_FromLong(fd);
}

static PyObject *channel_close(PyObject *op, PyObject *unused)
{
    Channel *self = (Channel *)op;
    int fd = self->fd;
    (void)unused;

    if (fd < 0)
        Py_RETURN_NONE;
    self->fd = -1;
    int rc = close(fd) < 0 ? -errno : 0;
    release(self);
    if (rc < 0 && rc != -EINTR) {
        errno = -rc;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

/* _parts() -> (descriptor of the pipe, descriptor of the memory, side, readable, writable) */
static PyObject *channel_parts(PyObject *op, PyObject *unused)
{
    Channel *self = (Channel *)op;
    (void)unused;

    if (enter(self, 1, "") < 0)
        return NULL;
    int object = mpshm_channel_object(self->end);
    leave(self);
    if (object < 0) {
        PyErr_SetString(PyExc_OSError, "the program has closed the descriptor of this connection's "
                                       "shared memory, so it can no longer be sent");
        return NULL;
    }
    return Py_BuildValue("(iiiOO)", self->fd, object, self->side,
                         self->readable ? Py_True : Py_False, self->writable ? Py_True : Py_False);
}

static void channel_dealloc(PyObject *op)
{
    Channel *self = (Channel *)op;
    PyTypeObject *type = Py_TYPE(op);
    freefunc free_it = (freefunc)PyType_GetSlot(type, Py_tp_free);

    if (self->fd >= 0) {
        close(self->fd);
        self->fd = -1;
    }
    self->users = 0;
    release(self);
    free_it(op);
    Py_DECREF(type);
}

static PyObject *get_handle(PyObject *op, void *unused)
{
    (void)unused;
    int fd = ((Channel *)op)->fd;
    return fd < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(fd);
}

static int set_handle(PyObject *op, PyObject *value, void *unused)
{
    (void)unused;
    /* multiprocessing sets it to None to forget a descriptor that it has closed or given away. */
    if (value != Py_None) {
        PyErr_SetString(PyExc_AttributeError, "the descriptor of a channel cannot be replaced");
        return -1;
    }
    ((Channel *)op)->fd = -1;
    release((Channel *)op);
    return 0;
}

static PyObject *get_flag(PyObject *op, void *which)
{
    return PyBool_FromLong(which ? ((Channel *)op)->writable : ((Channel *)op)->readable);
}

static int set_flag(PyObject *op, PyObject *value, void *which)
{
    int on = value == NULL ? -1 : PyObject_IsTrue(value);

    if (on < 0)
        return -1;
    *(which ? &((Channel *)op)->writable : &((Channel *)op)->readable) = (char)on;
    return 0;
}

/* ---- making ---- */

static PyObject *wrap(PyObject *type, mpshm_channel *end, int fd, int side, int readable,
                      int writable)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_alloc);
    Channel *self = (Channel *)alloc((PyTypeObject *)type, 0);

    if (self == NULL) {
        close(fd);
        mpshm_channel_close(end);
        return NULL;
    }
    *self = (Channel){.ob_base = self->ob_base,
                      .end = end,
                      .fd = fd,
                      .side = side,
                      .readable = (char)readable,
                      .writable = (char)writable};
    return (PyObject *)self;
}

/* make_channel(type, duplex) -> (first end, second end), or -errno where there can be none. With
 * one direction, the first reads. */
PyObject *mp_py_make_channel(PyObject *module, PyObject *args)
{
    PyObject *type, *made[2];
    mpshm_channel *ends[2];
    int duplex, fds[2], rc;
    (void)module;

    if (!PyArg_ParseTuple(args, "Op:make_channel", &type, &duplex))
        return NULL;
    rc = mpshm_channel_create(duplex, ends);
    if (rc < 0)
        return PyLong_FromLong(rc);
    rc = duplex ? socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) : pipe2(fds, O_CLOEXEC);
    if (rc < 0) {
        rc = -errno;
        mpshm_channel_close(ends[0]);
        mpshm_channel_close(ends[1]);
        return PyLong_FromLong(rc);
    }
    /* End 0 writes, and so does the second descriptor of a pipe. */
    made[0] = wrap(type, ends[1], fds[0], 1, 1, duplex);
    made[1] = wrap(type, ends[0], fds[1], 0, duplex, 1);
    if (made[0] != NULL && made[1] != NULL)
        return Py_BuildValue("(NN)", made[0], made[1]);
    Py_XDECREF(made[0]);
    Py_XDECREF(made[1]);
    return NULL;
}

/* open_channel(type, fd, object, side, readable, writable) -> connection, or -errno. It takes both
 * descriptors over. */
PyObject *mp_py_open_channel(PyObject *module, PyObject *args)
{
    PyObject *type;
    mpshm_channel *end;
    int fd, object, side, readable, writable;
    (void)module;

    if (!PyArg_ParseTuple(args, "Oiiipp:open_channel", &type, &fd, &object, &side, &readable,
                          &writable))
        return NULL;
    int rc = mpshm_channel_open(object, side, &end);
    if (rc < 0) {
        close(object);
        close(fd);
        return PyLong_FromLong(rc);
    }
    return wrap(type, end, fd, side, readable, writable);
}

/* channel_count() -> how many ends this process has open */
PyObject *mp_py_channel_count(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyLong_FromUnsignedLongLong(mpshm_channel_count());
}

/* setup_channels(plain dumps, protocol, ForkingPickler) */
PyObject *mp_py_setup_channels(PyObject *module, PyObject *args)
{
    PyObject *dumps, *number, *pickler;
    (void)module;

    if (!PyArg_ParseTuple(args, "OOO:setup_channels", &dumps, &number, &pickler))
        return NULL;
    /* Once for the process, which keeps them. */
    plain_dumps = Py_NewRef(dumps);
    protocol = Py_NewRef(number);
    forking_pickler = Py_NewRef(pickler);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"send", channel_send, METH_O, "Send a (picklable) object."},
    {"_send_bytes", channel_send_bytes, METH_O, "Send one message."},
    {"_try_send_bytes", channel_try_send_bytes, METH_O, "Send one message unless it must wait."},
    {"recv", channel_recv, METH_NOARGS, "Receive a (picklable) object."},
    {"recv_bytes", (PyCFunction)(void (*)(void))channel_recv_bytes, METH_VARARGS | METH_KEYWORDS,
     "Receive bytes data as a bytes object."},
    {"_receive_within", channel_receive_within, METH_O, "Receive bytes, or None after a timeout."},
    {"poll", (PyCFunction)(void (*)(void))channel_poll, METH_VARARGS | METH_KEYWORDS,
     "Whether there is any input available to be read."},
    {"fileno", channel_fileno, METH_NOARGS, "File descriptor of the connection."},
    {"close", channel_close, METH_NOARGS, "Close the connection."},
    {"_close", channel_close, METH_NOARGS, "Close the connection."},
    {"_parts", channel_parts, METH_NOARGS, "The descriptors and flags that its pickle needs."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"_handle", get_handle, set_handle, "The descriptor of the pipe.", NULL},
    {"_readable", get_flag, set_flag, "Whether it can receive.", NULL},
    {"_writable", get_flag, set_flag, "Whether it can send.", (void *)1},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "One end of a channel, with its pipe."},
    {Py_tp_dealloc, channel_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "mp_core._block.Channel",
    .basicsize = sizeof(Channel),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

int mp_add_channel_type(PyObject *module)
{
    loads_name = PyUnicode_InternFromString("loads");
    send_object_name = PyUnicode_InternFromString("_send_object");
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    int rc = type == NULL || loads_name == NULL || send_object_name == NULL
                 ? -1
                 : PyModule_AddObjectRef(module, "Channel", type);

    Py_XDECREF(type);
    return rc;
}
