/* Objects whose pickle every pickler makes in the same way, and which own nothing that it would
 * have to release. */
#include "messages/messages.h"
#include "messages/plan.h"

enum { DEPTH = 3 };

int mp_is_atom(PyObject *object)
{
    return object == Py_None || PyLong_CheckExact(object) || PyFloat_CheckExact(object) ||
           PyUnicode_CheckExact(object) || PyBytes_CheckExact(object) || PyBool_Check(object);
}

int mp_is_made_of(int (*leaf)(PyObject *), PyObject *object, int depth, Py_ssize_t most)
{
    if (leaf(object))
        return 1;
    int is_tuple = PyTuple_CheckExact(object);
    if (depth == 0 || (!is_tuple && !PyList_CheckExact(object)))
        return 0;
    Py_ssize_t n = is_tuple ? PyTuple_Size(object) : PyList_Size(object);
    for (Py_ssize_t i = 0; i < n && n <= most; i++) {
        PyObject *item = is_tuple ? PyTuple_GetItem(object, i) : PyList_GetItem(object, i);
        if (!mp_is_made_of(leaf, item, depth - 1, most))
            return 0;
    }
    return n <= most;
}

/* A complex number has a reducer, of copyreg. Large bytes may need shared memory. */
static int is_atom(PyObject *object)
{
    return (mp_is_atom(object) && !mp_is_large(object)) || Py_TYPE(object) == &PyComplex_Type;
}

static int is_small(PyObject *object, int depth)
{
    enum { SHORT = 256, FEW = 8 };

    if (PyUnicode_CheckExact(object))
        return PyUnicode_GetLength(object) <= SHORT;
    if (PyBytes_CheckExact(object))
        return PyBytes_Size(object) <= SHORT;
    if (PyTuple_CheckExact(object) && depth > 0) {
        Py_ssize_t n = PyTuple_Size(object);
        for (Py_ssize_t i = 0; i < n && n <= FEW; i++)
            if (!is_small(PyTuple_GetItem(object, i), depth - 1))
                return 0;
        return n <= FEW;
    }
    return is_atom(object);
}

/* is_small(object) -> whether it is an immutable object of few atoms */
PyObject *mp_py_is_small(PyObject *module, PyObject *object)
{
    return PyBool_FromLong(is_small(object, DEPTH));
}

/* is_of_atoms(object) -> whether it is a number, a text, bytes or None, or a tuple or list of such;
 * not if it has large bytes or texts */
PyObject *mp_py_is_of_atoms(PyObject *module, PyObject *object)
{
    return PyBool_FromLong(mp_is_made_of(is_atom, object, DEPTH, PY_SSIZE_T_MAX));
}
