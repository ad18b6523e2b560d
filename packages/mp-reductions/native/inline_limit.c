/* The inline limit: how many bytes of private arrays a message may carry itself. inline.py sets it
 * and has the measurements. */
#include "native.h"

static size_t limit;

size_t mp_inline_limit(void)
{
    return limit;
}

/* set_inline_limit(nbytes) */
PyObject *mp_py_set_inline_limit(PyObject *module, PyObject *number)
{
    size_t nbytes = PyLong_AsSize_t(number);
    if (PyErr_Occurred())
        return NULL;
    limit = nbytes;
    Py_RETURN_NONE;
}

/* get_inline_limit() -> bytes */
PyObject *mp_py_get_inline_limit(PyObject *module, PyObject *unused)
{
    return PyLong_FromSize_t(limit);
}

/* has_room(nbytes): if an array of that size may travel in the message that this thread is
 * pickling, count it and return True. */
PyObject *mp_py_has_room(PyObject *module, PyObject *number)
{
    size_t nbytes = PyLong_AsSize_t(number);
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(mp_core.message_has_room(nbytes, limit));
}
