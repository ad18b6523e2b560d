/* TryLock: a lock that a signal handler that raises cannot leave locked.
 *
 *     try:
 *         held = lock.acquire()   False if another thread, or this one already, has it
 *         ...                     or lock.wait(), which waits for another thread
 *     finally:
 *         lock.release()          gives back what this block has acquired, if anything
 *
 *     lock.is_mine()              whether this thread has it: a signal handler that has interrupted
 *                                 the block must not wait for a thread that waits for the lock
 *
 * Only wait raises, what a handler raises while it waits, and then it has acquired nothing. No
 * Python code runs between `try` and the call. `with` would not do: on CPython 3.14 a handler may
 * raise after __enter__ and before the block, and __exit__ is left out (CPython issue 148874). */
#include "locks/lock.h"

typedef struct {
    PyObject ob_base;
    PyThread_type_lock lock;
    unsigned long owner; /* a thread, 0 for none */
    unsigned nested;     /* blocks of the owner inside the one that acquired it */
} try_lock;

static PyObject *try_lock_acquire(PyObject *op, PyObject *unused)
{
    try_lock *self = (try_lock *)op;
    unsigned long me = PyThread_get_thread_ident();

    if (self->owner == me)
        self->nested++;
    else if (PyThread_acquire_lock(self->lock, NOWAIT_LOCK)) {
        self->owner = me;
        Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

static PyObject *try_lock_release(PyObject *op, PyObject *unused)
{
    try_lock *self = (try_lock *)op;

    if (self->owner != PyThread_get_thread_ident())
        Py_RETURN_NONE;
    if (self->nested > 0) {
        self->nested--;
    } else {
        self->owner = 0;
        PyThread_release_lock(self->lock);
    }
    Py_RETURN_NONE;
}

static PyObject *try_lock_wait(PyObject *op, PyObject *unused)
{
    try_lock *self = (try_lock *)op;
    unsigned long me = PyThread_get_thread_ident();

    if (self->owner == me) {
        self->nested++;
        Py_RETURN_NONE;
    }
    PyLockStatus status = PyThread_acquire_lock_timed(self->lock, 0, 0);
    while (status != PY_LOCK_ACQUIRED) {
        PyThreadState *state = PyEval_SaveThread();
        status = PyThread_acquire_lock_timed(self->lock, -1, 1);
        PyEval_RestoreThread(state);
        if (status == PY_LOCK_INTR && PyErr_CheckSignals() < 0)
            return NULL;
    }
    self->owner = me;
    Py_RETURN_NONE;
}

static PyObject *try_lock_is_mine(PyObject *op, PyObject *unused)
{
    return PyBool_FromLong(((try_lock *)op)->owner == PyThread_get_thread_ident());
}

static PyObject *try_lock_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    try_lock *self = mp_new(type);

    if (self != NULL && (self->lock = PyThread_allocate_lock()) == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void try_lock_dealloc(PyObject *op)
{
    if (((try_lock *)op)->lock != NULL)
        PyThread_free_lock(((try_lock *)op)->lock);
    mp_free(op);
}

static PyMethodDef methods[] = {
    {"acquire", try_lock_acquire, METH_NOARGS, "Acquire it unless another block has it."},
    {"wait", try_lock_wait, METH_NOARGS, "Acquire it; wait until no other thread has it."},
    {"release", try_lock_release, METH_NOARGS, "Release it if this block has acquired it."},
    {"is_mine", try_lock_is_mine, METH_NOARGS, "Tell whether this thread has it."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A lock that no exception leaves locked."},
    {Py_tp_new, try_lock_new},
    {Py_tp_dealloc, try_lock_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

int mp_add_try_lock_type(PyObject *module)
{
    PyObject *type = mp_add_type(module, "mp_core._block.TryLock", sizeof(try_lock), 0, slots);

    Py_XDECREF(type);
    return type == NULL ? -1 : 0;
}
