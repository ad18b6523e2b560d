/* Pickles without a ForkingPickler, which costs a few microseconds, and more than all else of a
 * small message: for numbers, texts and small containers of them, and for objects of one type that
 * another package pickles in C (mp_reductions: small arrays).
 *
 * The pickles are the same to a reader. A program that registers a reducer of its own for the type
 * gets its reducer. Here such messages are read without an unpickler; all else is left to
 * ForkingPickler.loads. */
#include "native.h"

static PyObject *plain_dumps, *protocol, *forking_pickler, *reducers_name, *loads_name;

/* By mp_set_pickler. */
static PyTypeObject *pickled_type;
static PyObject *pickled_reducer;
static PyObject *(*pickle_it)(PyObject *object);
static PyObject *(*unpickle_it)(const char *data, Py_ssize_t nbytes);

void mp_set_pickler(PyTypeObject *type, PyObject *reducer, PyObject *(*pickle)(PyObject *object),
                    PyObject *(*unpickle)(const char *data, Py_ssize_t nbytes))
{
    PyObject *before = pickled_reducer;

    pickled_type = type;
    pickled_reducer = Py_NewRef(reducer);
    pickle_it = pickle;
    unpickle_it = unpickle;
    Py_XDECREF(before);
}

/* 1 if the registered reducer of the type is the one that the C function stands for. */
static int has_known_reducer(void)
{
    PyObject *table = PyObject_GetAttr(forking_pickler, reducers_name);
    int known = table != NULL && PyDict_Check(table) &&
                PyDict_GetItemWithError(table, (PyObject *)pickled_type) == pickled_reducer;

    Py_XDECREF(table);
    PyErr_Clear();
    return known;
}

PyObject *mp_plain_pickle(PyObject *object, int may_share)
{
    enum { DEPTH = 3, FEW = 16 };
    PyObject *data = mp_pickle_atom(object);

    if (data != NULL || PyErr_Occurred())
        return data;
    /* Numbers, texts, and small containers of them pickle without reducers. */
    if (mp_is_made_of(mp_is_atom, object, DEPTH, FEW))
        return PyObject_CallFunctionObjArgs(plain_dumps, object, protocol, NULL);
    if (may_share && Py_TYPE(object) == pickled_type && !mp_goes_by_value() && has_known_reducer())
        return pickle_it(object);
    return NULL;
}

/* plain_pickle(object) -> bytes, or None for an object whose pickle needs a ForkingPickler */
PyObject *mp_py_plain_pickle(PyObject *module, PyObject *object)
{
    (void)module;
    PyObject *data = mp_plain_pickle(object, 1);

    if (data == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return data;
}

PyObject *mp_plain_loads(PyObject *data)
{
    if (PyBytes_CheckExact(data)) {
        const char *bytes = PyBytes_AsString(data);
        Py_ssize_t nbytes = PyBytes_Size(data);
        PyObject *object = mp_unpickle_atom(bytes, nbytes);
        if (object == NULL && !PyErr_Occurred() && unpickle_it != NULL)
            object = unpickle_it(bytes, nbytes);
        if (object != NULL || PyErr_Occurred())
            return object;
    }
    /* Looked up in each call, since packages replace it. */
    return PyObject_CallMethodObjArgs(forking_pickler, loads_name, data, NULL);
}

/* plain_loads(bytes) -> the object */
PyObject *mp_py_plain_loads(PyObject *module, PyObject *data)
{
    (void)module;
    return mp_plain_loads(data);
}

int mp_setup_plain_pickle(PyObject *dumps, PyObject *number, PyObject *pickler)
{
    /* Once for the process, which keeps them. */
    plain_dumps = Py_NewRef(dumps);
    protocol = Py_NewRef(number);
    forking_pickler = Py_NewRef(pickler);
    reducers_name = PyUnicode_InternFromString("_extra_reducers");
    loads_name = PyUnicode_InternFromString("loads");
    return reducers_name == NULL || loads_name == NULL ? -1 : 0;
}
