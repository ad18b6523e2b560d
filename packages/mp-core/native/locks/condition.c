/* The notification of a condition whose lock is one of ours. */
#include <errno.h>

#include "locks/lock.h"
#include "memory/memory.h"

PyObject *mp_lock_type;

/* condition_notify(block, lock, n) -> whether the calling thread has the lock; None for a lock of
 * another type */
PyObject *mp_py_condition_notify(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3)
        return PyErr_Format(PyExc_TypeError, "condition_notify() takes 3 arguments");
    if (!PyObject_TypeCheck(args[1], (PyTypeObject *)mp_lock_type))
        Py_RETURN_NONE;
    const mpshm_block *block = mp_block_of(args[0]);
    if (block == NULL)
        return PyErr_Format(PyExc_ValueError, "%R is not the block of a condition", args[0]);
    if (!mp_lock_is_mine((mp_lock *)args[1]))
        Py_RETURN_FALSE;
    long n = PyLong_AsLong(args[2]);
    if (n == -1 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return NULL;
        PyErr_Clear();
        n = UINT32_MAX;
    }
    if (n > 0) {
        uint32_t most = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
        if (mpshm_condition_notify(block, most, MPSHM_NOWAIT) == -EBUSY) {
            Py_BEGIN_ALLOW_THREADS
            mpshm_condition_notify(block, most, 0);
            Py_END_ALLOW_THREADS
        }
    }
    Py_RETURN_TRUE;
}
