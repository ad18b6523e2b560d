/* The task ring between a pool and one of its workers: a duplex channel of numbered messages.
 *
 *   pool      make_task_ring() --> TaskRing      its ends() go to the worker: a socket, the ring's memory
 *   worker    open_task_ring(socket, memory) --> TaskRing
 *
 *   message   | number, 8 | kind, 8 | data |      at most LONGEST bytes of data
 *
 * It is no connection of multiprocessing: its messages are bytes whose references the pool counts
 * itself, and a message that was taken back stays in the ring. So closing a ring discards nothing.
 *
 * Note [The GIL and a task ring]
 *   The pool sends and takes with the GIL held, and never waits there; so no signal handler runs in
 *   between. A wait leaves the GIL. A task ring that is closed meanwhile keeps its memory until the
 *   wait has ended; its descriptor is closed at once. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "channels/channels.h"
#include "memory/memory.h"
#include "timeline/timeline.h"

enum { LONGEST = 60 << 10, AT_ONCE = 256 };

struct header {
    uint64_t number, kind;
};

typedef struct {
    PyObject_HEAD
    mpshm_channel *end; /* NULL: closed */
    int fd, far;        /* -1: closed; `far` is for the worker */
    int users;          /* waits */
    int hung_up;
    PyObject *first; /* the oldest message, which first() has returned and nobody has taken */
    PyObject *held;  /* the handles that dump() has made for the next message, a list or NULL */
    char *buffer;    /* of the message that is received; made when it is needed */
    uint64_t received;
} TaskRing;

static PyTypeObject *task_ring_type;

/* ---- calls of libshm ---- */

static void *allocate(void *of, uint64_t nbytes)
{
    TaskRing *self = of;

    if (self->buffer == NULL)
        self->buffer = PyMem_Malloc(sizeof(struct header) + LONGEST);
    self->received = nbytes;
    return nbytes <= sizeof(struct header) + LONGEST ? self->buffer : NULL;
}

/* The message that is sent has the handles from now on, if it has any. */
static void leave_at_once(void *of)
{
    TaskRing *self = of;

    mp_message_unhold(self->held);
    Py_CLEAR(self->held);
}

static void begin_nothing(void *of)
{
}

static int end_nothing(void *of)
{
    return 0;
}

#define AT_ONCE_WAITER(self, position)                                                             \
    (&(mpshm_waiter){(self), allocate, begin_nothing, end_nothing, end_nothing, (position), 1,     \
                     NULL, NULL, leave_at_once})

struct wait {
    TaskRing *ring; /* whose handles leave with the message, or NULL */
    PyThreadState *state;
    int waited;
};

static void begin_wait(void *of)
{
    ((struct wait *)of)->waited = 1;
    ((struct wait *)of)->state = PyEval_SaveThread();
}

static int end_wait(void *of)
{
    PyEval_RestoreThread(((struct wait *)of)->state);
    return PyErr_CheckSignals() < 0 ? -ECANCELED : 0;
}

static void leave(void *of)
{
    struct wait *wait = of;

    if (wait->ring != NULL)
        leave_at_once(wait->ring);
}

/* The conditional expression makes another type than `struct wait *` an error. */
#define WAITING_WAITER(of, position)                                                               \
    (&(mpshm_waiter){1 ? (of) : (struct wait *)NULL, NULL, begin_wait, end_wait, NULL, (position), \
                     1, NULL, NULL, leave})

static PyObject *fail(int rc)
{
    if (PyErr_Occurred())
        return NULL;
    return mp_raise_errno(PyExc_OSError, -rc);
}

/* The scheduler closes the ring of a worker that has ended, while another thread may look at it:
 * that one finds no message and no task that it could take back. */
static int is_closed(const TaskRing *self)
{
    return self->fd < 0 || self->end == NULL;
}

static int is_open(TaskRing *self)
{
    if (is_closed(self))
        PyErr_SetString(PyExc_OSError, "the ring is closed");
    return !is_closed(self);
}

/* ---- sending ---- */

/* Send a message, given as (number, kind, data): 0 or -errno. */
static int send_message(TaskRing *self, PyObject *args, int64_t timeout, const mpshm_waiter *waiter)
{
    struct header header;
    unsigned long long number;
    unsigned int kind;
    Py_buffer data;
    char few[1024], *whole = few;

    if (!PyArg_ParseTuple(args, "KIy*", &number, &kind, &data))
        return -ECANCELED;
    size_t nbytes = sizeof(header) + (size_t)data.len;
    header = (struct header){number, kind};
    int rc = !is_open(self) ? -ECANCELED : data.len > LONGEST ? -EMSGSIZE : 0;
    if (rc == 0 && nbytes > sizeof(few) && (whole = PyMem_Malloc(nbytes)) == NULL)
        rc = -ENOMEM;
    if (rc == 0) {
        memcpy(whole, &header, sizeof(header));
        memcpy(whole + sizeof(header), data.buf, (size_t)data.len);
        uint64_t began = mp_timeline_begin();
        self->users++;
        rc = mpshm_channel_send(self->end, self->fd, whole, nbytes, timeout, waiter);
        self->users--;
        if (began != 0 && rc == 0)
            mp_timeline_task(began, MP_PUT, mpshm_channel_ring_id(self->end, 1), *waiter->position,
                             nbytes);
    }
    if (whole != few)
        PyMem_Free(whole);
    PyBuffer_Release(&data);
    return rc;
}

/* send(number, kind, data): send a message; BlockingIOError when it was not sent, for want of room
 * or of a worker. An exception, because a signal handler may raise after any call that returns: so
 * the caller knows which of the two it was. */
static PyObject *task_ring_send(PyObject *op, PyObject *args)
{
    uint64_t position = 0;
    int rc = send_message((TaskRing *)op, args, 0, AT_ONCE_WAITER(op, &position));

    if (rc == 0)
        Py_RETURN_NONE;
    return PyErr_Occurred() ? NULL : mp_raise_errno(PyExc_BlockingIOError, -rc);
}

static PyObject *send_all(PyObject *op, PyObject *args, TaskRing *leaving)
{
    struct wait wait = {.ring = leaving};
    uint64_t position = 0, began = mp_timeline_begin();
    int rc = send_message((TaskRing *)op, args, -1, WAITING_WAITER(&wait, &position));
    if (wait.waited)
        mp_timeline_span(began, 0, MP_PUT, MP_WAITED, 0, 0);

    return rc < 0 ? fail(rc == -ECONNRESET ? -EPIPE : rc) : Py_NewRef(Py_None);
}

/* send_all(number, kind, data): wait for room, and send a message */
static PyObject *task_ring_send_all(PyObject *op, PyObject *args)
{
    return send_all(op, args, (TaskRing *)op);
}

/* send_part(number, kind, data): the same, for what is not the end of a pickle yet */
static PyObject *task_ring_send_part(PyObject *op, PyObject *args)
{
    return send_all(op, args, NULL);
}

/* dump(function, *args) -> its result, a pickle. If the process is killed before it has sent all of
 * that, the memory in the pickle is released. */
static PyObject *task_ring_dump(PyObject *op, PyObject *args)
{
    PyObject *handles, *data = mp_call_for_ring(args, &handles);

    if (data == NULL) {
        mp_drop_handles(handles);
        return NULL;
    }
    leave_at_once(op);
    ((TaskRing *)op)->held = handles;
    return data;
}

/* ---- receiving ---- */

/* (number, kind, data) of the oldest message; NULL without an exception if there is none. */
static PyObject *take(TaskRing *self)
{
    struct header header;
    PyObject *first = self->first;
    uint64_t position = 0;

    self->first = NULL;
    if (first != NULL)
        return first;
    if (!is_open(self))
        return NULL;
    int rc = mpshm_channel_next(self->end, self->fd, AT_ONCE_WAITER(self, &position));
    if (rc == -EAGAIN)
        return NULL;
    if (rc < 0 || self->received < sizeof(header))
        return fail(rc < 0 ? rc : -EBADMSG);
    mp_timeline_task(mp_timeline_begin(), MP_GET, mpshm_channel_ring_id(self->end, 0), position,
                     self->received);
    memcpy(&header, self->buffer, sizeof(header));
    return Py_BuildValue("KIy#", (unsigned long long)header.number, (unsigned int)header.kind,
                         self->buffer + sizeof(header),
                         (Py_ssize_t)(self->received - sizeof(header)));
}

/* take() -> (number, kind, data), or None if no message is there */
static PyObject *task_ring_take(PyObject *op, PyObject *unused)
{
    PyObject *message = take((TaskRing *)op);

    return message == NULL && !PyErr_Occurred() ? Py_NewRef(Py_None) : message;
}

/* first() -> (number, kind, data) of the oldest message, which stays; None if no message is there,
 * or the ring is closed */
static PyObject *task_ring_first(PyObject *op, PyObject *unused)
{
    TaskRing *self = (TaskRing *)op;

    if (self->first == NULL && (is_closed(self) || (self->first = take(self)) == NULL))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    return Py_NewRef(self->first);
}

/* skip(number): drop the message that first() has returned, if it has that number and is there */
static PyObject *task_ring_skip(PyObject *op, PyObject *number)
{
    TaskRing *self = (TaskRing *)op;
    unsigned long long value = PyLong_AsUnsignedLongLong(number);

    if (PyErr_Occurred())
        return NULL;
    if (self->first != NULL && PyLong_AsUnsignedLongLong(PyTuple_GetItem(self->first, 0)) == value)
        Py_CLEAR(self->first);
    Py_RETURN_NONE;
}

/* take_all() -> a list of the messages that are there; of a fast worker, not all */
static PyObject *task_ring_take_all(PyObject *op, PyObject *unused)
{
    PyObject *messages = PyList_New(0), *message;

    for (int i = 0; messages != NULL && i < AT_ONCE; i++) {
        message = take((TaskRing *)op);
        if (message == NULL && !PyErr_Occurred())
            break;
        if (message == NULL || PyList_Append(messages, message) < 0)
            Py_CLEAR(messages);
        Py_XDECREF(message);
    }
    return messages;
}

/* wait() -> True when there is a message, False at the end of the other process */
static PyObject *task_ring_wait(PyObject *op, PyObject *unused)
{
    TaskRing *self = (TaskRing *)op;
    struct wait wait = {0};
    int rc = 0;

    if (!is_open(self))
        return NULL;
    mpshm_awaited_channel one = {.end = self->end, .fd = self->fd};
    self->users++;
    uint64_t began = mp_timeline_begin();
    mp_timeline_idle(began);
    while (rc == 0)
        rc = mpshm_channel_wait_any(&one, 1, NULL, 0, NULL, -1, WAITING_WAITER(&wait, NULL));
    self->users--;
    mp_timeline_idle(0);
    mp_timeline_span(began, 0, MP_IDLE, MP_WAITED, 0, 0);
    return rc < 0 ? fail(rc) : PyBool_FromLong(one.ready == MPSHM_HAS_MESSAGE);
}

/* spin() -> whether there is a message; it waits for one twice as long as it would before a sleep */
static PyObject *task_ring_spin(PyObject *op, PyObject *unused)
{
    TaskRing *self = (TaskRing *)op;
    struct wait wait = {0};

    if (is_closed(self))
        Py_RETURN_FALSE;
    self->users++;
    int rc = self->first != NULL ? 1 : mpshm_channel_spin(self->end, WAITING_WAITER(&wait, NULL));
    self->users--;
    return PyErr_Occurred() ? NULL : PyBool_FromLong(rc > 0);
}

/* The arguments of wait_any(), and what it finds. */
struct many {
    int n, m, held;
    mpshm_awaited_channel *channels;
    int *fds;
    unsigned char *readable;
};

static int read_arguments(struct many *many, PyObject *rings, PyObject *fds)
{
    many->channels = PyMem_Calloc((size_t)many->n + 1, sizeof(*many->channels));
    many->fds = PyMem_Calloc((size_t)many->m + 1, sizeof(int));
    many->readable = PyMem_Calloc((size_t)many->m + 1, 1);
    if (many->channels == NULL || many->fds == NULL || many->readable == NULL)
        return PyErr_NoMemory(), -1;
    for (int i = 0; i < many->n; i++) {
        PyObject *ring = PyList_GetItem(rings, i);
        if (!PyObject_TypeCheck(ring, task_ring_type))
            return PyErr_SetString(PyExc_TypeError, "wait_any waits for rings"), -1;
        if (!is_open((TaskRing *)ring))
            return -1;
        many->channels[i].end = ((TaskRing *)ring)->end;
        many->channels[i].fd = ((TaskRing *)ring)->fd;
        if (((TaskRing *)ring)->first != NULL) {
            many->channels[i].ready = MPSHM_HAS_MESSAGE;
            many->held++;
        }
    }
    for (int i = 0; i < many->m; i++) {
        many->fds[i] = (int)PyLong_AsLong(PyList_GetItem(fds, i));
        if (many->fds[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

static PyObject *as_lists(struct many *many, PyObject *rings, PyObject *fds)
{
    PyObject *ready = PyList_New(0), *readable = PyList_New(0);
    int rc = ready == NULL || readable == NULL ? -1 : 0;

    for (int i = 0; rc == 0 && i < many->n; i++)
        if (many->channels[i].ready != 0) {
            PyObject *ring = PyList_GetItem(rings, i);
            ((TaskRing *)ring)->hung_up |= many->channels[i].ready == MPSHM_HUNG_UP;
            rc = PyList_Append(ready, ring);
        }
    for (int i = 0; rc == 0 && i < many->m; i++)
        if (many->readable[i])
            rc = PyList_Append(readable, PyList_GetItem(fds, i));
    if (rc == 0)
        return Py_BuildValue("(NN)", ready, readable);
    Py_XDECREF(ready);
    Py_XDECREF(readable);
    return NULL;
}

/* wait_any(rings, fds, milliseconds) -> (the rings with a message or that have hung up, the
 * readable descriptors), two lists; both are empty after the time or a signal. A negative number
 * is for ever. The lists must not change meanwhile. */
PyObject *mp_py_wait_any(PyObject *module, PyObject *args)
{
    PyObject *rings, *fds, *found = NULL;
    struct wait wait = {0};
    struct many many = {0};
    double ms;

    if (!PyArg_ParseTuple(args, "OOd:wait_any", &rings, &fds, &ms))
        return NULL;
    if (!PyList_Check(rings) || !PyList_Check(fds))
        return PyErr_Format(PyExc_TypeError, "wait_any takes two lists");
    many.n = (int)PyList_Size(rings);
    many.m = (int)PyList_Size(fds);
    if (read_arguments(&many, rings, fds) == 0) {
        for (int i = 0; i < many.n; i++)
            ((TaskRing *)PyList_GetItem(rings, i))->users++;
        int rc = many.held;
        if (rc == 0)
            rc = mpshm_channel_wait_any(many.channels, many.n, many.fds, many.m, many.readable,
                                        ms < 0 || ms > 1e12 ? -1 : (int64_t)(ms * 1e6),
                                        WAITING_WAITER(&wait, NULL));
        for (int i = 0; i < many.n; i++)
            ((TaskRing *)PyList_GetItem(rings, i))->users--;
        found = rc < 0 ? fail(rc) : as_lists(&many, rings, fds);
    }
    PyMem_Free(many.channels);
    PyMem_Free(many.fds);
    PyMem_Free(many.readable);
    return found;
}

/* ---- claims ---- */

/* claim(number) -> whether the worker may begin that task, rather than that it was taken back */
static PyObject *task_ring_claim(PyObject *op, PyObject *number)
{
    unsigned long long value = PyLong_AsUnsignedLongLong(number);

    if (PyErr_Occurred() || !is_open((TaskRing *)op))
        return NULL;
    return PyBool_FromLong(mpshm_channel_claim(((TaskRing *)op)->end, value));
}

/* take_back(until) -> the first of the tasks that the pool has again, up to that number */
static PyObject *task_ring_take_back(PyObject *op, PyObject *until)
{
    unsigned long long value = PyLong_AsUnsignedLongLong(until);

    if (PyErr_Occurred() || !is_open((TaskRing *)op))
        return NULL;
    return PyLong_FromUnsignedLongLong(mpshm_channel_take_back(((TaskRing *)op)->end, value));
}

static PyObject *get_claimed(PyObject *op, void *unused)
{
    return PyLong_FromUnsignedLongLong(
        is_closed((TaskRing *)op) ? UINT64_MAX : mpshm_channel_claimed(((TaskRing *)op)->end));
}

/* ---- descriptors ---- */

/* ends() -> the descriptors for the worker: its socket, and the memory of the ring */
static PyObject *task_ring_ends(PyObject *op, PyObject *unused)
{
    TaskRing *self = (TaskRing *)op;

    if (!is_open(self))
        return NULL;
    int memory = mpshm_channel_object(self->end);
    return memory < 0 ? fail(memory) : Py_BuildValue("(ii)", self->far, memory);
}

/* close_ends(): close them; the worker has its own */
static PyObject *task_ring_close_ends(PyObject *op, PyObject *unused)
{
    TaskRing *self = (TaskRing *)op;
    int far = self->far;

    self->far = -1;
    if (far >= 0)
        close(far);
    if (self->end != NULL)
        mpshm_channel_forget_object(self->end);
    Py_RETURN_NONE;
}

static PyObject *task_ring_close(PyObject *op, PyObject *unused)
{
    TaskRing *self = (TaskRing *)op;
    int fds[] = {self->fd, self->far};

    self->fd = self->far = -1;
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (self->end != NULL && self->users == 0) {
        mpshm_channel_close(self->end);
        self->end = NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *task_ring_fileno(PyObject *op, PyObject *unused)
{
    return PyLong_FromLong(((TaskRing *)op)->fd);
}

static PyObject *get_hung_up(PyObject *op, void *unused)
{
    return PyBool_FromLong(((TaskRing *)op)->hung_up);
}

static void task_ring_dealloc(PyObject *op)
{
    ((TaskRing *)op)->users = 0;
    Py_DECREF(task_ring_close(op, NULL));
    PyMem_Free(((TaskRing *)op)->buffer);
    Py_XDECREF(((TaskRing *)op)->first);
    Py_XDECREF(((TaskRing *)op)->held);
    mp_free(op);
}

/* ---- making ---- */

static PyObject *new_task_ring(mpshm_channel *end, int fd, int far)
{
    TaskRing *self = mp_new(task_ring_type);

    if (self == NULL) {
        close(fd);
        if (far >= 0)
            close(far);
        mpshm_channel_close(end);
        return NULL;
    }
    self->end = end; /* the others are 0 */
    self->fd = fd;
    self->far = far;
    return (PyObject *)self;
}

/* make_task_ring() -> the pool's end, or -errno where there can be none */
PyObject *mp_py_make_task_ring(PyObject *module, PyObject *unused)
{
    mpshm_channel *ends[2];
    int fds[2], rc = mpshm_channel_create(1, ends);

    if (rc < 0)
        return PyLong_FromLong(rc);
    mpshm_channel_close(ends[1]); /* the worker opens its own */
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0) {
        rc = -errno;
        mpshm_channel_close(ends[0]);
        return PyLong_FromLong(rc);
    }
    return new_task_ring(ends[0], fds[0], fds[1]);
}

/* open_task_ring(socket, memory) -> the worker's end, or -errno. It takes both descriptors over. */
PyObject *mp_py_open_task_ring(PyObject *module, PyObject *args)
{
    mpshm_channel *end;
    int fd, memory;

    if (!PyArg_ParseTuple(args, "ii:open_task_ring", &fd, &memory))
        return NULL;
    int rc = mpshm_channel_open(memory, 1, &end);
    if (rc < 0) {
        close(memory);
        close(fd);
        return PyLong_FromLong(rc);
    }
    mpshm_channel_forget_object(end);
    return new_task_ring(end, fd, -1);
}

static PyMethodDef methods[] = {
    {"send", task_ring_send, METH_VARARGS, "Send a message unless it must wait."},
    {"dump", task_ring_dump, METH_VARARGS, "Call a function that pickles the next message."},
    {"send_part", task_ring_send_part, METH_VARARGS, "Send a part of a message; wait for room."},
    {"send_all", task_ring_send_all, METH_VARARGS, "Send a message; wait for room."},
    {"take", task_ring_take, METH_NOARGS, "Take the oldest message if one is there."},
    {"take_all", task_ring_take_all, METH_NOARGS, "Take the messages that are there."},
    {"first", task_ring_first, METH_NOARGS, "The oldest message, which stays, if one is there."},
    {"skip", task_ring_skip, METH_O, "Drop the message that first() has returned."},
    {"spin", task_ring_spin, METH_NOARGS, "Wait a moment for a message: whether there is one."},
    {"wait", task_ring_wait, METH_NOARGS, "Wait for a message, or the end of the other process."},
    {"claim", task_ring_claim, METH_O, "Claim a task: whether it was not taken back."},
    {"take_back", task_ring_take_back, METH_O, "Take back the tasks up to a number."},
    {"ends", task_ring_ends, METH_NOARGS, "The descriptors for the worker."},
    {"close_ends", task_ring_close_ends, METH_NOARGS, "Close the descriptors for the worker."},
    {"close", task_ring_close, METH_NOARGS, "Close it."},
    {"fileno", task_ring_fileno, METH_NOARGS, "The descriptor, -1 if it is closed."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"claimed", get_claimed, NULL, "The number of tasks that are not the pool's any more.", NULL},
    {"hung_up", get_hung_up, NULL, "Whether the worker has closed its end.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "One end of the ring between a pool and a worker."},
    {Py_tp_dealloc, task_ring_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0, NULL},
};

int mp_add_task_ring_type(PyObject *module)
{
    task_ring_type =
        (PyTypeObject *)mp_add_type(module, "mp_core._block.TaskRing", sizeof(TaskRing), 0, slots);
    return task_ring_type == NULL ? -1 : PyModule_AddIntMacro(module, LONGEST);
}
