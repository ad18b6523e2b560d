/* The module mp_cuda._native: device arrays, written to messages and read from them.
 *
 * It links neither libcuda nor libshm. The functions of the driver are looked up in the library that
 * the bindings have loaded (driver.c); those of mp-core are in the table of mp_core.h. */
#include "native.h"

static int module_exec(PyObject *module)
{
    return mp_load_core() < 0 || mp_add_array_type(module) < 0 || mp_add_event_type(module) < 0 ||
                   mp_add_reference_type(module) < 0 || mp_add_source_type(module) < 0
               ? -1
               : mp_add_incoming_types(module);
}

/* forget(): this is a forked child, which has nothing of what the driver has */
static PyObject *forget(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    mp_forget_driver();
    mp_forget_events();
    mp_forget_holders();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(hooks_doc, "set_hooks(**hooks)\n--\n\nSet what the C code calls or reads of the "
                        "Python modules.");
PyDoc_STRVAR(process_doc, "set_process(pid, nonce, /)\n--\n\nSay which process this is.");
PyDoc_STRVAR(codec_doc, "use_codec(type, reducer, /)\n--\n\n"
                        "Write and read objects of a type as long as they have this reducer.");
PyDoc_STRVAR(export_doc,
             "export_alone(array, receivers, fallback, /)\n--\n\n"
             "Return the offers, table and layout of an array for a message of its own.");
PyDoc_STRVAR(table_doc, "receive_table(offers, table, /)\n--\n\nReceive what arrays share.");
PyDoc_STRVAR(rebuild_doc, "rebuild(table, layout, kind=None, extra=b'', dtype=None, /)\n--\n\n"
                          "Make an array of a message. Raises `ValueError` if it is damaged.");
PyDoc_STRVAR(buffer_id_doc, "buffer_id(device, pointer, /)\n--\n\n"
                            "Return the driver's number of an allocation, or 0.");
PyDoc_STRVAR(attributes_doc, "pointer_attributes(device, pointer, attributes, /)\n--\n\n"
                             "Return what the driver says of a pointer.");
PyDoc_STRVAR(range_doc, "address_range(device, pointer, /)\n--\n\n"
                        "Return first byte and size of an allocation.");
PyDoc_STRVAR(handle_doc, "memory_handle(device, base, /)\n--\n\n"
                         "Return what opens an allocation in another process.");
PyDoc_STRVAR(open_doc, "open_memory(device, handle, /)\n--\n\n"
                       "Open an allocation of another process; return its address.");
PyDoc_STRVAR(close_doc,
             "close_memory(device, addresses, /)\n--\n\nClose open memory; return codes.");
PyDoc_STRVAR(free_memory_doc,
             "free_memory(device, addresses, /)\n--\n\nFree allocations; return codes.");
PyDoc_STRVAR(destroy_doc,
             "destroy_events(device, numbers, /)\n--\n\nDestroy events; return codes.");
PyDoc_STRVAR(synchronize_doc, "synchronize(device, /)\n--\n\nWait for all work of a device.");
PyDoc_STRVAR(own_doc, "count_own(device, key, sign, /)\n--\n\n"
                      "Count an allocation of this process that was sent, or is not any more.");
PyDoc_STRVAR(free_doc, "free_events()\n--\n\nCount the events in the pool.");
PyDoc_STRVAR(forget_doc, "forget()\n--\n\nForget what the parent of this process had.");

static PyMethodDef functions[] = {
    {"set_hooks", (PyCFunction)(void (*)(void))mp_py_set_hooks, METH_VARARGS | METH_KEYWORDS,
     hooks_doc},
    {"set_process", mp_py_set_process, METH_VARARGS, process_doc},
    {"use_codec", mp_py_use_codec, METH_VARARGS, codec_doc},
    {"export_alone", mp_py_export_alone, METH_VARARGS, export_doc},
    {"receive_table", mp_py_receive_table, METH_VARARGS, table_doc},
    {"rebuild", mp_py_rebuild, METH_VARARGS, rebuild_doc},
    {"buffer_id", mp_py_buffer_id, METH_VARARGS, buffer_id_doc},
    {"pointer_attributes", mp_py_pointer_attributes, METH_VARARGS, attributes_doc},
    {"address_range", mp_py_address_range, METH_VARARGS, range_doc},
    {"memory_handle", mp_py_memory_handle, METH_VARARGS, handle_doc},
    {"open_memory", mp_py_open_memory, METH_VARARGS, open_doc},
    {"close_memory", mp_py_close_memory, METH_VARARGS, close_doc},
    {"free_memory", mp_py_free_memory, METH_VARARGS, free_memory_doc},
    {"destroy_events", mp_py_destroy_events, METH_VARARGS, destroy_doc},
    {"synchronize", mp_py_synchronize, METH_O, synchronize_doc},
    {"count_own", mp_py_count_own, METH_VARARGS, own_doc},
    {"free_events", mp_py_free_events, METH_NOARGS, free_doc},
    {"forget", forget, METH_NOARGS, forget_doc},
    {NULL, NULL, 0, NULL},
};

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
