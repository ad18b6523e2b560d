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

PyDoc_STRVAR(reduce_array_doc,
             "reduce_array(a, /)\n--\n\n"
             "Reduce an array to a pickle by the fast path, or call `array.reduce_ndarray`.");
PyDoc_STRVAR(from_bytes_doc,
             "rebuild_from_bytes(data, name, shape, /)\n--\n\n"
             "Make an array with private memory from its bytes. Raises `ValueError` if the "
             "arguments do not fit together.");
PyDoc_STRVAR(from_block_doc,
             "rebuild_from_block(memory, name, shape, /)\n--\n\n"
             "Make an array over a whole `Block`, or over the block of a handle (bytes). Raises "
             "`ValueError` if the shape needs more bytes than the block has.");
PyDoc_STRVAR(
    from_pack_doc,
    "rebuild_from_pack(pack, offset, name, shape, /)\n--\n\n"
    "Make an array with private memory from its bytes in a pack: a `Block` or a bytearray. "
    "Raises `ValueError` if the pack has fewer bytes.");
PyDoc_STRVAR(view_doc,
             "rebuild_view(block, name, shape, offset, strides, writeable, /)\n--\n\n"
             "Make an array over a part of a `Block`. Raises `ValueError` if it leads out of it.");
PyDoc_STRVAR(
    strided_doc,
    "rebuild_strided(data, name, shape, offset, strides, writeable, /)\n--\n\n"
    "Make an array with a copy of its bytes. Raises `ValueError` if it leads out of them.");
PyDoc_STRVAR(own_nbytes_doc, "own_nbytes(a, /)\n--\n\n"
                             "Return the bytes that `copy_own_bytes` needs for the array.");
PyDoc_STRVAR(
    copy_own_doc,
    "copy_own_bytes(a, memory, /)\n--\n\n"
    "Copy the array's own bytes, without those in its gaps, into `memory`, and return "
    "(dtype, shape, offset, strides, writeable) of the array in them; None if their number "
    "is another one. All is as at one moment, whatever other threads do to the array.");
PyDoc_STRVAR(get_handler_doc, "get_handler()\n--\n\n"
                              "Return NumPy's memory handler of this context, a capsule.");
PyDoc_STRVAR(set_handler_doc,
             "set_handler(handler, /)\n--\n\n"
             "Set the memory handler for the arrays that this context makes from now on.");
PyDoc_STRVAR(shared_handler_doc, "shared_handler()\n--\n\n"
                                 "Return the handler that allocates large arrays in shared "
                                 "memory, the same capsule each time.");
PyDoc_STRVAR(replace_doc,
             "replace_default_handler(on, /)\n--\n\n"
             "Let NumPy's default handler allocate in shared memory, or no longer. One store does "
             "it for all threads, also those that run already.");
PyDoc_STRVAR(block_at_doc,
             "block_at(a, /)\n--\n\n"
             "Return the `Block` in which the shared allocator put the array's data, or None.");
PyDoc_STRVAR(swap_doc, "swap_memory(a, b, /)\n--\n\n"
                       "Exchange the memory of two arrays of the same shape and dtype, with its "
                       "owner, strides and flags.");

static PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, NULL},
    {"set_inline_limit", mp_py_set_inline_limit, METH_O, NULL},
    {"get_inline_limit", mp_py_get_inline_limit, METH_NOARGS, NULL},
    {"has_room", mp_py_has_room, METH_O, NULL},
    {"reduce_array", mp_py_reduce_array, METH_O, reduce_array_doc},
    {"rebuild_from_bytes", mp_py_rebuild_from_bytes, METH_VARARGS, from_bytes_doc},
    {"rebuild_from_block", mp_py_rebuild_from_block, METH_VARARGS, from_block_doc},
    {"rebuild_from_pack", mp_py_rebuild_from_pack, METH_VARARGS, from_pack_doc},
    {"rebuild_view", mp_py_rebuild_view, METH_VARARGS, view_doc},
    {"rebuild_strided", mp_py_rebuild_strided, METH_VARARGS, strided_doc},
    {"own_nbytes", mp_py_own_nbytes, METH_O, own_nbytes_doc},
    {"copy_own_bytes", mp_py_copy_own_bytes, METH_VARARGS, copy_own_doc},
    {"get_handler", mp_py_get_handler, METH_NOARGS, get_handler_doc},
    {"set_handler", mp_py_set_handler, METH_O, set_handler_doc},
    {"shared_handler", mp_py_shared_handler, METH_NOARGS, shared_handler_doc},
    {"replace_default_handler", mp_py_replace_default_handler, METH_O, replace_doc},
    {"block_at", mp_py_block_at, METH_O, block_at_doc},
    {"swap_memory", mp_py_swap_memory, METH_VARARGS, swap_doc},
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
