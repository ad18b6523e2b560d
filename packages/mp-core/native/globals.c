/* The name of a function as a pickle has it: what the opcode of a global follows. */
#include "native.h"

int mp_make_global(mp_global *to, PyObject *function)
{
    PyObject *module = PyObject_GetAttrString(function, "__module__");
    PyObject *name = module ? PyObject_GetAttrString(function, "__qualname__") : NULL;
    Py_ssize_t n = 0, m = 0;
    const char *text = name ? PyUnicode_AsUTF8AndSize(module, &n) : NULL;
    const char *word = text ? PyUnicode_AsUTF8AndSize(name, &m) : NULL;

    if (word != NULL && (size_t)(n + m) + 5 <= sizeof(to->bytes)) {
        char *at = mp_put_sized(to->bytes, '\x8c', text, (size_t)n);
        to->module_nbytes = (size_t)(at - to->bytes);
        at = mp_put_sized(at, '\x8c', word, (size_t)m);
        *at++ = '\x93';
        to->nbytes = (size_t)(at - to->bytes);
    } else if (word != NULL) {
        PyErr_Format(PyExc_ValueError, "the name of %R is longer than %zu bytes", function,
                     sizeof(to->bytes) - 5);
    }
    Py_XDECREF(module);
    Py_XDECREF(name);
    return PyErr_Occurred() ? -1 : 0;
}
