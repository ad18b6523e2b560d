/* The functions and tables of the Python modules that the C code uses: each module sets its own. */
#include "native.h"

mp_hooks mp_hook;

#define HOOK(name) {#name, &mp_hook.name}

static const struct {
    const char *name;
    PyObject **hook;
} hooks[] = {
    HOOK(latest),        HOOK(mappings),     HOOK(lingering),     HOOK(events),
    HOOK(made),          HOOK(tasks),        HOOK(array_type),    HOOK(close_type),
    HOOK(receive_table), HOOK(rebuild),      HOOK(describe),      HOOK(new_export),
    HOOK(make_event),    HOOK(open_event),   HOOK(open_memory),   HOOK(skip_memory),
    HOOK(owner_is_gone), HOOK(own_sent),     HOOK(own_is_gone),   HOOK(receive_reference),
    HOOK(context),       HOOK(start_driver), HOOK(driver_failed), HOOK(in_feeder),
    HOOK(plain_dtype),   HOOK(dtype_of),     HOOK(taken_apart),   HOOK(rebuild_kind),
    HOOK(wake),          HOOK(take_back),
};

void mp_leave_to(PyObject *queue, PyObject *object)
{
    PyObject *type, *value, *traceback;

    PyErr_Fetch(&type, &value, &traceback);
    PyObject *done = object == NULL ? PyObject_CallNoArgs(queue)
                                    : PyObject_CallMethod(queue, "append", "O", object);
    if (done == NULL)
        PyErr_WriteUnraisable(queue);
    Py_XDECREF(done);
    PyErr_Restore(type, value, traceback);
}

/* set_hooks(**hooks), which are kept for the process's lifetime */
PyObject *mp_py_set_hooks(PyObject *module, PyObject *args, PyObject *names)
{
    Py_ssize_t left = names == NULL ? 0 : PyDict_Size(names);
    (void)module, (void)args;

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
