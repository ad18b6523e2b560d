/* One call over a channel: it is begun and ended, and what libshm asks of it meanwhile.
 *
 * Note [The GIL and a channel]
 *   A message that is there is taken, and one that fits is sent, with the GIL held: that takes less
 *   time than to release it. libshm surrounds each wait with begin_wait and end_wait, which release
 *   it and run signal handlers, or with begin_wait and resume, which run none. Another thread may
 * close the connection meanwhile. Its descriptor is closed at once, as multiprocessing does; the
 * mapping goes with the last thread inside. */
#include <errno.h>

#include "channels/channel.h"
#include "memory/memory.h"

PyObject *mp_channel_fail(int rc)
{
    if (PyErr_Occurred())
        return NULL;
    if (rc == -EBADF)
        return PyErr_Format(PyExc_OSError, "handle is closed");
    if (rc == -ENOMEM)
        return PyErr_NoMemory();
    return mp_raise_errno(PyExc_OSError, -rc);
}

void *mp_channel_call_allocate(void *of, uint64_t nbytes)
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

void mp_channel_call_begin_wait(void *of)
{
    ((struct call *)of)->waited = 1;
    ((struct call *)of)->state = PyEval_SaveThread();
}

static int is_closed(const struct call *call)
{
    return call->self->fd < 0 && !call->to_count;
}

int mp_channel_call_resume(void *of)
{
    struct call *call = of;

    PyEval_RestoreThread(call->state);
    return is_closed(call) ? -EBADF : 0;
}

void mp_channel_call_leave(void *of)
{
    mp_message_unhold(((struct call *)of)->handles);
}

/* Warn, once for a connection: 0, or -1 when the warning is an error. */
static int warn_of_foreign_bytes(Channel *self)
{
    if (self->end == NULL || !mpshm_channel_take_foreign(self->end) || self->warned)
        return 0;
    self->warned = 1;
    return PyErr_WarnEx(
        PyExc_RuntimeWarning,
        "another program writes into the descriptor of this connection as if it were an ordinary "
        "one, as Connection(fd) in a subprocess does: its messages do not arrive. Give the "
        "connection to a Process, or make it with multiprocessing.Pipe() or MP_CHANNEL=0",
        1);
}

int mp_channel_call_end_wait(void *of)
{
    struct call *call = of;
    int rc = mp_channel_call_resume(call);

    if (rc == 0 && warn_of_foreign_bytes(call->self) < 0)
        return -ECANCELED;
    if (rc == 0 && PyErr_CheckSignals() < 0)
        return -ECANCELED;
    if (rc == 0 && call->stop != NULL && PyList_Size(call->stop) > 0)
        return -ECANCELED;
    if (rc == 0 && call->for_next && call->self->kept != NULL && mp_channel_has_kept(call->self))
        return -ECANCELED;
    return is_closed(call) ? -EBADF : rc; /* a handler may have closed the connection */
}

void mp_channel_release(Channel *self)
{
    if (self->users == 0 && self->fd < 0 && self->end != NULL && !self->counts) {
        mpshm_channel_close(self->end);
        self->end = NULL;
    }
}

int mp_channel_enter(Channel *self, int may, const char *direction)
{
    if (self->fd < 0)
        PyErr_SetString(PyExc_OSError, "handle is closed");
    else if (!may)
        PyErr_Format(PyExc_OSError, "connection is %s-only", direction);
    else if (!mp_has_ring(self))
        return MP_NO_RING;
    else
        return self->users++, 0;
    return -1;
}

void mp_channel_leave(Channel *self)
{
    self->users--;
    mp_channel_release(self);
}
