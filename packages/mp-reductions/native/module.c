/* The module mp_reductions._native: the compiled half of mp_reductions.
 *
 * Note [Two tables]
 *   The module links neither NumPy nor libshm. Each offers its C functions as a table in a capsule,
 *   with a version that is checked at import:
 *
 *     NumPy    PyArray_API            compiled with its headers for NumPy 1.25, so one build works
 *                                     with 1.26 and every 2.x
 *     mp-core  mp_core.sharing.backend.c_api  exactly the version of mp_core.h
 */
#define MP_LOADS_NUMPY
#include "native.h"

static int module_exec(PyObject *module)
{
    if (PyArray_ImportNumPyAPI() < 0 || mp_load_core() < 0)
        return -1;
    return mp_init_fast_path(module) < 0 ? -1 : mp_init_array_codec(module);
}

/* setup({char: dtype}, name_of, from_name, reduce_ndarray, on_large_copy, large_nbytes), once */
static PyObject *setup(PyObject *module, PyObject *args)
{
    PyObject *reducer = PyObject_GetAttrString(module, "reduce_array");

    if (reducer == NULL)
        return NULL;
    mp_register_array_codec(reducer);
    mp_register_scalars();
    Py_DECREF(reducer);
    return mp_setup_fast_path(args) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, NULL},
    {"set_inline_limit", mp_py_set_inline_limit, METH_O, NULL},
    {"get_inline_limit", mp_py_get_inline_limit, METH_NOARGS, NULL},
    {"has_room", mp_py_has_room, METH_O, NULL},
    {"reduce_array", mp_py_reduce_array, METH_O, NULL},
    {"rebuild_from_bytes", mp_py_rebuild_from_bytes, METH_VARARGS, NULL},
    {"rebuild_from_block", mp_py_rebuild_from_block, METH_VARARGS, NULL},
    {"rebuild_from_pack", mp_py_rebuild_from_pack, METH_VARARGS, NULL},
    {"rebuild_view", mp_py_rebuild_view, METH_VARARGS, NULL},
    {"rebuild_strided", mp_py_rebuild_strided, METH_VARARGS, NULL},
    {"own_nbytes", mp_py_own_nbytes, METH_O, NULL},
    {"copy_own_bytes", mp_py_copy_own_bytes, METH_VARARGS, NULL},
    {"held_view", mp_py_held_view, METH_O, NULL},
    {"get_handler", mp_py_get_handler, METH_NOARGS, NULL},
    {"set_handler", mp_py_set_handler, METH_O, NULL},
    {"shared_handler", mp_py_shared_handler, METH_NOARGS, NULL},
    {"replace_default_handler", mp_py_replace_default_handler, METH_O, NULL},
    {"block_at", mp_py_block_at, METH_O, NULL},
    {"swap_memory", mp_py_swap_memory, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef native_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "The compiled half of mp_reductions: fast path, allocator, exchange of memory.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&native_module);
}
