/* Objects beside a pickle: many small objects of one message that pickle does not write one by one.
 *
 * Note [Objects beside a pickle]
 *   A thousand small arrays cost pickle a thousand times a reduction, a tuple, and three entries in
 *   its memo. So from the 17th on a package puts the arrays of a message into a *table* of its own,
 *   and the pickle only has their numbers:
 *
 *     pickle of (load_beside, (stream, [table of arrays, table of others]))
 *                                |
 *                                +-- ... beside(number) ... beside(number) ...
 *
 *   number = position in the table * MP_TABLES + number of the table. A table is rebuilt into a
 * list before the stream is read, so beside() only looks an object up. An object occurs in a table
 * once, since the pickler's memo finds the second occurrence. A list of nothing but such objects
 * needs no stream: it is the table.
 *
 *   The stream belongs to its message: only the pickler of the message writes numbers, and not a
 *   pickler that a reducer makes meanwhile (pickling.py). Reading nests, and each thread has its
 *   own tables. */
#include "native.h"

static _Thread_local PyObject *current; /* the tables of the stream that is being read */

enum { KEPT = 1 << 14 };
static PyObject *arguments[KEPT]; /* (number,), which are the same in each message */
static PyObject *beside_function, *plain_loads;

PyObject *mp_beside(int table, size_t at)
{
    size_t number = at * MP_TABLES + (size_t)table;
    PyObject *args = number < KEPT ? arguments[number] : NULL;

    if (args == NULL) {
        args = Py_BuildValue("(n)", (Py_ssize_t)number);
        if (args != NULL && number < KEPT)
            arguments[number] = Py_NewRef(args);
    } else {
        Py_INCREF(args);
    }
    PyObject *pickle = args ? PyTuple_Pack(2, beside_function, args) : NULL;
    Py_XDECREF(args);
    return pickle;
}

/* beside(number) -> the object */
PyObject *mp_py_beside(PyObject *module, PyObject *number)
{
    size_t n = PyLong_AsSize_t(number);
    (void)module;

    if (n == (size_t)-1 && PyErr_Occurred())
        return NULL;
    PyObject *table = current != NULL ? PyList_GetItem(current, (Py_ssize_t)(n % MP_TABLES)) : NULL;
    if (table != NULL && PyList_Check(table) && n / MP_TABLES < (size_t)PyList_Size(table))
        return Py_NewRef(PyList_GetItem(table, (Py_ssize_t)(n / MP_TABLES)));
    PyErr_Clear();
    return PyErr_Format(PyExc_ValueError, "the message is damaged: it has no object number %zu", n);
}

/* load_beside(stream or None, tables) -> the object of the stream; without one, the first table */
PyObject *mp_py_load_beside(PyObject *module, PyObject *args)
{
    PyObject *stream, *tables;
    (void)module;

    if (!PyArg_ParseTuple(args, "OO!:load_beside", &stream, &PyList_Type, &tables))
        return NULL;
    if (stream == Py_None) {
        PyObject *first = PyList_GetItem(tables, 0);
        return first ? Py_NewRef(first) : NULL;
    }
    PyObject *before = current;
    current = Py_NewRef(tables);
    PyObject *object = PyObject_CallFunctionObjArgs(plain_loads, stream, NULL);
    Py_DECREF(current);
    current = before;
    return object;
}

/* setup_beside(pickle.loads, the function beside) */
PyObject *mp_py_setup_beside(PyObject *module, PyObject *args)
{
    PyObject *loads, *function;
    (void)module;

    if (!PyArg_ParseTuple(args, "OO:setup_beside", &loads, &function))
        return NULL;
    plain_loads = Py_NewRef(loads); /* once for the process, which keeps them */
    beside_function = Py_NewRef(function);
    Py_RETURN_NONE;
}
