/* ReducerTable: the dispatch table of a message's pickler, which knows the classes without a
 * reducer.
 *
 * A pickler asks its table for the class of each object. A dict answers that it has none in 20 ns;
 * a subclass with a `__missing__` in Python takes 700, and most classes have no reducer. So the ids
 * of those that were looked for in vain (reducers.py) are looked up here. */
#include "messages/messages.h"

static PyObject *without, *missing;

PyObject *mp_without_reducer(PyObject *kind)
{
    PyObject *id = without ? PyLong_FromVoidPtr(kind) : NULL;
    PyObject *known = id ? Py_XNewRef(PyDict_GetItemWithError(without, id)) : NULL;
    PyObject *alive = known ? PyObject_CallNoArgs(known) : NULL; /* a weak reference */

    Py_XDECREF(id);
    Py_XDECREF(alive);
    if (alive != kind)
        Py_CLEAR(known);
    return known;
}

static PyObject *subscript(PyObject *self, PyObject *kind)
{
    PyObject *reducer = PyDict_GetItemWithError(self, kind);

    if (reducer != NULL)
        return Py_NewRef(reducer);
    if (PyErr_Occurred())
        return NULL;
    PyObject *known = mp_without_reducer(kind);
    Py_XDECREF(known);
    if (missing == NULL || known != NULL) {
        PyErr_SetObject(PyExc_KeyError, kind);
        return NULL;
    }
    return PyErr_Occurred() ? NULL : PyObject_CallFunctionObjArgs(missing, self, kind, NULL);
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "A table {class: reducer} that finds reducers for further classes."},
    {Py_mp_subscript, subscript},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "mp_core._block.ReducerTable",
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

/* setup_reducer_table({id of a class: weak reference}, missing): missing(table, class) is called
 * for all that are in neither table */
PyObject *mp_py_setup_reducer_table(PyObject *module, PyObject *args)
{
    PyObject *ids, *function;

    if (!PyArg_ParseTuple(args, "O!O:setup_reducer_table", &PyDict_Type, &ids, &function))
        return NULL;
    without = Py_NewRef(ids); /* once for the process, which keeps them */
    missing = Py_NewRef(function);
    Py_RETURN_NONE;
}

int mp_add_reducer_table(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, (PyObject *)&PyDict_Type);
    int rc = type == NULL ? -1 : PyModule_AddObjectRef(module, "ReducerTable", type);

    Py_XDECREF(type);
    return rc;
}
