/* TryLock: a lock for `with`, which does not wait, and which a signal handler that raises cannot
 * leave locked: no Python code runs between the decision and its note.
 *
 *     with lock as held:    held is False if another thread, or this one already, has it
 *     lock.wait()           waits for it; lock.release() gives it back
 *     lock.is_mine()        whether this thread has it: a signal handler that has interrupted the
 *                           block must not wait for a thread that waits for the lock */
#include "native.h"

typedef struct {
    PyObject ob_base;
    PyThread_type_lock lock;
    unsigned long owner; /* a thread, 0 for none */
    unsigned nested;     /* blocks of the owner inside the one that holds it */
} try_lock;

static PyObject *try_lock_enter(PyObject *op, PyObject *unused)
{
    try_lock *self = (try_lock *)op;
    unsigned long me = PyThread_get_thread_ident();
    (void)unused;

    if (self->owner == me)
        self->nested++;
    else if (PyThread_acquire_lock(self->lock, NOWAIT_LOCK)) {
        self->owner = me;
        Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

static PyObject *try_lock_release(PyObject *op, PyObject *args)
{
    try_lock *self = (try_lock *)op;
    (void)args;

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
    (void)unused;

    if (!PyThread_acquire_lock(self->lock, NOWAIT_LOCK)) {
        Py_BEGIN_ALLOW_THREADS PyThread_acquire_lock(self->lock, WAIT_LOCK);
        Py_END_ALLOW_THREADS
    }
    self->owner = PyThread_get_thread_ident();
    Py_RETURN_NONE;
}

static PyObject *try_lock_is_mine(PyObject *op, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(((try_lock *)op)->owner == PyThread_get_thread_ident());
}

static PyObject *try_lock_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    try_lock *self = (try_lock *)alloc(type, 0);
    (void)args;
    (void)names;

    if (self != NULL && (self->lock = PyThread_allocate_lock()) == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void try_lock_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    if (((try_lock *)op)->lock != NULL)
        PyThread_free_lock(((try_lock *)op)->lock);
    release(op);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"__enter__", try_lock_enter, METH_NOARGS, "Acquire it unless another block has it."},
    {"__exit__", try_lock_release, METH_VARARGS, "Release it if this block has acquired it."},
    {"wait", try_lock_wait, METH_NOARGS, "Acquire it; wait for that."},
    {"release", try_lock_release, METH_NOARGS, "Release it."},
    {"is_mine", try_lock_is_mine, METH_NOARGS, "Tell whether this thread has it."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A lock that does not wait, and that no exception leaves locked."},
    {Py_tp_new, try_lock_new},
    {Py_tp_dealloc, try_lock_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "mp_core._block.TryLock",
    .basicsize = sizeof(try_lock),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

int mp_add_try_lock_type(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    int rc = type == NULL ? -1 : PyModule_AddObjectRef(module, "TryLock", type);

    Py_XDECREF(type);
    return rc;
}
