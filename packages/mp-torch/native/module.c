/* The module mp_torch._native: tensors and their storages, written to messages and read from them.
 *
 * It links neither torch nor libshm. torch offers C functions by DLPack (dlpack.c) and all others
 * as Python's; those of mp-core are in the table of mp_core.h. */
#include "native.h"

static int module_exec(PyObject *module)
{
    return mp_load_core();
}

static PyMethodDef functions[] = {
    {"setup_storages", mp_py_setup_storages, METH_VARARGS, NULL},
    {"move_storage", mp_py_move_storage, METH_VARARGS, NULL},
    {"remember_storage", mp_py_remember_storage, METH_VARARGS, NULL},
    {"find_storage", mp_py_find_storage, METH_VARARGS, NULL},
    {"setup_tensors", mp_py_setup_tensors, METH_VARARGS, NULL},
    {"receive_tensor", mp_py_receive_tensor, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef native_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "The compiled half of mp_torch: storages in blocks, tensors in messages.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&native_module);
}
