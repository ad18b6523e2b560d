/* Sending and receiving over a channel of libshm, with the pipe of a connection. */
#define _GNU_SOURCE
#include <errno.h>
#include <unistd.h>

#include "channels/channel.h"
#include "channels/channels.h"
#include "memory/memory.h"
#include "messages/messages.h"
#include "messages/plan.h"
#include "timeline/timeline.h"

static PyObject *standard_type, *finds_out, *is_finalizing;

PyObject *mp_channel_standard(PyObject *op, const char *name, PyObject *argument)
{
    /* Looked up each time: `connections` extends these methods, and so may a program. */
    PyObject *method = PyObject_GetAttrString(standard_type, name);
    PyObject *result =
        method == NULL ? NULL : PyObject_CallFunctionObjArgs(method, op, argument, NULL);

    Py_XDECREF(method);
    return result;
}

int mp_channel_is_finalizing(void)
{
    mp_error error = mp_set_aside(); /* of a close in a finaliser */
    PyObject *answer = PyObject_CallNoArgs(is_finalizing);
    int finalizing = answer == Py_True;
    Py_XDECREF(answer);
    mp_put_back(&error);
    return finalizing;
}

/* ---- sending ---- */

/* How a message is sent: without regard to the bound of a queue, into one of its places, or into
 * the place that was reserved for it. */
enum way { SEND, PUT, RESERVED };

static int send_view(Channel *self, PyObject *data, PyObject *handles, int64_t timeout,
                     enum way way, PyObject *stop)
{
    struct call call = {.self = self, .stop = stop, .handles = handles};
    const mpshm_waiter *waiter = WAITER_WITH(&call, handles != NULL, NULL);
    Py_buffer view;
    int rc;

    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0)
        return -ECANCELED;
    uint64_t began = mp_timeline_begin();
    if (way == PUT)
        rc = mpshm_channel_put(self->end, self->fd, view.buf, (uint64_t)view.len, timeout, waiter);
    else if (way == RESERVED)
        rc = mpshm_channel_send_reserved(self->end, self->fd, view.buf, (uint64_t)view.len, waiter);
    else
        rc = mpshm_channel_send(self->end, self->fd, view.buf, (uint64_t)view.len, timeout, waiter);
    if (began != 0)
        mp_timeline_message(began, MP_PUT, call.waited, mpshm_channel_ring_id(self->end, 1),
                            rc == 0 ? call.position : 0, (uint64_t)view.len);
    PyBuffer_Release(&view);
    return rc;
}

/* Send bytes or a Message, whose references are its receiver's as soon as it is in the ring. After
 * an error no process receives it: a message that was sent in part is marked as aborted. */
static int send_data_unless(Channel *self, PyObject *data, PyObject *handles, int64_t timeout,
                            enum way way, PyObject *stop)
{
    int rc = mp_channel_enter(self, self->writable, "read");

    if (rc != 0)
        return rc < 0 ? -EINVAL : MP_NO_RING;
    if (handles == NULL)
        handles = mp_message_handles_of(data);
    Py_XINCREF(handles);
    rc = send_view(self, mp_message_data(data), handles, timeout, way, stop);
    Py_XDECREF(handles);
    if (rc == 0)
        mp_message_sent(data);
    else if (rc == -EPIPE || rc == -ECONNRESET)
        mp_channel_drop_unread(self);
    mp_channel_leave(self);
    return rc;
}

/* `handles` are those of a message that is not in a Message, or NULL. */
static int send_data(Channel *self, PyObject *data, PyObject *handles, int64_t timeout,
                     enum way way)
{
    return send_data_unless(self, data, handles, timeout, way, NULL);
}

/* After a send: drop what the handles refer to if it failed, and in any case the list. */
static void discard_unsent(PyObject *handles, int rc)
{
    if (rc < 0)
        mp_drop_handles(handles);
    else
        Py_XDECREF(handles);
}

/* _send_bytes(data): send one message */
PyObject *mp_channel_send_bytes(PyObject *op, PyObject *data)
{
    int rc = send_data((Channel *)op, data, NULL, -1, SEND);

    if (rc == MP_NO_RING)
        return mp_channel_standard(op, "_send_bytes", data);
    return rc < 0 ? mp_channel_fail(rc) : Py_NewRef(Py_None);
}

/* _send_reserved(message): send the message of a reservation, when there is room */
PyObject *mp_channel_send_reserved(PyObject *op, PyObject *message)
{
    int rc = send_data((Channel *)op, message, NULL, -1, RESERVED);

    return rc == 0 ? Py_NewRef(Py_None) : mp_channel_fail(rc == MP_NO_RING ? -EOPNOTSUPP : rc);
}

/* SENT; None when the queue is full; or the message, with the error, or without one when it has to
 * wait for room. It raises nothing: the caller would take that for the exception of a signal
 * handler that runs after the message was sent. */
static PyObject *offered(PyObject *message, int rc)
{
    if (rc == 0) {
        Py_XDECREF(message);
        return Py_NewRef(mp_sent_message());
    }
    if (rc == -ENOSPC) {
        Py_XDECREF(message);
        return Py_NewRef(Py_None);
    }
    if (message != NULL && rc != -EAGAIN) {
        mp_channel_fail(rc == MP_NO_RING ? -EOPNOTSUPP : rc); /* the ends of queues have one */
        mp_message_failed(message, mp_raised());
    }
    return message;
}

/* _offer_message(message) -> SENT, None when the queue is full now, or the message, which waits or
 * has an error */
PyObject *mp_channel_offer_message(PyObject *op, PyObject *message)
{
    if (!mp_is_message(message) || message == mp_sent_message())
        return PyErr_Format(PyExc_TypeError, "_offer_message takes a Message that is not sent yet");
    return offered(Py_NewRef(message), send_data((Channel *)op, message, NULL, 0, PUT));
}

/* Bytes and their handles, or a Message; NULL with an exception. */
static PyObject *pickled_for(Channel *self, PyObject *object, PyObject **handles)
{
    int before = mp_message_for_ring(1);
    PyObject *data = mp_encode(object, self->shares != 0, handles);

    if (data == NULL && !PyErr_Occurred())
        data = mp_forking_pickle(object, self->shares == 0, 1);
    mp_message_for_ring(before);
    return data;
}

static PyObject *as_message(PyObject *data, PyObject *handles)
{
    return mp_message_data(data) == data ? mp_message_new(data, handles) : data;
}

/* ---- a place in a queue ---- */

int mp_channel_wait_for_place(Channel *self, int64_t timeout, PyObject *stop)
{
    struct call call = {.self = self, .stop = stop};

    if (mp_channel_enter(self, 1, "") != 0)
        return -EINVAL;
    int rc = mpshm_channel_wait_for_place(self->end, self->fd, timeout, WAITER(&call));
    mp_channel_leave(self);
    return rc;
}

int mp_channel_is_full(Channel *self, int64_t *timeout)
{
    if (self->fd < 0 || !self->writable || !mp_has_ring(self))
        return 0; /* the send says so */
    int rc = mp_channel_wait_for_place(self, 0, NULL);
    if (rc == -ENOSPC && *timeout != 0) {
        uint64_t began = mp_timeline_now();
        rc = mp_channel_wait_for_place(self, *timeout, NULL);
        if (*timeout > 0) {
            *timeout -= (int64_t)(mp_timeline_now() - began);
            *timeout = *timeout < 0 ? 0 : *timeout;
        }
    }
    if (rc == -ENOSPC)
        return 1;
    if (PyErr_Occurred())
        return -1;
    return 0; /* another error is the send's too */
}

/* _offer(object, seconds or None) -> as _offer_message, with None when the queue is full so long; a
 * message whose object cannot be pickled has no data. It also waits before it pickles. */
PyObject *mp_channel_offer(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *handles = NULL;
    int64_t timeout;

    if (nargs != 2)
        return PyErr_Format(PyExc_TypeError, "_offer takes two arguments");
    if (mp_timeout(args[1], &timeout) < 0)
        return NULL;
    int full = mp_channel_is_full((Channel *)op, &timeout);
    if (full != 0)
        return full < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *data = pickled_for((Channel *)op, args[0], &handles);
    if (data == NULL) {
        PyObject *error = mp_raised(), *message = mp_message_new(NULL, NULL);
        if (message != NULL)
            mp_message_failed(message, error);
        else
            Py_XDECREF(error);
        return message;
    }
    int rc = send_data((Channel *)op, data, handles, timeout, PUT);
    if (rc != 0)
        return offered(as_message(data, handles), rc);
    Py_DECREF(data);
    Py_XDECREF(handles);
    return offered(NULL, 0);
}

/* _pickle(object) -> the Message that _offer would send */
PyObject *mp_channel_pickle(PyObject *op, PyObject *object)
{
    PyObject *handles = NULL, *data = pickled_for((Channel *)op, object, &handles);

    return data == NULL ? NULL : as_message(data, handles);
}

/* _send_unless(message, list) -> True when it is sent; False when it gave up, since the list is no
 * longer empty, and no part of it can be received */
PyObject *mp_channel_send_unless(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyList_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "_send_unless takes a message and a list");
    if (PyList_Size(args[1]) > 0)
        Py_RETURN_FALSE;
    int rc = send_data_unless((Channel *)op, args[0], NULL, -1, SEND, args[1]);
    if (rc == -ECANCELED && !PyErr_Occurred())
        Py_RETURN_FALSE;
    if (rc == 0)
        Py_RETURN_TRUE;
    return mp_channel_fail(rc == MP_NO_RING ? -EOPNOTSUPP : rc);
}

/* _wake_senders(): let _send_unless look at its list now */
PyObject *mp_channel_wake_senders(PyObject *op, PyObject *unused)
{
    Channel *self = (Channel *)op;

    if (self->end != NULL)
        mpshm_channel_wake_senders(self->end);
    Py_RETURN_NONE;
}

/* Set `shares`: 0, or -1 with an exception. */
static int find_out(PyObject *op)
{
    PyObject *result = PyObject_CallFunctionObjArgs(finds_out, op, NULL);

    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

PyObject *mp_channel_send(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    Channel *self = (Channel *)op;
    PyObject *handles = NULL, *data, *object;

    if (nargs + (names == NULL ? 0 : PyTuple_Size(names)) != 1 ||
        (nargs == 0 && PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "obj") != 0)) {
        PyErr_SetString(PyExc_TypeError, "send() takes exactly one argument, obj");
        return NULL;
    }
    object = args[0];
    if (self->fd < 0 || !self->writable || !mp_has_ring(self))
        return mp_channel_standard(op, "send", object);
    int before = mp_message_for_ring(1), is_known = self->shares >= 0;
    data = mp_encode(object, self->shares == 1, &handles);
    if (data == NULL && !PyErr_Occurred() && (is_known || find_out(op) == 0))
        data = mp_forking_pickle(object, self->shares == 0, is_known);
    mp_message_for_ring(before);
    if (data == NULL)
        return NULL;
    int rc = send_data(self, data, handles, -1, SEND);
    discard_unsent(handles, rc);
    Py_DECREF(data);
    return rc < 0 ? mp_channel_fail(rc) : Py_NewRef(Py_None);
}

/* ---- receiving ---- */

/* Whether the connection is open, can receive and has no ring, so that multiprocessing's own method
 * has to do it. */
static int is_ordinary(PyObject *op)
{
    Channel *self = (Channel *)op;

    return self->fd >= 0 && self->readable && !mp_has_ring(self);
}

/* Note [A message that is kept]
 *   _keep_next takes a message for whoever receives next in this process. It takes the message
 * under the ring's read_lock, and keeps it before it releases the GIL. So a thread that waits in a
 * call meanwhile gets that lock, and with it an empty ring, only when the message is kept, and
 *   end_wait tells it so. */

/* The next message as bytes; NULL with an exception, or without one when none came in time. With
 * `left`, it does not wait, and sets that for a message that is left to a caller that may wait.
 * With `taken`, for a caller that unpickles it now: its handles are noted until taken_end(). */
static PyObject *receive_unless_large(Channel *self, int64_t timeout, int *left, uint64_t *taken)
{
    struct call call = {.self = self, .for_next = 1};
    const mpshm_waiter *waiter =
        WAITER_WITH(&call, 0, taken == NULL ? NULL : mpshm_own_handle_log());

    int rc = mp_channel_enter(self, self->readable, "write");
    if (rc != 0)
        return rc < 0 ? NULL : mp_channel_fail(-EOPNOTSUPP); /* the callers have looked */
    uint64_t began = mp_timeline_begin();
    do {
        if (self->kept != NULL && mp_channel_has_kept(self)) {
            Py_XDECREF(call.bytes);
            call.bytes = mp_channel_kept(self);
            rc = call.bytes == NULL ? -ENOMEM : 1;
        } else if (left != NULL) {
            rc = mpshm_channel_take(self->end, self->fd, waiter);
        } else {
            rc = mpshm_channel_receive(self->end, self->fd, timeout, waiter);
        }
    } while (rc == -ECANCELED && !PyErr_Occurred());
    if (began != 0)
        mp_timeline_message(began, MP_GET, call.waited, mpshm_channel_ring_id(self->end, 0),
                            rc == 1 ? call.position : 0,
                            rc == 1 ? (uint64_t)PyBytes_Size(call.bytes) : 0);
    mp_channel_leave(self);
    if (rc == -EMSGSIZE && left != NULL) {
        *left = 1;
        return NULL;
    }
    if (taken != NULL)
        *taken = call.taken;
    if (rc == 1)
        return call.bytes;
    Py_XDECREF(call.bytes);
    if (rc == 0)
        PyErr_SetNone(PyExc_EOFError);
    else if (rc != -EAGAIN)
        mp_channel_fail(rc);
    return NULL;
}

static PyObject *receive(Channel *self, int64_t timeout, uint64_t *taken)
{
    return receive_unless_large(self, timeout, NULL, taken);
}

/* The object of a message; drops the bytes. */
static PyObject *unpickled(PyObject *data, uint64_t taken)
{
    PyObject *object = mp_decode(data);

    mpshm_handle_log_end(taken);
    Py_DECREF(data);
    return object;
}

PyObject *mp_channel_recv(PyObject *op, PyObject *unused)
{
    if (is_ordinary(op))
        return mp_channel_standard(op, "recv", NULL);
    uint64_t taken = 0;
    PyObject *data = receive((Channel *)op, -1, &taken);

    return data == NULL ? NULL : unpickled(data, taken);
}

/* _recv_within(seconds or None, expired): recv(), or `expired` when none came in time */
PyObject *mp_channel_recv_within(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    int64_t timeout;
    uint64_t taken = 0;

    if (nargs != 2)
        return PyErr_Format(PyExc_TypeError, "_recv_within takes two arguments");
    if (mp_timeout(args[0], &timeout) < 0)
        return NULL;
    PyObject *data = receive((Channel *)op, timeout, &taken);
    if (data == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(args[1]);
    return unpickled(data, taken);
}

/* _take(expired, large): as _recv_within without a wait; returns `large` when the next
 * message is left to _keep_next */
PyObject *mp_channel_take(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    uint64_t taken = 0;
    int left = 0;

    if (nargs != 2)
        return PyErr_Format(PyExc_TypeError, "_take takes two arguments");
    PyObject *data = receive_unless_large((Channel *)op, 0, &left, &taken);
    if (data == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(args[left ? 1 : 0]);
    return unpickled(data, taken);
}

/* _keep_next(): if there is a message, take it, of whatever size, for the next receiver in this
 * process. It waits for the parts of a large one. */
PyObject *mp_channel_keep_next(PyObject *op, PyObject *unused)
{
    Channel *self = (Channel *)op;

    if (mp_channel_has_kept(self))
        Py_RETURN_NONE;
    PyObject *list = PyList_New(0), *data = list == NULL ? NULL : receive(self, 0, NULL);
    if (data == NULL) {
        Py_XDECREF(list);
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    if (self->kept == NULL || self->kept_by != getpid()) {
        mp_channel_drop_kept(self);
        self->kept = Py_NewRef(list);
        self->kept_by = getpid();
    }
    int rc = PyList_Append(self->kept, data);
    if (self->fd < 0) /* closed meanwhile */
        mp_channel_drop_kept(self);
    Py_DECREF(list);
    Py_DECREF(data);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *mp_channel_recv_bytes(PyObject *op, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"maxlength", NULL};
    Channel *self = (Channel *)op;
    PyObject *most = Py_None;

    if (!PyArg_ParseTupleAndKeywords(args, names, "|O:recv_bytes", keywords, &most))
        return NULL;
    if (is_ordinary(op))
        return mp_channel_standard(op, "recv_bytes", most);
    if (mp_channel_enter(self, self->readable, "write") < 0)
        return NULL;
    mp_channel_leave(self);
    Py_ssize_t limit = most == Py_None ? PY_SSIZE_T_MAX : PyNumber_AsSsize_t(most, NULL);
    if (limit == -1 && PyErr_Occurred())
        return NULL;
    if (limit < 0)
        return PyErr_Format(PyExc_ValueError, "negative maxlength");
    PyObject *data = receive(self, -1, NULL);
    if (data == NULL || PyBytes_Size(data) <= limit)
        return data;
    Py_DECREF(data);
    PyObject *told = PyObject_CallMethod(op, "_bad_message_length", NULL);
    Py_XDECREF(told);
    return NULL;
}

PyObject *mp_channel_poll(PyObject *op, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"timeout", NULL};
    Channel *self = (Channel *)op;
    struct call call = {.self = self, .for_next = 1};
    PyObject *seconds = NULL;
    int64_t timeout = 0;

    if (!PyArg_ParseTupleAndKeywords(args, names, "|O:poll", keywords, &seconds))
        return NULL;
    if (is_ordinary(op))
        return mp_channel_standard(op, "poll", seconds);
    if ((seconds != NULL && mp_timeout(seconds, &timeout) < 0) ||
        mp_channel_enter(self, self->readable, "write") < 0)
        return NULL;
    if (mp_channel_has_kept(self)) {
        mp_channel_leave(self);
        Py_RETURN_TRUE;
    }
    int rc = mpshm_channel_poll(self->end, self->fd, timeout, WAITER(&call));
    mp_channel_leave(self);
    if (rc == -ECANCELED && !PyErr_Occurred())
        rc = 1; /* a message is kept */
    return rc < 0 ? mp_channel_fail(rc) : PyBool_FromLong(rc);
}

/* setup_channels(Connection, by_value.find_out, sys.is_finalizing) */
PyObject *mp_py_setup_channels(PyObject *module, PyObject *args)
{
    PyObject *standard, *finds, *finalizing, *before = standard_type;

    if (!PyArg_ParseTuple(args, "OOO:setup_channels", &standard, &finds, &finalizing))
        return NULL;
    finds_out = Py_NewRef(finds); /* once for the process */
    is_finalizing = Py_NewRef(finalizing);
    standard_type = Py_NewRef(standard);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}
