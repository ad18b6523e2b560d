/* What the encoder and the decoder need of Python's own pickling, imported at the first message. */
#include "messages/messages.h"

PyObject *mp_forking_pickler, *mp_plain_loads, *mp_dumps_name, *mp_loads_name;

PyObject *mp_imported(const char *module_name, const char *name)
{
    PyObject *module = PyImport_ImportModule(module_name);
    PyObject *taken = module ? PyObject_GetAttrString(module, name) : NULL;

    Py_XDECREF(module);
    return taken;
}

int mp_intern(PyObject **name, const char *text)
{
    if (*name == NULL)
        *name = PyUnicode_InternFromString(text);
    return *name == NULL ? -1 : 0;
}

int mp_set_up_pickling(void)
{
    if (mp_forking_pickler != NULL)
        return 0;
    if (mp_intern(&mp_dumps_name, "dumps") < 0 || mp_intern(&mp_loads_name, "loads") < 0)
        return -1;
    if (mp_plain_loads == NULL)
        mp_plain_loads = mp_imported("pickle", "loads");
    if (mp_plain_loads == NULL)
        return -1;
    mp_forking_pickler = mp_imported("multiprocessing.reduction", "ForkingPickler");
    return mp_forking_pickler == NULL ? -1 : 0;
}
