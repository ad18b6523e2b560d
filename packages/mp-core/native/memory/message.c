/* The message that a thread is pickling: its in-flight references so far, and the array bytes that
 * it carries itself.
 *
 *   pickled(dumps, object)     the pickler pickles the objects one by one
 *     array 1: a block --> handle 1    array 2: in the message, 8 KiB
 *     array 3: cannot be pickled --> handle 1 is discarded
 *     all done --> a Message: the bytes, and [handle 1]
 *
 * An in-flight reference keeps memory until a process receives it. If pickling or sending fails, no
 * process will. So the references of a message belong to a Message, and are discarded with it,
 * unless it was sent: the C function that sends it leaves them to the receiver in the same call. No
 * Python code runs in between, so a signal handler that raises cannot separate the two.
 *
 * Each thread has its own message, on the stack of the C function that began it. Messages nest,
 * because a reducer may pickle objects of its own: the references of an inner one that ended well
 * go to the enclosing one, or to the caller if there is none, as of ForkingPickler.dumps. A
 * reference made outside of any message (an object pickled by a bare ForkingPickler) is not
 * tracked.
 *
 * A message that goes through a ring is noted in the session while it is this process's, so that it
 * does not outlive a process that is killed (libshm's handle_log.c, Note [A writer that is
 * killed]).
 *
 * A message goes by value if its receiver cannot share memory or this process was told not to. Its
 * nested messages also go by value. Reducers then leave the array to NumPy. */
#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "memory/memory.h"
#include "timeline/timeline.h"

static _Thread_local mp_message *current;
static _Thread_local int for_ring;
static int sharing_is_off; /* in this process, by set_sharing() */

int mp_goes_by_value(void)
{
    return current != NULL ? current->by_value : sharing_is_off;
}

static void enter(mp_message *message, int by_value)
{
    *message = (mp_message){.outer = current,
                            .by_value = by_value || mp_goes_by_value(),
                            .for_ring = current != NULL ? current->for_ring : for_ring};
    current = message;
}

void mp_message_enter(mp_message *message)
{
    enter(message, 0);
}

PyObject *mp_message_leave(mp_message *message)
{
    current = message->outer;
    return message->handles;
}

int mp_message_for_ring(int on)
{
    int before = for_ring;

    for_ring = on;
    return before;
}

void mp_message_unhold(PyObject *handles)
{
    const unsigned char *those[MPSHM_DROPPED];
    int count = 0;

    for (Py_ssize_t i = 0, n = handles == NULL ? 0 : PyList_Size(handles); i < n; i++) {
        those[count++] = (const unsigned char *)PyBytes_AsString(PyList_GetItem(handles, i));
        if (count == MPSHM_DROPPED || i == n - 1) {
            mpshm_handle_log_drop(those, count);
            count = 0;
        }
    }
}

/* by_value() -> whether the message that this thread is pickling goes by value */
PyObject *mp_py_by_value(PyObject *module, PyObject *unused)
{
    return PyBool_FromLong(mp_goes_by_value());
}

/* shares_now() -> whether this thread is pickling a message that may share memory */
PyObject *mp_py_shares_now(PyObject *module, PyObject *unused)
{
    return PyBool_FromLong(current != NULL && !current->by_value);
}

/* share(on): set whether messages of this process share memory, None to leave it; returns the value
 * before. */
PyObject *mp_py_share(PyObject *module, PyObject *on)
{
    int before = !sharing_is_off;

    if (on != Py_None)
        sharing_is_off = on != Py_True;
    return PyBool_FromLong(before);
}

void mp_drop_handles(PyObject *handles)
{
    mp_error error = mp_set_aside();
    for (Py_ssize_t i = 0; handles != NULL && i < PyList_Size(handles); i++)
        mp_discard_handle(PyBytes_AsString(PyList_GetItem(handles, i)));
    Py_XDECREF(handles);
    mp_put_back(&error);
}

Py_ssize_t mp_message_handles(void)
{
    return current == NULL || current->handles == NULL ? 0 : PyList_Size(current->handles);
}

void mp_message_take_back(Py_ssize_t handles)
{
    if (mp_message_handles() <= handles)
        return;
    mp_error error = mp_set_aside();
    PyObject *rest = PyList_GetSlice(current->handles, handles, PY_SSIZE_T_MAX);
    if (rest == NULL || PyList_SetSlice(current->handles, handles, PY_SSIZE_T_MAX, NULL) < 0) {
        PyErr_Clear(); /* without memory for it, these stay in flight */
        Py_CLEAR(rest);
    }
    mp_drop_handles(rest);
    mp_put_back(&error);
}

void mp_message_adopt(PyObject *handles)
{
    if (handles != NULL && current != NULL) {
        if (current->handles == NULL) {
            current->handles = handles;
            return;
        }
        /* Without memory for it, these stay in flight. */
        if (PyList_SetSlice(current->handles, PY_SSIZE_T_MAX, PY_SSIZE_T_MAX, handles) < 0)
            PyErr_Clear();
    }
    mp_message_unhold(current == NULL ? handles : NULL); /* the caller may send them anywhere */
    Py_XDECREF(handles);
}

/* Call the function, with a tuple of arguments, in a message; returns its result and the handles.
 */
static PyObject *call_in(int by_value, int is_sending, PyObject *function, PyObject *args,
                         PyObject **handles)
{
    mp_message message;
    uint64_t began = current == NULL ? mp_timeline_begin() : 0;

    enter(&message, by_value);
    message.for_ring &= !is_sending; /* it goes through a pipe */
    PyObject *result = PyObject_Call(function, args, NULL);
    *handles = mp_message_leave(&message);
    mp_timeline_span(began, MP_LEAST_NS, MP_PICKLE, MP_INTO, 0, 0);
    return result;
}

/* The first argument, which is the function, and a tuple of the others; 0, or -1. */
static int split(PyObject *args, Py_ssize_t from, PyObject **function, PyObject **rest)
{
    Py_ssize_t n = PyTuple_Size(args);

    if (n <= from) {
        PyErr_SetString(PyExc_TypeError, "a function is missing");
        return -1;
    }
    *function = PyTuple_GetItem(args, from);
    *rest = PyTuple_GetSlice(args, from + 1, n);
    return *rest == NULL ? -1 : 0;
}

/* in_message(function, *args) -> its result. The references of the message are the caller's, or
 * those of the enclosing message, unless the function fails. */
PyObject *mp_py_in_message(PyObject *module, PyObject *args)
{
    PyObject *function, *rest, *handles;

    if (split(args, 0, &function, &rest) < 0)
        return NULL;
    PyObject *result = call_in(0, 0, function, rest, &handles);
    Py_DECREF(rest);
    if (result == NULL)
        mp_drop_handles(handles);
    else
        mp_message_adopt(handles);
    return result;
}

/* sent(by value, function, *args) -> its result. The function pickles a message and sends it. If it
 * fails, the kernel may have taken the last bytes already, unless it says that nobody reads them.
 */
PyObject *mp_py_sent(PyObject *module, PyObject *args)
{
    PyObject *function, *rest, *handles;

    if (split(args, 1, &function, &rest) < 0)
        return NULL;
    int by_value = PyTuple_GetItem(args, 0) == Py_True;
    PyObject *result = call_in(by_value, 1, function, rest, &handles);
    Py_DECREF(rest);
    if (result == NULL && (PyErr_ExceptionMatches(PyExc_BrokenPipeError) ||
                           PyErr_ExceptionMatches(PyExc_ConnectionResetError)))
        mp_drop_handles(handles);
    else
        Py_XDECREF(handles);
    return result;
}

/* ---- Message: a pickled message that is not sent yet ---- */

typedef struct {
    PyObject_HEAD
    PyObject *data, *handles, *error; /* each may be NULL */
    pid_t pid; /* a forked child has a copy, whose references are its parent's */
} Message;

static PyObject *message_type, *sent; /* `sent`: of every message that is sent */

PyObject *mp_message_new(PyObject *data, PyObject *handles)
{
    Message *self = mp_new(message_type);

    if (self == NULL) {
        mp_drop_handles(handles);
        Py_XDECREF(data);
        return NULL;
    }
    self->data = data;
    self->handles = handles;
    self->pid = handles == NULL ? 0 : getpid();
    return (PyObject *)self;
}

int mp_is_message(PyObject *object)
{
    return Py_TYPE(object) == (PyTypeObject *)message_type;
}

PyObject *mp_message_data(PyObject *object)
{
    return mp_is_message(object) ? ((Message *)object)->data : object;
}

PyObject *mp_message_handles_of(PyObject *object)
{
    return mp_is_message(object) ? ((Message *)object)->handles : NULL;
}

void mp_message_sent(PyObject *object)
{
    if (mp_is_message(object))
        Py_CLEAR(((Message *)object)->handles);
}

void mp_message_failed(PyObject *message, PyObject *error)
{
    Py_XDECREF(((Message *)message)->error);
    ((Message *)message)->error = error;
}

PyObject *mp_sent_message(void)
{
    return sent;
}

PyObject *mp_pickled(int by_value, PyObject *function, PyObject *args)
{
    PyObject *handles, *data = call_in(by_value, 0, function, args, &handles);

    if (data != NULL)
        return mp_message_new(data, handles);
    mp_drop_handles(handles);
    return NULL;
}

PyObject *mp_call_for_ring(PyObject *args, PyObject **handles)
{
    PyObject *function, *rest;

    *handles = NULL;
    if (split(args, 0, &function, &rest) < 0)
        return NULL;
    int before = mp_message_for_ring(1);
    PyObject *data = call_in(0, 0, function, rest, handles);
    mp_message_for_ring(before);
    Py_DECREF(rest);
    return data;
}

static PyObject *pickled(PyObject *args, int by_value)
{
    PyObject *function, *rest;

    if (split(args, 0, &function, &rest) < 0)
        return NULL;
    PyObject *message = mp_pickled(by_value, function, rest);
    Py_DECREF(rest);
    return message;
}

/* pickled(function, *args) -> Message; the function pickles an object, and returns its pickle */
PyObject *mp_py_pickled(PyObject *module, PyObject *args)
{
    return pickled(args, 0);
}

/* pickled_by_value(function, *args) -> Message */
PyObject *mp_py_pickled_by_value(PyObject *module, PyObject *args)
{
    return pickled(args, 1);
}

static void message_dealloc(PyObject *op)
{
    Message *self = (Message *)op;

    if (self->handles != NULL && self->pid == getpid())
        mp_drop_handles(self->handles);
    else
        Py_XDECREF(self->handles);
    Py_XDECREF(self->data);
    Py_XDECREF(self->error);
    mp_free(op);
}

/* leave(): its references are its receiver's from now on */
static PyObject *message_leave(PyObject *op, PyObject *unused)
{
    mp_message_unhold(((Message *)op)->handles);
    Py_CLEAR(((Message *)op)->handles);
    Py_RETURN_NONE;
}

/* take_error() -> why it was not pickled or sent, which it has no longer: the traceback of an error
 * that is raised has a frame that has the message */
static PyObject *message_take_error(PyObject *op, PyObject *unused)
{
    PyObject *error = ((Message *)op)->error;
    ((Message *)op)->error = NULL;
    return error == NULL ? Py_NewRef(Py_None) : error;
}

static PyObject *get_data(PyObject *op, void *unused)
{
    PyObject *data = ((Message *)op)->data;
    mp_message_unhold(((Message *)op)->handles); /* the caller may send it elsewhere */
    return Py_NewRef(data == NULL ? Py_None : data);
}

static PyObject *get_error(PyObject *op, void *unused)
{
    PyObject *error = ((Message *)op)->error;
    return Py_NewRef(error == NULL ? Py_None : error);
}

static PyObject *get_handles(PyObject *op, void *unused)
{
    PyObject *handles = ((Message *)op)->handles;
    return handles == NULL ? PyTuple_New(0) : PyList_AsTuple(handles);
}

static PyMethodDef methods[] = {
    {"leave", message_leave, METH_NOARGS, "Leave its in-flight references to its receiver."},
    {"take_error", message_take_error, METH_NOARGS, "Return its error, which it has no longer."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"data", get_data, NULL, "The pickle; None if there is none.", NULL},
    {"error", get_error, NULL, "Why it was not pickled or sent; None if it was or may still be.",
     NULL},
    {"handles", get_handles, NULL, "The handles of its in-flight references, a tuple.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A pickled message, whose in-flight references are discarded with it."},
    {Py_tp_dealloc, message_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0, NULL},
};

int mp_add_message_type(PyObject *module)
{
    message_type =
        mp_add_type(module, "mp_core._block.Message", sizeof(Message), MP_ONLY_HERE, slots);
    sent = message_type == NULL ? NULL : mp_message_new(NULL, NULL);
    return sent == NULL ? -1 : PyModule_AddObjectRef(module, "SENT", sent);
}

PyObject *mp_make_handle(const mpshm_block *block, int flags)
{
    if (current != NULL && current->by_value)
        return PyErr_Format(PyExc_TypeError, "this message goes by value, because its receiver "
                                             "cannot share memory or set_sharing(False) was "
                                             "called, and a Block, a Lease or device memory "
                                             "cannot: send bytes(block) or an array instead");
    mp_timeline_block(1, (flags & MPSHM_COPY) != 0, block->nbytes);
    return mp_make_tracked_handle(block, flags);
}

PyObject *mp_make_tracked_handle(const mpshm_block *block, int flags)
{
    unsigned char bytes[MPSHM_HANDLE_SIZE];
    PyObject *handle;

    /* Make the list first: without memory for it there must be no in-flight reference. */
    if (current != NULL && current->handles == NULL && (current->handles = PyList_New(0)) == NULL)
        return NULL;
    if (current != NULL && current->for_ring)
        flags |= MPSHM_NOTED;
    mpshm_block_send(block, flags, bytes);
    handle = PyBytes_FromStringAndSize((const char *)bytes, sizeof(bytes));
    if (handle == NULL || (current != NULL && PyList_Append(current->handles, handle) < 0)) {
        Py_CLEAR(handle);
        mp_discard_handle((const char *)bytes);
    }
    return handle;
}

/* message_exhausted(): let all that follows in the message that this thread is pickling travel in
 * it: there is no more memory for blocks, and to try for each array would take longer than to send
 * it */
PyObject *mp_py_message_exhausted(PyObject *module, PyObject *unused)
{
    if (current != NULL)
        current->is_exhausted = 1;
    Py_RETURN_NONE;
}

int mp_message_has_room(size_t nbytes, size_t limit)
{
    /* An array no larger than a few handles gains nothing from a block. */
    enum { ALWAYS = 256 };

    if (current != NULL && current->is_exhausted)
        return 1;
    if (nbytes > limit)
        return 0;
    if (current == NULL || nbytes <= ALWAYS)
        return 1;
    if (nbytes > limit - (current->carried < limit ? current->carried : limit))
        return 0;
    current->carried += nbytes;
    return 1;
}

/* ---- errors ---- */

int mp_timeout(PyObject *seconds, int64_t *ns)
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

PyObject *mp_raise_errno(PyObject *type, int number)
{
    const char *call = mpshm_failed_call(number);

    errno = number;
    if (*call == 0)
        return PyErr_SetFromErrno(type);
    PyObject *error = PyObject_CallFunction(
        type, "iN", number, PyUnicode_FromFormat("%s (system call: %s)", strerror(number), call));
    if (error != NULL)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error); /* the subclass of the number */
    Py_XDECREF(error);
    return NULL;
}

/* ---- copied bytes ---- */

static atomic_ullong copied;

unsigned long long mp_count_copied(unsigned long long nbytes)
{
    return atomic_fetch_add_explicit(&copied, nbytes, memory_order_relaxed) + nbytes;
}

/* copied_bytes(more): add `more`; returns the sum */
PyObject *mp_py_copied_bytes(PyObject *module, PyObject *more)
{
    unsigned long long nbytes = PyLong_AsUnsignedLongLong(more);
    if (PyErr_Occurred())
        return NULL;
    return PyLong_FromUnsignedLongLong(mp_count_copied(nbytes));
}
