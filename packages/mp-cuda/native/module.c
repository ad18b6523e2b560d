/* The module mp_cuda._native: device arrays, written to messages and read from them.
 *
 * It links neither libcuda nor libshm. The functions of the driver are looked up in the library that
 * the bindings have loaded (driver.c); those of mp-core are in the table of mp_core.h. */
#include "native.h"

static int module_exec(PyObject *module)
{
    return mp_load_core() < 0 || mp_renew_process() < 0 || mp_make_known() < 0 ||
                   mp_add_array_type(module) < 0 || mp_add_event_type(module) < 0 ||
                   mp_add_reference_type(module) < 0 || mp_add_export_types(module) < 0 ||
                   mp_add_mapping_types(module) < 0
               ? -1
               : mp_add_table_type(module);
}

/* renew_process(): this is a forked child */
static PyObject *renew_process(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    if (mp_renew_process() < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* forget(): this is a forked child, which has nothing of what the driver has */
static PyObject *forget(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    mp_forget_driver();
    mp_forget_events();
    mp_forget_holders();
    mp_forget_known();
    mp_forget_exports();
    mp_forget_mappings();
    mp_forget_references();
    Py_RETURN_NONE;
}

#define DOC(name, signature, text) name signature "\n--\n\n" text

static PyMethodDef functions[] = {
    {"set_hooks", (PyCFunction)(void (*)(void))mp_py_set_hooks, METH_VARARGS | METH_KEYWORDS,
     DOC("set_hooks", "(**hooks)", "Set what the C code calls or reads of the Python modules.")},
    {"process", mp_py_process, METH_NOARGS,
     DOC("process", "()", "Return the pid of this process and its random number.")},
    {"renew_process", renew_process, METH_NOARGS,
     DOC("renew_process", "()", "Say that this is a forked child, another process.")},
    {"use_codec", mp_py_use_codec, METH_VARARGS,
     DOC("use_codec", "(type, reducer, /)",
         "Write and read objects of a type as long as they have this reducer.")},
    {"export_alone", mp_py_export_alone, METH_VARARGS,
     DOC("export_alone", "(array, receivers, fallback, /)",
         "Return the offers, table and layout of an array for a message of its own.")},
    {"take_back", mp_py_take_back, METH_O,
     DOC("take_back", "(offers, /)", "Take back the references of a message that is not sent.")},
    {"export_object", mp_py_export_object, METH_O,
     DOC("export_object", "(object, /)", "Keep it for a message; return (serial, offer).")},
    {"own_sent", mp_py_own_sent, METH_O,
     DOC("own_sent", "(serial, /)",
         "List what an export of this process keeps; None if it has ended.")},
    {"receive_reference", mp_py_receive_reference, METH_VARARGS,
     DOC("receive_reference", "(offers, pid, nonce, /)", "Receive one of the offers of a lease.")},
    {"receive_table", mp_py_receive_table, METH_VARARGS,
     DOC("receive_table", "(offers, table, /)", "Receive what arrays share.")},
    {"rebuild", mp_py_rebuild, METH_VARARGS,
     DOC("rebuild", "(table, layout, kind=None, extra=b'', dtype=None, /)",
         "Make an array of a message. Raises `ValueError` if it is damaged.")},
    {"look_at_exports", mp_py_look_at_exports, METH_VARARGS,
     DOC("look_at_exports", "(recall, revoke_before, /)",
         "Recall the memory that the program has dropped, or all; end what no other process has.")},
    {"live_exports", mp_py_live_exports, METH_NOARGS,
     DOC("live_exports", "()", "List bytes, references and whether it lingers of each export.")},
    {"close_dropped", mp_py_close_dropped, METH_VARARGS,
     DOC("close_dropped", "(wait, lingering, /)",
         "Close memory without arrays, or let it linger.")},
    {"close_all", mp_py_close_all, METH_NOARGS,
     DOC("close_all", "()", "Close all memory of other processes, at exit.")},
    {"count_mappings", mp_py_count_mappings, METH_NOARGS,
     DOC("count_mappings", "()",
         "Count what is open, what lingers, and what was dropped and is not done.")},
    {"set_linger", mp_py_set_linger, METH_O,
     DOC("set_linger", "(seconds, /)", "Set how long memory stays open without arrays.")},
    {"free_memory", mp_py_free_memory, METH_VARARGS,
     DOC("free_memory", "(device, addresses, /)", "Free allocations; return codes.")},
    {"destroy_events", mp_py_destroy_events, METH_VARARGS,
     DOC("destroy_events", "(device, numbers, /)", "Destroy events; return codes.")},
    {"synchronize", mp_py_synchronize, METH_O,
     DOC("synchronize", "(device, /)",
         "Wait for all work of a device; return False during a capture.")},
    {"free_events", mp_py_free_events, METH_NOARGS,
     DOC("free_events", "()", "Count the events in the pool.")},
    {"forget", forget, METH_NOARGS,
     DOC("forget", "()", "Forget what the parent of this process had.")},
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
