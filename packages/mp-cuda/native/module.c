/* The module mp_cuda._native: device arrays, written to messages and read from them.
 *
 * It links neither libcuda nor libshm. The functions of the driver are looked up in the library
 * that the bindings have loaded (driver.c); those of mp-core are in the table of mp_core.h. */
#include "native.h"

static PyObject *renew_process(PyObject *module, PyObject *unused)
{
    if (mp_renew_process() < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *forget(PyObject *module, PyObject *unused)
{
    mp_forget_driver();
    mp_forget_events();
    mp_forget_holders();
    mp_forget_known();
    mp_forget_exports();
    mp_forget_mappings();
    mp_forget_references();
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    MP_FUNCTION(renew_process, METH_NOARGS, "()", "Say that this is a forked child."),
    MP_FUNCTION(forget, METH_NOARGS, "()",
                "Forget, in a forked child, what its parent had of the driver."),
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    static int (*const parts[])(PyObject *) = {
        mp_add_hooks,   mp_add_driver,   mp_add_array,    mp_add_events,   mp_add_references,
        mp_add_exports, mp_add_mappings, mp_add_outgoing, mp_add_incoming,
    };
    int rc = mp_load_core() < 0 || mp_renew_process() < 0 || mp_make_known() < 0 ? -1 : 0;

    for (size_t i = 0; rc == 0 && i < sizeof(parts) / sizeof(parts[0]); i++)
        rc = (*parts[i])(module);
    return rc;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef native_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "The compiled half of mp_cuda: device arrays in messages.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&native_module);
}
