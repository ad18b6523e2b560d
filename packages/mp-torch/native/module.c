/* The module mp_torch._native: tensors and their storages, written to messages and read from them.
 *
 * It links neither torch nor libshm. torch offers C functions by DLPack (dlpack.c) and all others
 * as Python's; those of mp-core are in the table of mp_core.h. */
#include "native.h"

static int module_exec(PyObject *module)
{
    (void)module;
    return mp_load_core();
}

PyDoc_STRVAR(setup_storages_doc,
             "setup_storages(exchange, tensor_type, storage_type, is_shared, adopt, /)\n--\n\n"
             "Set torch's functions by which storages are moved and found.");
PyDoc_STRVAR(move_doc, "move_storage(storage, tensor, /)\n--\n\n"
                       "Move a storage, that of `tensor` unless it is None, from private memory "
                       "into a block. Returns 0; 1 if it is empty, or torch shares it; or -errno.");
PyDoc_STRVAR(remember_doc, "remember_storage(storage, address, /)\n--\n\n"
                           "Let later messages find the storage at its address.");
PyDoc_STRVAR(find_doc, "find_storage(address, nbytes, /)\n--\n\n"
                       "Return the live storage of these bytes, or None.");
PyDoc_STRVAR(setup_tensors_doc,
             "setup_tensors(exchange, tensor_type, reducer, dtypes, rebuild, /)\n--\n\n"
             "Write and read tensors and Parameters in small messages, as long as they have "
             "this reducer.");
PyDoc_STRVAR(receive_doc, "receive_tensor(handle, layout, /)\n--\n\n"
                          "Make the tensor of a handle. Raises `ValueError` if the layout does not "
                          "have the bytes of its block.");

static PyMethodDef functions[] = {
    {"setup_storages", mp_py_setup_storages, METH_VARARGS, setup_storages_doc},
    {"move_storage", mp_py_move_storage, METH_VARARGS, move_doc},
    {"remember_storage", mp_py_remember_storage, METH_VARARGS, remember_doc},
    {"find_storage", mp_py_find_storage, METH_VARARGS, find_doc},
    {"setup_tensors", mp_py_setup_tensors, METH_VARARGS, setup_tensors_doc},
    {"receive_tensor", mp_py_receive_tensor, METH_VARARGS, receive_doc},
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
