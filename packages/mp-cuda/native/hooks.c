/* The functions and tables of the Python modules that the C code uses: each module sets its own. */
#include "native.h"

mp_hooks mp_hook;

#define HOOK(name) {#name, &mp_hook.name}

static const struct {
    const char *name;
    PyObject **hook;
} hooks[] = {
    HOOK(in_use),       HOOK(events),        HOOK(made),         HOOK(tasks),
    HOOK(array_type),   HOOK(receive_table), HOOK(rebuild),      HOOK(no_fork),
    HOOK(describe),     HOOK(order),         HOOK(open_pool),    HOOK(skip_pool),
    HOOK(close_pool),   HOOK(owner_is_gone), HOOK(not_opened),   HOOK(not_received),
    HOOK(own_is_gone),  HOOK(stays_open),    HOOK(make_event),   HOOK(open_event),
    HOOK(context),      HOOK(uuid_of),       HOOK(ordinal_of),   HOOK(memory_of),
    HOOK(start_driver), HOOK(driver_failed), HOOK(in_feeder),    HOOK(plain_dtype),
    HOOK(dtype_of),     HOOK(taken_apart),   HOOK(rebuild_kind), HOOK(wake),
    HOOK(wake_watch),
};

void mp_leave_to(PyObject *queue, PyObject *object)
{

    mp_error error = mp_set_aside();
    PyObject *done = object == NULL ? PyObject_CallNoArgs(queue)
                                    : PyObject_CallMethod(queue, "append", "(O)", object);
    if (done == NULL)
        PyErr_WriteUnraisable(queue);
    Py_XDECREF(done);
    mp_put_back(&error);
}

static PyObject *set_hooks(PyObject *module, PyObject *args, PyObject *names)
{
    Py_ssize_t left = names == NULL ? 0 : PyDict_Size(names);

    for (size_t i = 0; left > 0 && i < sizeof(hooks) / sizeof(hooks[0]); i++) {
        PyObject *given = PyDict_GetItemString(names, hooks[i].name);
        if (given == NULL)
            continue;
        PyObject *before = *hooks[i].hook;
        *hooks[i].hook = Py_NewRef(given);
        Py_XDECREF(before);
        left--;
    }
    if (left > 0)
        return PyErr_Format(PyExc_TypeError, "set_hooks() does not know one of %R", names);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    MP_FUNCTION(set_hooks, METH_VARARGS | METH_KEYWORDS, "(**hooks)",
                "Set what the C code calls or reads of the Python modules."),
    {NULL, NULL, 0, NULL},
};

int mp_add_hooks(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
