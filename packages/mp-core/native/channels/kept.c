/* Messages that a thread has taken for the next receiver in this process: channel.c takes them, and
 * mp_core/channels/coroutines.py says why. */
#include <unistd.h>

#include "channels/channel.h"
#include "memory/memory.h"

void mp_discard_messages(PyObject *messages)
{
    for (Py_ssize_t i = 0; i < PyList_Size(messages); i++) {
        PyObject *done = mp_py_discard_unread(NULL, PyList_GetItem(messages, i));
        Py_XDECREF(done);
    }
    Py_DECREF(messages);
}

int mp_channel_has_kept(Channel *self)
{
    return self->kept != NULL && PyList_Size(self->kept) > 0 && self->kept_by == getpid();
}

PyObject *mp_channel_kept(Channel *self)
{
    if (!mp_channel_has_kept(self))
        return NULL;
    PyObject *oldest = Py_NewRef(PyList_GetItem(self->kept, 0));
    if (PySequence_DelItem(self->kept, 0) == 0)
        return oldest;
    PyErr_Clear();
    Py_DECREF(oldest);
    return NULL;
}

void mp_channel_drop_kept(Channel *self)
{
    PyObject *kept = self->kept;

    self->kept = NULL;
    if (kept == NULL)
        return;
    mp_error error = mp_set_aside();
    if (self->kept_by == getpid())
        mp_discard_messages(kept);
    else
        Py_DECREF(kept);
    mp_put_back(&error);
}
