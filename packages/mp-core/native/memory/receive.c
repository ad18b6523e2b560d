/* Receiving: from a handle to a block, and the cleanup after a message that cannot be received.
 *
 * Note [A receive that fails]
 *   A message that cannot be unpickled is lost to its receiver, so the blocks of all its handles
 *   have to be freed. Some handles were received before the error, and their bits in the in-flight
 *   mask may stand for later messages by now; those must not be touched. loads() therefore
 *   remembers the handles received while it runs, and discards the others. pickle writes a handle
 *   in one piece, after the opcode for short bytes and a length; a checksum tells a handle from
 *   other bytes.
 *
 *   Each thread has its own list. Unpickling may nest, and the list is emptied with the outermost
 *   message. A handle that is remembered for too long is only discarded later, when the session
 *   ends. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "memory/memory.h"
#include "timeline/timeline.h"

PyObject *mp_unpickle; /* pickle.loads, or its replacement */
static PyObject *on_refusal, *on_private, *on_failure;

/* ---- the handles that this thread has received while it unpickles ---- */

enum { FEW = 16 };

static _Thread_local struct {
    unsigned depth;
    size_t count, room;
    uint64_t few[FEW], *more;
    int incomplete; /* no memory to remember one, so nothing may be discarded */
} received;

/* The last word of a handle is a hash of the others. */
static uint64_t key_of(const char *handle)
{
    uint64_t key;
    memcpy(&key, handle + MPSHM_HANDLE_SIZE - sizeof(key), sizeof(key));
    return key;
}

static void remember(const char *handle)
{
    if (received.depth == 0)
        return;
    if (received.count < FEW) {
        received.few[received.count++] = key_of(handle);
        return;
    }
    if (received.count - FEW == received.room) {
        size_t room = received.room ? received.room * 2 : 64;
        uint64_t *more = PyMem_Realloc(received.more, room * sizeof(*more));
        if (more == NULL) {
            received.incomplete = 1;
            return;
        }
        received.more = more;
        received.room = room;
    }
    received.more[received.count++ - FEW] = key_of(handle);
}

static int is_remembered(const char *handle)
{
    uint64_t key = key_of(handle);

    for (size_t i = 0; i < received.count; i++)
        if ((i < FEW ? received.few[i] : received.more[i - FEW]) == key)
            return 1;
    return received.incomplete;
}

void mp_receiving_begin(void)
{
    received.depth++;
}

void mp_receiving_end(void)
{
    if (--received.depth > 0)
        return;
    received.count = 0;
    if (received.more != NULL) {
        PyMem_Free(received.more);
        received.more = NULL;
        received.room = 0;
    }
    received.incomplete = 0;
}

/* Discard each handle in the message that was not received. */
static void discard_rest(PyObject *message)
{
    static const char opcode[2] = {'C', MPSHM_HANDLE_SIZE}; /* SHORT_BINBYTES, length */
    Py_buffer view;

    if (PyObject_GetBuffer(message, &view, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        return;
    }
    const char *at = view.buf, *end = at + view.len;
    while (end - at >= (Py_ssize_t)sizeof(opcode) + MPSHM_HANDLE_SIZE &&
           (at = memmem(at, (size_t)(end - at), opcode, sizeof(opcode))) != NULL) {
        const char *handle = at + sizeof(opcode);
        uint64_t nbytes;
        at++;
        if (end - handle < MPSHM_HANDLE_SIZE ||
            mpshm_handle_info((const unsigned char *)handle, MPSHM_HANDLE_SIZE, &nbytes) < 0)
            continue;
        if (!is_remembered(handle))
            mp_discard_handle(handle);
        at = handle + MPSHM_HANDLE_SIZE;
    }
    PyBuffer_Release(&view);
}

PyObject *mp_receiving_failed(PyObject *message)
{
    if (on_failure == NULL)
        return NULL;
    PyObject *error = mp_raised();
    discard_rest(message);
    PyObject *instead = PyObject_CallFunctionObjArgs(on_failure, message, error, NULL);
    if (instead == Py_NotImplemented) {
        Py_CLEAR(instead);
        PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(error)), error,
                      PyException_GetTraceback(error));
        return NULL;
    }
    Py_DECREF(error);
    return instead;
}

/* setup_receiving(unpickle, on_refusal, on_private, on_failure): set the function that unpickles
 * messages, and the functions called with (errno, handle) to raise an error, with (number of bytes,
 * errno) after bytes were taken by value, and with (message, error) after unpickling failed. None
 * leaves one as it is. */
PyObject *mp_py_setup_receiving(PyObject *module, PyObject *args)
{
    PyObject *given[4];
    PyObject **kept[4] = {&mp_unpickle, &on_refusal, &on_private, &on_failure};

    if (!PyArg_ParseTuple(args, "OOOO:setup_receiving", &given[0], &given[1], &given[2], &given[3]))
        return NULL;
    for (int i = 0; i < 4; i++)
        if (given[i] != Py_None) {
            PyObject *before = *kept[i];
            *kept[i] = Py_NewRef(given[i]);
            Py_XDECREF(before);
        }
    Py_RETURN_NONE;
}

/* ---- one handle ---- */

static int injected; /* -errno that receiving a block fails with, for tests */

/* inject(errno): let each receive fail with it from now on; 0 ends that. For tests. */
PyObject *mp_py_inject(PyObject *module, PyObject *number)
{
    injected = -(int)PyLong_AsLong(number);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

int mp_receive(const char *handle, size_t nbytes, mpshm_block *block)
{
    const unsigned char *bytes = (const unsigned char *)handle;
    int rc = injected != 0 && nbytes == MPSHM_HANDLE_SIZE
                 ? injected
                 : mpshm_block_receive(bytes, nbytes, MPSHM_NOWAIT, block);

    if (rc == -EAGAIN && injected == 0) {
        Py_BEGIN_ALLOW_THREADS
        rc = mpshm_block_receive(bytes, nbytes, 0, block);
        Py_END_ALLOW_THREADS
    }
    uint64_t size;
    if (mp_timeline != NULL && rc == 0)
        mp_timeline_block(0, mpshm_handle_info(bytes, nbytes, &size) == 1, block->nbytes);
    /* The bit of a stale handle may stand for another message by now: never discard it. */
    if (rc == 0 || rc == -ESTALE)
        remember(handle);
    return rc;
}

/* The first block of a process may come in a message: then mp_core.memory.block, which sets the
 * class of blocks and the functions for errors, has not been imported yet. */
static int set_up(void)
{
    if (on_refusal != NULL)
        return 0;
    PyObject *module = PyImport_ImportModule("mp_core.memory.block");
    Py_XDECREF(module);
    return module == NULL ? -1 : 0;
}

PyObject *mp_receive_block(PyObject *handle, int *rc)
{
    char *bytes;
    Py_ssize_t len;
    mpshm_block block;

    *rc = 0;
    if (set_up() < 0 || PyBytes_AsStringAndSize(handle, &bytes, &len) < 0)
        return NULL;
    *rc = mp_receive(bytes, (size_t)len, &block);
    return *rc == 0 ? mp_wrap(mp_block_type, &block) : NULL;
}

Py_ssize_t mp_size_of_copy(PyObject *handle, int rc)
{
    char *bytes;
    Py_ssize_t len;
    uint64_t nbytes;

    if (rc == 0 || rc == -EBADMSG || rc == -ESTALE || rc == -ETIME ||
        PyBytes_AsStringAndSize(handle, &bytes, &len) < 0 ||
        mpshm_handle_info((unsigned char *)bytes, (size_t)len, &nbytes) != 1 ||
        nbytes > PY_SSIZE_T_MAX)
        return -1;
    return (Py_ssize_t)nbytes;
}

int mp_read_copy(PyObject *handle, int rc, void *data, uint64_t nbytes)
{
    char *bytes;
    Py_ssize_t len;
    int err;
    uint64_t began = mp_timeline_begin();

    if (set_up() < 0 || PyBytes_AsStringAndSize(handle, &bytes, &len) < 0)
        return -1;
    Py_BEGIN_ALLOW_THREADS
    err = mpshm_block_read((unsigned char *)bytes, (size_t)len, data, nbytes);
    Py_END_ALLOW_THREADS
    if (err < 0)
        return -1;
    remember(bytes);
    mp_timeline_span(began, MP_LEAST_NS, MP_COPY, 0, nbytes, 0);
    PyObject *told = PyObject_CallFunction(on_private, "Ki", (unsigned long long)nbytes, -rc);
    Py_XDECREF(told);
    return told ? 0 : -1;
}

PyObject *mp_refuse(PyObject *handle, int rc)
{
    if (PyErr_Occurred() || set_up() < 0)
        return NULL;
    return PyObject_CallFunction(on_refusal, "iO", -rc, handle);
}

/* rebuild_block(handle) -> Block */
PyObject *mp_py_rebuild_block(PyObject *module, PyObject *handle)
{
    int rc;
    PyObject *block = mp_receive_block(handle, &rc);

    return block ? block : mp_refuse(handle, rc);
}

/* rebuild_copy(handle) -> Block, or a bytearray with the same bytes */
PyObject *mp_py_rebuild_copy(PyObject *module, PyObject *handle)
{
    int rc;
    PyObject *block = mp_receive_block(handle, &rc);

    if (block != NULL)
        return block;
    if (PyErr_Occurred())
        return NULL;
    Py_ssize_t nbytes = mp_size_of_copy(handle, rc);
    PyObject *memory = nbytes < 0 ? NULL : PyByteArray_FromStringAndSize(NULL, nbytes);
    if (memory != NULL &&
        mp_read_copy(handle, rc, PyByteArray_AsString(memory), (uint64_t)nbytes) == 0)
        return memory;
    Py_XDECREF(memory);
    return mp_refuse(handle, rc);
}

/* discard(handle): drop its in-flight reference. A handle that was received, or is damaged, changes
 * nothing. */
PyObject *mp_py_discard(PyObject *module, PyObject *handle)
{
    char *bytes;
    Py_ssize_t len;

    if (PyBytes_AsStringAndSize(handle, &bytes, &len) < 0)
        return NULL;
    if (len == MPSHM_HANDLE_SIZE)
        mp_discard_handle(bytes);
    Py_RETURN_NONE;
}

/* discard_unread(data): discard every handle in the bytes of messages that no process will read. */
PyObject *mp_py_discard_unread(PyObject *module, PyObject *data)
{
    discard_rest(data);
    Py_RETURN_NONE;
}
