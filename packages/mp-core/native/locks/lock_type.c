/* The type under mp_core's locks and semaphores: what `_multiprocessing.SemLock` is to those of the
 * standard library, with the same methods, over a lock of libshm. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>

#include "locks/lock.h"
#include "memory/memory.h"

static void count_fork(void)
{
    mp_lock_here.forks++;
    mp_lock_here.thread = PyThread_get_thread_ident();
}

/* ---- what multiprocessing asks ---- */

static long value_of(mp_lock *self)
{
    return self->is_semaphore ? (long)mpshm_semaphore_value(self->block)
                              : !mpshm_lock_is_held(self->block);
}

static PyObject *lock_count(PyObject *op, PyObject *unused)
{
    mp_lock_forget_parent((mp_lock *)op);
    return PyLong_FromLong(((mp_lock *)op)->count);
}

static PyObject *lock_is_mine(PyObject *op, PyObject *unused)
{
    return PyBool_FromLong(mp_lock_is_mine((mp_lock *)op));
}

static PyObject *lock_get_value(PyObject *op, PyObject *unused)
{
    return PyLong_FromLong(value_of((mp_lock *)op));
}

static PyObject *lock_is_zero(PyObject *op, PyObject *unused)
{
    return PyBool_FromLong(value_of((mp_lock *)op) == 0);
}

static PyObject *lock_after_fork(PyObject *type, PyObject *unused)
{
    mp_lock_here.starts++;
    Py_RETURN_NONE;
}

static PyObject *get_kind(PyObject *op, void *closure)
{
    return PyLong_FromLong(((mp_lock *)op)->kind);
}

static PyObject *get_maxvalue(PyObject *op, void *closure)
{
    return PyLong_FromLong(((mp_lock *)op)->maxvalue);
}

static PyObject *get_handle(PyObject *op, void *closure)
{
    return PyLong_FromVoidPtr(((mp_lock *)op)->block->data);
}

static PyObject *get_name(PyObject *op, void *closure)
{
    Py_RETURN_NONE;
}

static PyObject *get_block(PyObject *op, void *closure)
{
    return Py_NewRef(((mp_lock *)op)->owner);
}

/* ---- the type ---- */

/* SemLock(block, kind, maxvalue) */
static PyObject *lock_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *owner;
    int kind;
    long maxvalue;

    if (!PyArg_ParseTuple(args, "Oil:SemLock", &owner, &kind, &maxvalue))
        return NULL;
    mpshm_block *block = mp_block_of(owner);
    int made = block == NULL ? -EINVAL : mpshm_sync_kind(block);
    if (made != MPSHM_LOCK && made != MPSHM_SEMAPHORE)
        return PyErr_Format(PyExc_ValueError, "%R is not the block of a lock", owner);
    mp_lock *self = mp_new(type);
    if (self == NULL)
        return NULL;
    self->owner = Py_NewRef(owner);
    self->block = block;
    self->kind = kind;
    self->is_semaphore = made == MPSHM_SEMAPHORE;
    self->maxvalue = maxvalue;
    self->origin = mp_lock_here;
    return (PyObject *)self;
}

static void lock_dealloc(PyObject *op)
{
    Py_XDECREF(((mp_lock *)op)->owner);
    mp_free(op);
}

static PyMethodDef lock_methods[] = {
    {"acquire", (PyCFunction)(void (*)(void))mp_lock_acquire, METH_FASTCALL | METH_KEYWORDS,
     "acquire($self, block=True, timeout=None)\n--\n\nAcquire the lock, or take a unit of the "
     "semaphore."},
    {"release", mp_lock_release, METH_NOARGS,
     "release($self)\n--\n\nRelease the lock, or give a unit back."},
    {"__enter__", mp_lock_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))mp_lock_exit, METH_FASTCALL, NULL},
    {"_take_back", mp_lock_take_back, METH_O, "Acquire it until it is held so many times."},
    {"_count", lock_count, METH_NOARGS, "How often this process has it."},
    {"_is_mine", lock_is_mine, METH_NOARGS, "Whether this thread has it."},
    {"_get_value", lock_get_value, METH_NOARGS, "How many units are left."},
    {"_is_zero", lock_is_zero, METH_NOARGS, "Whether none is left."},
    {"_after_fork", lock_after_fork, METH_NOARGS | METH_CLASS,
     "Forget what the parent has acquired, of all locks."},
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

int mp_add_lock_type(PyObject *module)
{
    mp_lock_type = mp_add_type(module, "mp_core._block.SemLock", sizeof(mp_lock), 0, lock_slots);
    if (mp_lock_type == NULL)
        return -1;
    pthread_atfork(NULL, NULL, count_fork);
    mpshm_sync_return_from_sleeps(1); /* Python's signal handlers run in between */
    return 0;
}

/* ---- functions of the module ---- */

/* setup_locks(mp_on_owner_died) */
PyObject *mp_py_setup_locks(PyObject *module, PyObject *function)
{
    PyObject *before = mp_on_owner_died;

    mp_on_owner_died = Py_NewRef(function);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* create_sync(strategy, kind, value, max) -> Block, or -errno as an int */
PyObject *mp_py_create_sync(PyObject *module, PyObject *args)
{
    int strategy, kind, rc;
    unsigned value, max;
    mpshm_block block;

    if (!PyArg_ParseTuple(args, "iiII:create_sync", &strategy, &kind, &value, &max))
        return NULL;
    rc = mpshm_sync_create(strategy, kind, value, max, MPSHM_NOWAIT, &block);
    if (rc == -EAGAIN) {
        Py_BEGIN_ALLOW_THREADS
        rc = mpshm_sync_create(strategy, kind, value, max, 0, &block);
        Py_END_ALLOW_THREADS
    }
    return rc < 0 ? PyLong_FromLong(rc) : mp_wrap(mp_block_type, &block);
}

/* sync_handle(block) -> the handle of a lock's block. It is sent to a process that shares no
 * arrays: a lock has no bytes that could go in its place. */
PyObject *mp_py_sync_handle(PyObject *module, PyObject *block)
{
    if (mp_block_of(block) == NULL)
        return PyErr_Format(PyExc_ValueError, "%R is not the block of a lock", block);
    return mp_make_tracked_handle(mp_block_of(block), MPSHM_LASTING);
}
