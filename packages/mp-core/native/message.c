/* The message that a thread is pickling: its in-flight references so far, and the array bytes that
 * it carries itself.
 *
 *   begin()            pickle the objects one by one                          end()
 *     |   array 1: a block --> handle 1    array 2: in the message, 8 KiB       |
 *     |   array 3: cannot be pickled -------------------------------------------+--> [handle 1]
 *
 * An in-flight reference keeps memory until a process receives it. If pickling fails, no process
 * will; so the sender asks for the handles of the failed message and discards them.
 *
 * Each thread has its own message. Messages nest, because a reducer may pickle objects of its own.
 * A signal handler may raise before the caller has noted that its message has begun, so message_end
 * is told how many messages there were before, and not which one to end:
 *
 *   depth = message_depth()
 *   try:
 *       message_begin(False)
 *       ...
 *   finally:
 *       message_end(False, depth)
 *
 * A message that ended well is left to its caller, unless the enclosing message adopts handles: a
 * send has to know the handles after pickling too. A reference made outside of any message (an
 * object pickled by a bare ForkingPickler) is not tracked.
 *
 * A message that is written in C (write_message.c) begins and ends in one call, and is on the
 * stack.
 *
 * A message goes by value if its receiver cannot share memory or this process was told not to. The
 * messages nested in it do so too. Reducers then leave the array to NumPy. */
#include <stdatomic.h>
#include <string.h>

#include "native.h"

static _Thread_local mp_message *current;
static _Thread_local int depth;
static int sharing_is_off; /* in this process, by set_sharing() */

int mp_goes_by_value(void)
{
    return current != NULL ? current->by_value : sharing_is_off;
}

static void enter(mp_message *message, int adopts, int by_value)
{
    *message = (mp_message){
        .outer = current, .adopts = adopts, .by_value = by_value || mp_goes_by_value()};
    current = message;
    depth++;
}

void mp_message_enter(mp_message *message)
{
    enter(message, 0, 0);
    message->on_stack = 1;
}

PyObject *mp_message_leave(mp_message *message)
{
    current = message->outer;
    depth--;
    return message->handles;
}

void mp_discard_all(PyObject *handles)
{
    for (Py_ssize_t i = 0; handles != NULL && i < PyList_Size(handles); i++) {
        unsigned char bytes[MPSHM_HANDLE_SIZE];
        memcpy(bytes, PyBytes_AsString(PyList_GetItem(handles, i)), sizeof(bytes));
        Py_BEGIN_ALLOW_THREADS mpshm_block_discard(bytes, sizeof(bytes));
        Py_END_ALLOW_THREADS
    }
}

static PyObject *begin(int adopts, int by_value)
{
    mp_message *message = PyMem_Malloc(sizeof(*message));

    if (message == NULL)
        return PyErr_NoMemory();
    enter(message, adopts, by_value);
    return PyBool_FromLong(message->by_value);
}

/* message_begin(adopts) -> whether the message goes by value */
PyObject *mp_py_message_begin(PyObject *module, PyObject *adopts)
{
    (void)module;
    return begin(adopts == Py_True, 0);
}

/* message_begin_by_value() */
PyObject *mp_py_message_begin_by_value(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return begin(1, 1);
}

/* by_value() -> whether the message that this thread is pickling goes by value */
PyObject *mp_py_by_value(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyBool_FromLong(mp_goes_by_value());
}

/* share(on): set whether messages of this process share memory, None to leave it; returns the value
 * before. */
PyObject *mp_py_share(PyObject *module, PyObject *on)
{
    int before = !sharing_is_off;
    (void)module;

    if (on != Py_None)
        sharing_is_off = on != Py_True;
    return PyBool_FromLong(before);
}

/* message_depth() -> how many messages this thread is pickling, one in the other */
PyObject *mp_py_message_depth(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyLong_FromLong(depth);
}

/* Add the handles of a message to those of the messages in it. */
static void collect(PyObject **all, PyObject *handles)
{
    if (*all == NULL) {
        *all = handles;
    } else if (handles != NULL) {
        /* Without memory for it, these stay in flight. */
        if (PyList_SetSlice(*all, PY_SSIZE_T_MAX, PY_SSIZE_T_MAX, handles) < 0)
            PyErr_Clear();
        Py_DECREF(handles);
    }
}

/* message_end(ended well, depth): end the messages that began since message_depth() was that ->
 * a list of their handles, or None */
PyObject *mp_py_message_end(PyObject *module, PyObject *args)
{
    PyObject *handles = NULL, *well;
    int before;
    (void)module;

    if (!PyArg_ParseTuple(args, "Oi:message_end", &well, &before))
        return NULL;
    while (current != NULL && !current->on_stack && depth > before) {
        mp_message *message = current;
        collect(&handles, message->handles);
        current = message->outer;
        depth--;
        PyMem_Free(message);
    }
    if (well == Py_True && current != NULL && current->adopts) {
        Py_XDECREF(current->handles);
        current->handles = handles;
    } else if (handles != NULL) {
        return handles;
    }
    Py_RETURN_NONE;
}

PyObject *mp_make_handle(const mpshm_block *block, int flags)
{
    if (current != NULL && current->by_value)
        return PyErr_Format(PyExc_TypeError, "this message goes by value, because its receiver "
                                             "cannot share memory or set_sharing(False) was "
                                             "called, and a Block, a Lease or device memory "
                                             "cannot: send bytes(block) or an array instead");
    return mp_make_tracked_handle(block, flags);
}

PyObject *mp_make_tracked_handle(const mpshm_block *block, int flags)
{
    unsigned char bytes[MPSHM_HANDLE_SIZE];
    PyObject *handle;

    /* Make the list first: without memory for it there must be no in-flight reference. */
    if (current != NULL && current->handles == NULL && (current->handles = PyList_New(0)) == NULL)
        return NULL;
    mpshm_block_send(block, flags, bytes);
    handle = PyBytes_FromStringAndSize((const char *)bytes, sizeof(bytes));
    if (handle == NULL || (current != NULL && PyList_Append(current->handles, handle) < 0)) {
        Py_CLEAR(handle);
        Py_BEGIN_ALLOW_THREADS mpshm_block_discard(bytes, sizeof(bytes));
        Py_END_ALLOW_THREADS
    }
    return handle;
}

int mp_message_has_room(size_t nbytes, size_t limit)
{
    /* An array no larger than a few handles gains nothing from a block. */
    enum { ALWAYS = 256 };

    if (nbytes > limit)
        return 0;
    if (current == NULL || nbytes <= ALWAYS)
        return 1;
    if (nbytes > limit - (current->carried < limit ? current->carried : limit))
        return 0;
    current->carried += nbytes;
    return 1;
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
    (void)module;
    unsigned long long nbytes = PyLong_AsUnsignedLongLong(more);
    if (PyErr_Occurred())
        return NULL;
    return PyLong_FromUnsignedLongLong(mp_count_copied(nbytes));
}
