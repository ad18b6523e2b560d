/* The type under mp_core's connections: one end of a channel of libshm, with its pipe.
 *
 *   class ChannelConnection(Channel, multiprocessing.connection.Connection)
 *
 * Its methods come first in the method resolution order; what they leave out (send_bytes, closed,
 * the context manager) is multiprocessing's own Python code on the attributes _handle, _readable
 * and _writable. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "channels/channel.h"
#include "channels/channels.h"

/* ---- descriptors ---- */

static PyObject *channel_fileno(PyObject *op, PyObject *unused)
{
    Channel *self = (Channel *)op;
    int rc = mp_channel_enter(self, 1, "");

    if (rc != 0)
        return rc < 0 ? NULL : PyLong_FromLong(self->fd);
    int fd = self->fd;
    if (self->readable)
        mpshm_channel_selectable(self->end, fd);
    mp_channel_leave(self);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(fd);
}

static PyObject *close_descriptor(Channel *self)
{
    int fd = self->fd;

    mp_lazy_leave(self);
    self->fd = -1;
    int rc = close(fd) < 0 ? -errno : 0;
    mp_channel_release(self);
    if (rc < 0 && rc != -EINTR) {
        errno = -rc;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

/* An ordinary connection, for want of a ring. */
static PyObject *close_ordinary(PyObject *op)
{
    PyObject *result = mp_channel_standard(op, "_close", NULL);

    mp_error error = mp_set_aside();
    ((Channel *)op)->fd = -1; /* or it would be closed again */
    mp_channel_release((Channel *)op);
    mp_put_back(&error);
    return result;
}

/* close() and _close(): the last reading end frees the memory of what nobody has read (unread.c).
 * In one call, so that a signal handler that raises cannot leave it half done. An end that is
 * alone has nothing to look after. */
static PyObject *close_end(PyObject *op)
{
    Channel *self = (Channel *)op;

    mp_lazy_leave(self);
    if (self->alone)
        return close_descriptor(self);
    int finalizing = mp_channel_is_finalizing();
    if (!finalizing && self->end == NULL)
        return close_ordinary(op);
    return !finalizing && mp_channel_close_last_reader(self) ? Py_NewRef(Py_None)
                                                             : close_descriptor(self);
}

/* Tell those who wait for it without being inside a call, and forget what nobody has received. */
static void after_close(PyObject *op)
{
    mp_channel_drop_kept((Channel *)op);
    mp_error error = mp_set_aside();
    PyObject *awaited = PyObject_GetAttrString(op, "_awaited");
    if (awaited != NULL && awaited != Py_None) {
        PyObject *told = PyObject_CallMethod(awaited, "closed", NULL);
        Py_XDECREF(told);
    }
    Py_XDECREF(awaited);
    PyErr_Clear();
    mp_put_back(&error);
}

static PyObject *channel_close(PyObject *op, PyObject *unused)
{
    if (((Channel *)op)->fd < 0)
        Py_RETURN_NONE;
    PyObject *result = close_end(op);
    after_close(op);
    return result;
}

/* _is_ordinary() -> whether it is open and can receive, and has no ring, although it needs one now
 */
static PyObject *channel_is_ordinary(PyObject *op, PyObject *unused)
{
    Channel *self = (Channel *)op;
    return PyBool_FromLong(self->fd >= 0 && self->readable && !mp_has_ring(self));
}

/* _has_ring() -> whether it has a ring, which is made now if it is lazy */
static PyObject *channel_has_ring(PyObject *op, PyObject *unused)
{
    return PyBool_FromLong(((Channel *)op)->fd >= 0 && mp_has_ring((Channel *)op));
}

/* _parts() -> (descriptor of the pipe, descriptor of the memory, side, readable, writable); None
 * without a ring */
static PyObject *channel_parts(PyObject *op, PyObject *unused)
{
    Channel *self = (Channel *)op;

    int rc = mp_channel_enter(self, 1, "");
    if (rc != 0)
        return rc < 0 ? NULL : Py_NewRef(Py_None);
    int object = mpshm_channel_object(self->end);
    mp_channel_leave(self);
    if (object < 0)
        return PyErr_Format(PyExc_OSError,
                            "the program has closed the descriptor of this connection's "
                            "shared memory, so it can no longer be sent");
    return Py_BuildValue("(iiiOO)", self->fd, object, self->side,
                         self->readable ? Py_True : Py_False, self->writable ? Py_True : Py_False);
}

/* _ring_id(sends) -> the number of its ring in the timeline; 0 without one */
static PyObject *channel_ring_id(PyObject *op, PyObject *sends)
{
    mpshm_channel *end = ((Channel *)op)->end;
    return PyLong_FromUnsignedLongLong(end == NULL ? 0
                                                   : mpshm_channel_ring_id(end, sends == Py_True));
}

static void channel_dealloc(PyObject *op)
{
    Channel *self = (Channel *)op;

    mp_lazy_leave(self);
    mp_channel_drop_kept(self);
    if (self->fd >= 0) {
        close(self->fd);
        self->fd = -1;
    }
    self->users = 0;
    self->counts = 0;
    mp_channel_release(self);
    mp_free(op);
}

static PyObject *get_handle(PyObject *op, void *unused)
{
    int fd = ((Channel *)op)->fd;
    return fd < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(fd);
}

static int set_handle(PyObject *op, PyObject *value, void *unused)
{
    /* multiprocessing sets it to None to forget a descriptor that it has closed or given away. */
    if (value != Py_None) {
        PyErr_SetString(PyExc_AttributeError, "the descriptor of a channel cannot be replaced");
        return -1;
    }
    mp_lazy_leave((Channel *)op);
    ((Channel *)op)->fd = -1;
    mp_channel_release((Channel *)op);
    after_close(op);
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

static PyObject *get_shares(PyObject *op, void *unused)
{
    int shares = ((Channel *)op)->shares;
    return shares < 0 ? Py_NewRef(Py_None) : PyBool_FromLong(shares);
}

static int set_shares(PyObject *op, PyObject *value, void *unused)
{
    ((Channel *)op)->shares = value == NULL || value == Py_None ? -1 : value == Py_True;
    return 0;
}

/* ---- making ---- */

static PyObject *wrap(PyObject *type, mpshm_channel *end, int fd, int side, int readable,
                      int writable)
{
    Channel *self = mp_new(type);

    if (self == NULL) {
        close(fd);
        if (end != NULL)
            mpshm_channel_close(end);
        return NULL;
    }
    self->end = end; /* the others are 0 */
    self->fd = fd;
    self->side = side;
    self->readable = (char)readable;
    self->writable = (char)writable;
    self->shares = -1;
    self->counts = end != NULL && mpshm_channel_is_queue(end);
    return (PyObject *)self;
}

/* make_channel(type, duplex, lazy) -> (first end, second end), or -errno where there can be none.
 * With one direction, the first reads. If `lazy`, the ring is made when it is needed. */
PyObject *mp_py_make_channel(PyObject *module, PyObject *args)
{
    PyObject *type, *made[2];
    mpshm_channel *ends[2] = {NULL, NULL};
    int duplex, lazy, fds[2], rc;

    if (!PyArg_ParseTuple(args, "Opp:make_channel", &type, &duplex, &lazy))
        return NULL;
    rc = lazy ? 0 : mpshm_channel_create(duplex, ends);
    if (rc < 0) {
        mp_count_refused_ring();
        return PyLong_FromLong(rc);
    }
    rc = duplex ? socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) : pipe2(fds, O_CLOEXEC);
    if (rc < 0) {
        rc = -errno;
        for (int side = 0; side < 2 && !lazy; side++)
            mpshm_channel_close(ends[side]);
        mp_count_refused_ring();
        return PyLong_FromLong(rc);
    }
    /* End 0 writes, and so does the second descriptor of a pipe. */
    made[0] = wrap(type, ends[1], fds[0], 1, 1, duplex);
    made[1] = wrap(type, ends[0], fds[1], 0, duplex, 1);
    if (made[0] != NULL && made[1] != NULL) {
        if (!lazy || mp_lazy_pair((Channel *)made[1], (Channel *)made[0], duplex) == 0)
            return Py_BuildValue("(NN)", made[0], made[1]);
        PyErr_NoMemory();
    }
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
    return PyLong_FromUnsignedLongLong(mpshm_channel_count());
}

static PyMethodDef methods[] = {
    {"send", (PyCFunction)(void (*)(void))mp_channel_send, METH_FASTCALL | METH_KEYWORDS,
     "send($self, obj)\n--\n\nSend a (picklable) object."},
    {"_send_bytes", mp_channel_send_bytes, METH_O, "Send one message."},
    {"_offer_message", mp_channel_offer_message, METH_O, "Send a message unless it must wait."},
    {"_offer", (PyCFunction)(void (*)(void))mp_channel_offer, METH_FASTCALL,
     "Send an object unless it must wait for room; wait for a place."},
    {"_send_reserved", mp_channel_send_reserved, METH_O, "Send the message of a reservation."},
    {"_set_bound", mp_queue_set_bound, METH_O, "Count the messages of a new queue."},
    {"_begin_reservations", mp_queue_begin_reservations, METH_NOARGS, "Own those of the process."},
    {"_end_reservations", mp_queue_end_reservations, METH_NOARGS, "Drop them."},
    {"_reserve", (PyCFunction)(void (*)(void))mp_queue_reserve, METH_FASTCALL,
     "Reserve a place and append the message to a buffer."},
    {"_unreserve", mp_queue_unreserve, METH_NOARGS, "Give a reservation back."},
    {"_wait_for_place", (PyCFunction)(void (*)(void))mp_queue_wait_for_place, METH_FASTCALL,
     "Wait until the queue is not full."},
    {"_messages", mp_queue_messages, METH_NOARGS, "How many messages the queue has."},
    {"_has_rest", mp_channel_has_rest, METH_NOARGS, "Whether a part of a message was taken."},
    {"_task_done", mp_queue_task_done, METH_NOARGS, "Whether there was a task to finish."},
    {"_tasks", mp_queue_tasks, METH_NOARGS, "How many tasks are not done."},
    {"_join", mp_queue_join, METH_O, "Wait until all tasks are done, in time."},
    {"_acquire", (PyCFunction)(void (*)(void))mp_queue_acquire, METH_FASTCALL,
     "Acquire a lock of the program in time."},
    {"_release", mp_queue_release, METH_O, "Whether there was a lock to release."},
    {"recv", mp_channel_recv, METH_NOARGS, "recv($self)\n--\n\nReceive a (picklable) object."},
    {"_recv_within", (PyCFunction)(void (*)(void))mp_channel_recv_within, METH_FASTCALL,
     "Receive an object in time."},
    {"_pickle", mp_channel_pickle, METH_O, "Return the message of an object."},
    {"_send_unless", (PyCFunction)(void (*)(void))mp_channel_send_unless, METH_FASTCALL,
     "Send a message; give up when a list is no longer empty."},
    {"_wake_senders", mp_channel_wake_senders, METH_NOARGS, "Let _send_unless look at its list."},
    {"_take", (PyCFunction)(void (*)(void))mp_channel_take, METH_FASTCALL,
     "Receive a small object without a wait."},
    {"_keep_next", mp_channel_keep_next, METH_NOARGS, "Take a message for the next receiver."},
    {"recv_bytes", (PyCFunction)(void (*)(void))mp_channel_recv_bytes, METH_VARARGS | METH_KEYWORDS,
     "recv_bytes($self, maxlength=None)\n--\n\nReceive bytes data as a bytes object."},
    {"poll", (PyCFunction)(void (*)(void))mp_channel_poll, METH_VARARGS | METH_KEYWORDS,
     "poll($self, timeout=0.0)\n--\n\nWhether there is any input available to be read."},
    {"fileno", channel_fileno, METH_NOARGS,
     "fileno($self)\n--\n\nFile descriptor of the connection."},
    {"close", channel_close, METH_NOARGS, "close($self)\n--\n\nClose the connection."},
    {"_close", channel_close, METH_NOARGS, "Close the connection."},
    {"_is_ordinary", channel_is_ordinary, METH_NOARGS, "Whether it has no ring."},
    {"_has_ring", channel_has_ring, METH_NOARGS, "Whether it has a ring."},
    {"_ring_id", channel_ring_id, METH_O, "The number of its ring in the timeline."},
    {"_parts", channel_parts, METH_NOARGS, "The descriptors and flags that its pickle needs."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"_handle", get_handle, set_handle, "The descriptor of the pipe.", NULL},
    {"_readable", get_flag, set_flag, "Whether it can receive.", NULL},
    {"_writable", get_flag, set_flag, "Whether it can send.", (void *)1},
    {"_mp_shares", get_shares, set_shares, "Whether messages share memory; None: not known.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "One end of a channel, with its pipe."},
    {Py_tp_dealloc, channel_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0, NULL},
};

int mp_add_channel_type(PyObject *module)
{
    PyObject *type =
        mp_add_type(module, "mp_core._block.Channel", sizeof(Channel), Py_TPFLAGS_BASETYPE, slots);

    Py_XDECREF(type);
    return type == NULL ? -1 : 0;
}
