/* The type under mp_core's locks and semaphores: what `_multiprocessing.SemLock` is to those of the
 * standard library, with the same methods, over a lock of libshm.
 *
 * The count and the thread say how often, and by which thread of this process, it was acquired;
 * they are private to the process, as in the standard library. A child of a fork begins with a
 * count of 0: what its parent has acquired is its parent's.
 *
 * Each call is first made with the GIL and MPSHM_NOWAIT, which makes no system call if the lock is
 * free; only to wait it is repeated without the GIL. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "native.h"

enum { RECURSIVE = 0, PLAIN = 1 }; /* the numbers of _multiprocessing */

typedef struct {
    PyObject_HEAD PyObject *owner; /* the Block, which keeps `block` */
    const mpshm_block *block;
    int kind, is_semaphore;
    long maxvalue;
    long count;
    unsigned long thread;
    unsigned forks;
} Lock;

static PyObject *on_owner_died; /* called with 1 for a semaphore: it warns */
static unsigned forks;          /* how many lie between this process and the first */

static void count_fork(void)
{
    forks++;
}

static void forget_parent(Lock *self)
{
    if (self->forks != forks) {
        self->forks = forks;
        self->count = 0;
    }
}

static int is_mine(Lock *self)
{
    forget_parent(self);
    return self->count > 0 && self->thread == PyThread_get_thread_ident();
}

/* ---- acquire ---- */

static int try_acquire(Lock *self, int flags, uint64_t timeout_ns)
{
    return self->is_semaphore ? mpshm_semaphore_acquire(self->block, flags, timeout_ns)
                              : mpshm_lock_acquire(self->block, flags, timeout_ns);
}

static int try_release(Lock *self)
{
    int rc;

    if (!self->is_semaphore)
        return mpshm_lock_release(self->block);
    rc = mpshm_semaphore_release(self->block, MPSHM_NOWAIT);
    if (rc == -EBUSY) {
        Py_BEGIN_ALLOW_THREADS rc = mpshm_semaphore_release(self->block, 0);
        Py_END_ALLOW_THREADS
    }
    return rc;
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Wait without the GIL; signal handlers run in between. 0 or more when acquired, -ETIMEDOUT, or
 * -EINTR with an exception set. */
static int wait_for(Lock *self, uint64_t timeout_ns)
{
    uint64_t until = timeout_ns == UINT64_MAX ? 0 : now_ns() + timeout_ns;
    int rc;

    for (;;) {
        Py_BEGIN_ALLOW_THREADS rc = try_acquire(self, 0, timeout_ns);
        Py_END_ALLOW_THREADS if (rc != -EINTR) return rc;
        if (PyErr_CheckSignals() < 0)
            return rc;
        if (timeout_ns != UINT64_MAX) {
            uint64_t now = now_ns();
            timeout_ns = now < until ? until - now : 0;
        }
    }
}

/* The acquired lock had a dead owner. */
static PyObject *acquired_from_the_dead(Lock *self)
{
    PyObject *told = PyObject_CallFunction(on_owner_died, "i", self->is_semaphore);

    if (told == NULL) { /* a filter makes the warning an error: the caller does not have the lock */
        PyObject *type, *error, *traceback;
        PyErr_Fetch(&type, &error, &traceback);
        self->count--;
        try_release(self);
        PyErr_Restore(type, error, traceback);
        return NULL;
    }
    Py_DECREF(told);
    Py_RETURN_TRUE;
}

static PyObject *acquire_for(Lock *self, int block, uint64_t timeout_ns)
{
    int rc;

    if (self->kind == RECURSIVE && is_mine(self)) {
        self->count++;
        Py_RETURN_TRUE;
    }
    forget_parent(self);
    rc = try_acquire(self, MPSHM_NOWAIT, block);
    if (rc < 0) {
        if (rc == -EAGAIN && !block)
            Py_RETURN_FALSE;
        rc = wait_for(self, block ? timeout_ns : 0);
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

/* Seconds or None. 0 when it is neither, with an exception set. */
static int read_timeout(PyObject *given, uint64_t *ns)
{
    double seconds;

    *ns = UINT64_MAX;
    if (given == Py_None)
        return 1;
    seconds = PyFloat_AsDouble(given);
    if (seconds == -1.0 && PyErr_Occurred())
        return 0;
    if (seconds < 0)
        seconds = 0;
    if (seconds < 1e9)
        *ns = (uint64_t)(seconds * 1e9);
    return 1;
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
    *ns = UINT64_MAX;
    *block = given[0] == NULL ? 1 : PyObject_IsTrue(given[0]);
    return *block >= 0 && (given[1] == NULL || read_timeout(given[1], ns));
}

static PyObject *lock_acquire(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *names)
{
    uint64_t ns = UINT64_MAX;
    int block = 1;

    if ((nargs > 0 || names != NULL) && !read_options(args, nargs, names, &block, &ns))
        return NULL;
    return acquire_for((Lock *)op, block, ns);
}

static PyObject *lock_enter(PyObject *op, PyObject *unused)
{
    (void)unused;
    return acquire_for((Lock *)op, 1, UINT64_MAX);
}

/* ---- release ---- */

static PyObject *lock_release(PyObject *op, PyObject *unused)
{
    Lock *self = (Lock *)op;
    (void)unused;

    if (self->kind == RECURSIVE) {
        if (!is_mine(self)) {
            PyErr_SetString(PyExc_AssertionError,
                            "attempt to release recursive lock not owned by thread");
            return NULL;
        }
        if (self->count > 1) {
            self->count--;
            Py_RETURN_NONE;
        }
    }
    forget_parent(self);
    if (try_release(self) < 0) {
        PyErr_SetString(PyExc_ValueError, "semaphore or lock released too many times");
        return NULL;
    }
    self->count--;
    Py_RETURN_NONE;
}

static PyObject *lock_exit(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    (void)args, (void)nargs;
    return lock_release(op, NULL);
}

/* ---- what multiprocessing asks ---- */

static long value_of(Lock *self)
{
    return self->is_semaphore ? (long)mpshm_semaphore_value(self->block)
                              : !mpshm_lock_is_held(self->block);
}

static PyObject *lock_count(PyObject *op, PyObject *unused)
{
    (void)unused;
    forget_parent((Lock *)op);
    return PyLong_FromLong(((Lock *)op)->count);
}

static PyObject *lock_is_mine(PyObject *op, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(is_mine((Lock *)op));
}

static PyObject *lock_get_value(PyObject *op, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLong(value_of((Lock *)op));
}

static PyObject *lock_is_zero(PyObject *op, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(value_of((Lock *)op) == 0);
}

static PyObject *lock_after_fork(PyObject *op, PyObject *unused)
{
    (void)unused;
    ((Lock *)op)->count = 0;
    Py_RETURN_NONE;
}

static PyObject *lock_count_events(PyObject *op, PyObject *unused)
{
    (void)unused;
    if (((Lock *)op)->is_semaphore)
        mpshm_semaphore_count_events(((Lock *)op)->block);
    Py_RETURN_NONE;
}

static PyObject *get_kind(PyObject *op, void *closure)
{
    (void)closure;
    return PyLong_FromLong(((Lock *)op)->kind);
}

static PyObject *get_maxvalue(PyObject *op, void *closure)
{
    (void)closure;
    return PyLong_FromLong(((Lock *)op)->maxvalue);
}

static PyObject *get_handle(PyObject *op, void *closure)
{
    (void)closure;
    return PyLong_FromVoidPtr(((Lock *)op)->block->data);
}

static PyObject *get_name(PyObject *op, void *closure)
{
    (void)op, (void)closure;
    Py_RETURN_NONE;
}

static PyObject *get_block(PyObject *op, void *closure)
{
    (void)closure;
    return Py_NewRef(((Lock *)op)->owner);
}

/* ---- the type ---- */

/* SemLock(block, kind, maxvalue) */
static PyObject *lock_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *owner;
    int kind;
    long maxvalue;
    (void)names;

    if (!PyArg_ParseTuple(args, "Oil:SemLock", &owner, &kind, &maxvalue))
        return NULL;
    int made = PyObject_TypeCheck(owner, (PyTypeObject *)mp_block_type) &&
                       ((mp_buffer *)owner)->block.segment != NULL
                   ? mpshm_sync_kind(&((mp_buffer *)owner)->block)
                   : -EINVAL;
    if (made != MPSHM_LOCK && made != MPSHM_SEMAPHORE)
        return PyErr_Format(PyExc_ValueError, "%R is not the block of a lock", owner);
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Lock *self = (Lock *)alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->owner = Py_NewRef(owner);
    self->block = &((mp_buffer *)owner)->block;
    self->kind = kind;
    self->is_semaphore = made == MPSHM_SEMAPHORE;
    self->maxvalue = maxvalue;
    self->forks = forks;
    return (PyObject *)self;
}

static void lock_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    Py_XDECREF(((Lock *)op)->owner);
    release(op);
    Py_DECREF(type);
}

static PyMethodDef lock_methods[] = {
    {"acquire", (PyCFunction)(void (*)(void))lock_acquire, METH_FASTCALL | METH_KEYWORDS,
     "Acquire the lock, or take a unit of the semaphore."},
    {"release", lock_release, METH_NOARGS, "Release the lock, or give a unit back."},
    {"__enter__", lock_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))lock_exit, METH_FASTCALL, NULL},
    {"_count", lock_count, METH_NOARGS, "How often this process has it."},
    {"_is_mine", lock_is_mine, METH_NOARGS, "Whether this thread has it."},
    {"_get_value", lock_get_value, METH_NOARGS, "How many units are left."},
    {"_is_zero", lock_is_zero, METH_NOARGS, "Whether none is left."},
    {"_after_fork", lock_after_fork, METH_NOARGS, "Forget what the parent has acquired."},
    {"_count_events", lock_count_events, METH_NOARGS, "Declare that units belong to no process."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef lock_getset[] = {
    {"kind", get_kind, NULL, "0 for a recursive lock, otherwise 1.", NULL},
    {"maxvalue", get_maxvalue, NULL, "The most units it can have.", NULL},
    {"handle", get_handle, NULL, "Its address in this process.", NULL},
    {"name", get_name, NULL, "None: it has no name.", NULL},
    {"block", get_block, NULL, "The block that it lives in.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot lock_slots[] = {
    {Py_tp_doc, "A lock or a semaphore in shared memory."},
    {Py_tp_new, lock_new},
    {Py_tp_dealloc, lock_dealloc},
    {Py_tp_methods, lock_methods},
    {Py_tp_getset, lock_getset},
    {0, NULL},
};

static PyType_Spec lock_spec = {
    .name = "mp_core._block.SemLock",
    .basicsize = sizeof(Lock),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = lock_slots,
};

int mp_add_lock_type(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &lock_spec, NULL);
    int rc = type == NULL ? -1 : PyModule_AddObjectRef(module, "SemLock", type);

    Py_XDECREF(type);
    if (rc == 0)
        pthread_atfork(NULL, NULL, count_fork);
    return rc;
}

/* ---- functions of the module ---- */

/* setup_locks(on_owner_died) */
PyObject *mp_py_setup_locks(PyObject *module, PyObject *function)
{
    PyObject *before = on_owner_died;
    (void)module;

    on_owner_died = Py_NewRef(function);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* create_sync(strategy, kind, value, max) -> Block, or -errno as an int */
PyObject *mp_py_create_sync(PyObject *module, PyObject *args)
{
    int strategy, kind, rc;
    unsigned value, max;
    mpshm_block block;
    (void)module;

    if (!PyArg_ParseTuple(args, "iiII:create_sync", &strategy, &kind, &value, &max))
        return NULL;
    rc = mpshm_sync_create(strategy, kind, value, max, MPSHM_NOWAIT, &block);
    if (rc == -EAGAIN) {
        Py_BEGIN_ALLOW_THREADS rc = mpshm_sync_create(strategy, kind, value, max, 0, &block);
        Py_END_ALLOW_THREADS
    }
    return rc < 0 ? PyLong_FromLong(rc) : mp_wrap(mp_block_type, &block);
}

/* sync_handle(block) -> the handle of a lock's block. It is sent to a process that shares no
 * arrays, too: a lock has no bytes that could go in its place. */
PyObject *mp_py_sync_handle(PyObject *module, PyObject *block)
{
    (void)module;
    if (!PyObject_TypeCheck(block, (PyTypeObject *)mp_block_type) ||
        ((mp_buffer *)block)->block.segment == NULL)
        return PyErr_Format(PyExc_ValueError, "%R is not the block of a lock", block);
    return mp_make_tracked_handle(&((mp_buffer *)block)->block, 0);
}
