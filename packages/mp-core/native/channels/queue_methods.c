/* The methods of a channel that is a queue: places, tasks, and locks (libshm's
 * channel/places.c). */
#include <errno.h>

#include "channels/channel.h"

/* Begin a call on a queue, which has a ring: 0, or -1 with an exception. */
static int enter(Channel *self)
{
    int rc = mp_channel_enter(self, 1, "");

    if (rc == MP_NO_RING)
        mp_channel_fail(-EOPNOTSUPP);
    return rc == 0 ? 0 : -1;
}

/* The same for one that may be closed, to count. */
static int enter_to_count(Channel *self)
{
    if (!self->counts || self->end == NULL)
        return enter(self);
    self->users++;
    return 0;
}

/* _set_bound(most messages, or 0 without a bound) */
PyObject *mp_queue_set_bound(PyObject *op, PyObject *bound)
{
    Channel *self = (Channel *)op;
    unsigned long most = PyLong_AsUnsignedLong(bound);

    if (PyErr_Occurred())
        return NULL;
    if (enter(self) < 0)
        return NULL;
    self->counts = 1;
    mpshm_channel_set_bound(self->end,
                            most == 0 || most > UINT32_MAX ? UINT32_MAX : (uint32_t)most);
    mp_channel_leave(self);
    Py_RETURN_NONE;
}

/* The thread that sends the messages of reservations calls the two; the end stays open in between.
 */
PyObject *mp_queue_begin_reservations(PyObject *op, PyObject *unused)
{
    Channel *self = (Channel *)op;

    if (enter(self) < 0)
        return NULL;
    mpshm_channel_begin_reservations(self->end);
    Py_RETURN_NONE;
}

PyObject *mp_queue_end_reservations(PyObject *op, PyObject *unused)
{
    Channel *self = (Channel *)op;

    mpshm_channel_end_reservations(self->end);
    mp_channel_leave(self);
    Py_RETURN_NONE;
}

/* _reserve(message, append) -> whether there is a place for the message, to which append() has given
 * it. In one call, so that no signal handler runs in between. */
PyObject *mp_queue_reserve(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    Channel *self = (Channel *)op;
    struct call call = {.self = self};

    if (nargs != 2)
        return PyErr_Format(PyExc_TypeError, "_reserve takes two arguments");
    if (enter(self) < 0)
        return NULL;
    int rc = mpshm_channel_reserve(self->end, self->fd, WAITER(&call));
    PyObject *done = rc == 0 ? PyObject_CallFunctionObjArgs(args[1], args[0], NULL) : NULL;
    if (rc == 0 && done == NULL)
        mpshm_channel_unreserve(self->end);
    mp_channel_leave(self);
    Py_XDECREF(done);
    if (rc == -ENOSPC || rc == -EAGAIN)
        Py_RETURN_FALSE;
    return done == NULL ? mp_channel_fail(rc) : Py_NewRef(Py_True);
}

PyObject *mp_queue_unreserve(PyObject *op, PyObject *unused)
{
    Channel *self = (Channel *)op;

    mpshm_channel_unreserve(self->end);
    Py_RETURN_NONE;
}

/* _wait_for_place(seconds or None, list or None) -> whether the queue has a place; False after the
 * timeout, and when the list is no longer empty */
PyObject *mp_queue_wait_for_place(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    int64_t timeout;

    if (nargs != 2 || (args[1] != Py_None && !PyList_Check(args[1])))
        return PyErr_Format(PyExc_TypeError, "_wait_for_place takes seconds and a list");
    if (mp_timeout(args[0], &timeout) < 0)
        return NULL;
    int rc = mp_channel_wait_for_place((Channel *)op, timeout, args[1] == Py_None ? NULL : args[1]);
    if (rc == -ENOSPC || (rc == -ECANCELED && !PyErr_Occurred()))
        Py_RETURN_FALSE;
    return rc < 0 ? mp_channel_fail(rc) : Py_NewRef(Py_True);
}

/* _messages() -> how many messages the queue has */
PyObject *mp_queue_messages(PyObject *op, PyObject *unused)
{
    Channel *self = (Channel *)op;
    struct call call = {.self = self, .to_count = 1};

    if (enter_to_count(self) < 0)
        return NULL;
    int64_t count = mpshm_channel_messages(self->end, self->fd, WAITER(&call));
    mp_channel_leave(self);
    return PyLong_FromLongLong(count);
}

/* _has_rest() -> whether a reader has taken a part of the oldest message */
PyObject *mp_channel_has_rest(PyObject *op, PyObject *unused)
{
    Channel *self = (Channel *)op;

    if (enter_to_count(self) < 0)
        return NULL;
    int has = mpshm_channel_has_rest(self->end);
    mp_channel_leave(self);
    return PyBool_FromLong(has);
}

/* _task_done() -> False when all tasks were done before */
PyObject *mp_queue_task_done(PyObject *op, PyObject *unused)
{
    Channel *self = (Channel *)op;

    if (enter_to_count(self) < 0)
        return NULL;
    int rc = mpshm_channel_task_done(self->end);
    mp_channel_leave(self);
    return PyBool_FromLong(rc == 0);
}

/* _tasks() -> how many tasks are not done */
PyObject *mp_queue_tasks(PyObject *op, PyObject *unused)
{
    Channel *self = (Channel *)op;

    if (enter_to_count(self) < 0)
        return NULL;
    int64_t count = mpshm_channel_tasks(self->end, self->fd);
    mp_channel_leave(self);
    return PyLong_FromLongLong(count);
}

/* _join(seconds or None) -> whether all tasks are done in time */
PyObject *mp_queue_join(PyObject *op, PyObject *seconds)
{
    Channel *self = (Channel *)op;
    struct call call = {.self = self, .to_count = 1};
    int64_t timeout;

    if (mp_timeout(seconds, &timeout) < 0 || enter_to_count(self) < 0)
        return NULL;
    int rc = mpshm_channel_join(self->end, self->fd, timeout, WAITER(&call));
    mp_channel_leave(self);
    return rc < 0 && rc != -EAGAIN ? mp_channel_fail(rc) : PyBool_FromLong(rc == 0);
}

/* _acquire(which, seconds or None) -> whether it was acquired in time */
PyObject *mp_queue_acquire(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    Channel *self = (Channel *)op;
    struct call call = {.self = self};
    int64_t timeout;

    if (nargs != 2)
        return PyErr_Format(PyExc_TypeError, "_acquire takes two arguments");
    int which = PyObject_IsTrue(args[0]);
    if (which < 0 || mp_timeout(args[1], &timeout) < 0 || enter(self) < 0)
        return NULL;
    int rc = mpshm_channel_acquire(self->end, which, timeout, WAITER(&call));
    mp_channel_leave(self);
    return rc < 0 && rc != -EAGAIN ? mp_channel_fail(rc) : PyBool_FromLong(rc == 0);
}

/* _release(which) -> False when nobody had it */
PyObject *mp_queue_release(PyObject *op, PyObject *which)
{
    Channel *self = (Channel *)op;

    if (enter(self) < 0)
        return NULL;
    int rc = mpshm_channel_release(self->end, PyObject_IsTrue(which));
    mp_channel_leave(self);
    return PyBool_FromLong(rc == 0);
}
