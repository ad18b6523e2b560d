/* Acquiring and releasing a lock or a semaphore, with the rules of `_multiprocessing.SemLock`.
 *
 * The count and the thread say how often, and by which thread of this process, it was acquired;
 * they are private to the process, as in the standard library. A child that multiprocessing has
 * started begins with a count of 0: what its parent has acquired is its parent's. The child of a
 * plain os.fork() borrows what the thread that forked has: it may acquire it again, and notify, but
 * its last release of a recursive lock leaves the lock to the parent. (In the standard library it
 * is free then, although the parent has it.)
 *
 * Each call is first made with the GIL and MPSHM_NOWAIT, which makes no system call if the lock is
 * free; only to wait it is repeated without the GIL. */
#define _GNU_SOURCE
#include <errno.h>

#include "locks/lock.h"
#include "timeline/timeline.h"

PyObject *mp_on_owner_died;
mp_lock_origin mp_lock_here;

void mp_lock_forget_parent(mp_lock *self)
{
    if (self->origin.forks == mp_lock_here.forks && self->origin.starts == mp_lock_here.starts)
        return;
    int is_forked = self->origin.starts == mp_lock_here.starts;
    self->is_borrowed = is_forked && self->count > 0 && self->thread == mp_lock_here.thread;
    if (!self->is_borrowed)
        self->count = 0;
    self->origin = mp_lock_here;
}

int mp_lock_is_mine(mp_lock *self)
{
    mp_lock_forget_parent(self);
    return self->count > 0 && self->thread == PyThread_get_thread_ident();
}

/* ---- acquire ---- */

static int try_acquire(mp_lock *self, int flags, uint64_t timeout_ns)
{
    return self->is_semaphore ? mpshm_semaphore_acquire(self->block, flags, timeout_ns)
                              : mpshm_lock_acquire(self->block, flags, timeout_ns);
}

static int try_release(mp_lock *self)
{
    int rc;

    if (!self->is_semaphore)
        return mpshm_lock_release(self->block);
    rc = mpshm_semaphore_release(self->block, MPSHM_NOWAIT);
    if (rc == -EBUSY) {
        Py_BEGIN_ALLOW_THREADS
        rc = mpshm_semaphore_release(self->block, 0);
        Py_END_ALLOW_THREADS
    }
    return rc;
}

/* Wait without the GIL; signal handlers run in between. 0 or more when acquired, -ETIMEDOUT, or
 * -EINTR with an exception set. */
static int wait_for(mp_lock *self, uint64_t timeout_ns)
{
    uint64_t until = timeout_ns == UINT64_MAX ? 0 : mp_timeline_now() + timeout_ns;
    int rc;

    for (;;) {
        Py_BEGIN_ALLOW_THREADS
        rc = try_acquire(self, 0, timeout_ns);
        Py_END_ALLOW_THREADS
        if (rc != -EINTR)
            return rc;
        if (PyErr_CheckSignals() < 0)
            return rc;
        if (timeout_ns != UINT64_MAX) {
            uint64_t now = mp_timeline_now();
            timeout_ns = now < until ? until - now : 0;
        }
    }
}

/* The acquired lock had a dead owner. */
static PyObject *acquired_from_the_dead(mp_lock *self)
{
    PyObject *told = PyObject_CallFunction(mp_on_owner_died, "i", self->is_semaphore);

    if (told == NULL) { /* a filter makes the warning an error: the caller does not have the lock */
        mp_error error = mp_set_aside();
        self->count--;
        try_release(self);
        mp_put_back(&error);
        return NULL;
    }
    Py_DECREF(told);
    Py_RETURN_TRUE;
}

static PyObject *acquire_for(mp_lock *self, int block, uint64_t timeout_ns)
{
    int rc;

    if (self->kind == RECURSIVE && mp_lock_is_mine(self)) {
        self->count++;
        Py_RETURN_TRUE;
    }
    mp_lock_forget_parent(self);
    rc = try_acquire(self, MPSHM_NOWAIT, block);
    if (rc < 0) {
        if (rc == -EAGAIN && !block)
            Py_RETURN_FALSE;
        uint64_t began = mp_timeline_begin();
        rc = wait_for(self, block ? timeout_ns : 0);
        mp_timeline_span(began, 0, MP_LOCK, 0, 0, (uint64_t)self->is_semaphore);
        if (rc == -ETIMEDOUT)
            Py_RETURN_FALSE;
        if (rc < 0)
            return NULL;
    }
    self->count++;
    self->thread = PyThread_get_thread_ident();
    if (rc == MPSHM_OWNER_DIED)
        return acquired_from_the_dead(self);
    Py_RETURN_TRUE;
}

static int read_options(PyObject *const *args, Py_ssize_t nargs, PyObject *names, int *block,
                        uint64_t *ns)
{
    PyObject *given[2] = {NULL, NULL};
    Py_ssize_t named = names == NULL ? 0 : PyTuple_Size(names);

    if (nargs > 2) {
        PyErr_Format(PyExc_TypeError, "acquire() takes at most 2 arguments (%zd given)", nargs);
        return 0;
    }
    for (Py_ssize_t i = 0; i < nargs; i++)
        given[i] = args[i];
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        int at = PyUnicode_CompareWithASCIIString(name, "block") == 0     ? 0
                 : PyUnicode_CompareWithASCIIString(name, "timeout") == 0 ? 1
                                                                          : -1;
        if (at < 0 || given[at] != NULL) {
            PyErr_Format(PyExc_TypeError, "acquire() got an unexpected argument %R", name);
            return 0;
        }
        given[at] = args[nargs + i];
    }
    int64_t timeout = -1;
    *block = given[0] == NULL ? 1 : PyObject_IsTrue(given[0]);
    int ok = *block >= 0 && (given[1] == NULL || mp_timeout(given[1], &timeout) == 0);
    *ns = (uint64_t)timeout; /* -1 is for ever */
    return ok;
}

PyObject *mp_lock_acquire(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    uint64_t ns = UINT64_MAX;
    int block = 1;

    if ((nargs > 0 || names != NULL) && !read_options(args, nargs, names, &block, &ns))
        return NULL;
    return acquire_for((mp_lock *)op, block, ns);
}

PyObject *mp_lock_enter(PyObject *op, PyObject *unused)
{
    return acquire_for((mp_lock *)op, 1, UINT64_MAX);
}

/* Acquire the lock until it is held `count` times, as it was before a wait. A handler that raises
 * does not end this: the caller will release the lock. Only a second one, during the wait for
 * another holder, does. */
PyObject *mp_lock_take_back(PyObject *op, PyObject *count)
{
    mp_lock *self = (mp_lock *)op;
    mp_error error = {NULL, NULL, NULL};
    long times = PyLong_AsLong(count);

    if (times == -1 && PyErr_Occurred())
        return NULL;
    while (!mp_lock_is_mine(self) || self->count < times) {
        PyObject *done = acquire_for(self, 1, UINT64_MAX);
        if (done == NULL && (error.type != NULL || !PyErr_Occurred()))
            break;
        if (done == NULL)
            error = mp_set_aside();
        Py_XDECREF(done);
    }
    if (error.type != NULL && !PyErr_Occurred()) {
        mp_put_back(&error);
        return NULL;
    }
    Py_XDECREF(error.type);
    Py_XDECREF(error.value);
    Py_XDECREF(error.traceback);
    return mp_lock_is_mine(self) && !PyErr_Occurred() ? Py_NewRef(Py_None) : NULL;
}

/* ---- release ---- */

PyObject *mp_lock_release(PyObject *op, PyObject *unused)
{
    mp_lock *self = (mp_lock *)op;

    if (self->kind == RECURSIVE) {
        if (!mp_lock_is_mine(self))
            return PyErr_Format(PyExc_AssertionError,
                                "attempt to release recursive lock not owned by thread");
        if (self->count > 1 || self->is_borrowed) {
            self->count--;
            self->is_borrowed = self->is_borrowed && self->count > 0;
            Py_RETURN_NONE;
        }
    }
    mp_lock_forget_parent(self);
    if (try_release(self) < 0)
        return PyErr_Format(PyExc_ValueError, "semaphore or lock released too many times");
    self->count--;
    Py_RETURN_NONE;
}

PyObject *mp_lock_exit(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    return mp_lock_release(op, NULL);
}
