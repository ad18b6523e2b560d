/* The message that a thread is pickling: what it has claimed so far, and how much it carries
 * itself.
 *
 *   begin()            pickle the objects one by one                          end()
 *     |   array 1: a claim --> handle 1    array 2: in the message, 8 KiB       |
 *     |   array 3: cannot be pickled -------------------------------------------+--> [handle 1]
 *
 * Memory waits for whoever makes a claim. When pickling fails nobody ever will, so who began the
 * message makes its claims himself and drops them.
 *
 * Messages nest, since a reducer may pickle something of its own, and each thread has its own. What
 * ends well is its maker's business alone, unless the one around it was begun to adopt it: who
 * sends a message must know its claims after it was pickled. A claim made outside of any message
 * (an object pickled by a bare ForkingPickler) is nobody's. */
#include <stdatomic.h>

#include "native.h"

struct message {
    struct message *outer;
    PyObject *handles; /* a list, or NULL before the first */
    size_t carried;
    int adopts;
};

static _Thread_local struct message *current;

/* message_begin(adopts) */
PyObject *mp_message_begin(PyObject *module, PyObject *adopts)
{
    struct message *message = PyMem_Calloc(1, sizeof(*message));
    (void)module;

    if (message == NULL)
        return PyErr_NoMemory();
    message->adopts = adopts == Py_True;
    message->outer = current;
    current = message;
    Py_RETURN_NONE;
}

/* message_end(ended well) -> the handles that its claims are in, or None */
PyObject *mp_message_end(PyObject *module, PyObject *well)
{
    struct message *message = current;
    (void)module;

    if (message == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this thread is pickling no message");
        return NULL;
    }
    PyObject *handles = message->handles;
    current = message->outer;
    PyMem_Free(message);
    if (well == Py_True && current != NULL && current->adopts) {
        Py_XDECREF(current->handles);
        current->handles = handles;
    } else if (handles != NULL) {
        return handles;
    }
    Py_RETURN_NONE;
}

PyObject *mp_claim_on(const mpshm_block *block)
{
    unsigned char bytes[MPSHM_HANDLE_SIZE];
    PyObject *handle;

    /* The object comes first: without memory for it there must be no claim. */
    if (current != NULL && current->handles == NULL && (current->handles = PyList_New(0)) == NULL)
        return NULL;
    mpshm_block_send(block, 0, bytes);
    handle = PyBytes_FromStringAndSize((const char *)bytes, sizeof(bytes));
    if (handle == NULL || (current != NULL && PyList_Append(current->handles, handle) < 0)) {
        mpshm_block unused;
        Py_CLEAR(handle);
        if (mpshm_block_claim(bytes, sizeof(bytes), 0, &unused) == 0)
            mpshm_block_release(&unused);
    }
    return handle;
}

int mp_message_has_room(size_t nbytes, size_t limit)
{
    /* What is no larger than a few handles gains nothing by a block. */
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

unsigned long long mp_copied(unsigned long long nbytes)
{
    return atomic_fetch_add_explicit(&copied, nbytes, memory_order_relaxed) + nbytes;
}

/* copied_bytes(more) -> the sum with `more` added */
PyObject *mp_copied_bytes(PyObject *module, PyObject *more)
{
    (void)module;
    unsigned long long nbytes = PyLong_AsUnsignedLongLong(more);
    if (PyErr_Occurred())
        return NULL;
    return PyLong_FromUnsignedLongLong(mp_copied(nbytes));
}
