/* The module mp_core._block: its functions and types.
 *
 * It is in the same shared library as the cffi binding, so both use one copy of libshm. */
#include "channels/channels.h"
#include "locks/lock.h"
#include "memory/memory.h"
#include "messages/messages.h"
#include "messages/objects.h"
#include "messages/plan.h"
#include "system/system.h"
#include "timeline/timeline.h"

PyObject *mp_api_capsule(void); /* api.c */

PyDoc_STRVAR(out_of_band_doc, "out_of_band(number, /)\n--\n\n"
                              "Return an out-of-band object of the message.");
PyDoc_STRVAR(
    load_out_of_band_doc,
    "load_out_of_band(stream, objects, /)\n--\n\n"
    "Unpickle *stream*, which refers by number to those of a list, whose pickle is *objects*.");
PyDoc_STRVAR(
    rebuild_block_doc,
    "rebuild_block(handle, /)\n--\n\n"
    "Receive the `Block` of a handle (56 bytes).\n\n"
    "Raises `ValueError` if the handle is damaged, and `ReceiveError` if it was received before, "
    "if its memory is gone, or if this process cannot attach the memory (it may have no "
    "descriptor left).");
PyDoc_STRVAR(
    rebuild_copy_doc,
    "rebuild_copy(handle, /)\n--\n\n"
    "Receive a block whose bytes were copied for this receiver alone.\n\n"
    "Returns a `Block`, or a bytearray of the same bytes if this process cannot share memory. "
    "Raises as `rebuild_block` does.");
#define rebuild_large_doc(type)                                                                    \
    "rebuild_" type "(handle, /)\n--\n\n"                                                          \
    "Receive a " type " object whose bytes were copied into a block for this receiver alone.\n\n"  \
    "Raises as `rebuild_block` does."
PyDoc_STRVAR(reduce_block_doc,
             "reduce_block(block, /)\n--\n\n"
             "Reduce a `Block` to a handle with an in-flight reference, for one receiver.");
PyDoc_STRVAR(
    loads_doc,
    "loads(data, /, **options)\n--\n\n"
    "Unpickle a message as `pickle.loads` does; if that fails, free the blocks it carries.");

static PyMethodDef functions[] = {
    {"allocate", mp_py_allocate, METH_VARARGS, NULL},
    {"find", mp_py_find, METH_VARARGS, NULL},
    {"setup", mp_py_setup, METH_O, NULL},
    {"setup_receiving", mp_py_setup_receiving, METH_VARARGS, NULL},
    {"loads", (PyCFunction)(void (*)(void))mp_py_loads, METH_FASTCALL | METH_KEYWORDS, loads_doc},
    {"strategy", mp_py_strategy, METH_O, NULL},
    {"rebuild_block", mp_py_rebuild_block, METH_O, rebuild_block_doc},
    {"rebuild_copy", mp_py_rebuild_copy, METH_O, rebuild_copy_doc},
    {"rebuild_bytes", mp_py_rebuild_bytes, METH_O, rebuild_large_doc("bytes")},
    {"rebuild_bytearray", mp_py_rebuild_bytearray, METH_O, rebuild_large_doc("bytearray")},
    {"rebuild_str", mp_py_rebuild_str, METH_O, rebuild_large_doc("str")},
    {"copy_large", mp_py_copy_large, METH_O, NULL},
    {"reduce_block", mp_py_reduce_block, METH_O, reduce_block_doc},
    {"reduce_copy", mp_py_reduce_copy, METH_O, NULL},
    {"lasting_handle", mp_py_lasting_handle, METH_O, NULL},
    {"discard", mp_py_discard, METH_O, NULL},
    {"discard_unread", mp_py_discard_unread, METH_O, NULL},
    {"inject", mp_py_inject, METH_O, NULL},
    {"peer", mp_py_peer, METH_O, NULL},
    {"register_at_fork", mp_py_register_at_fork, METH_VARARGS, NULL},
    {"condition_notify", (PyCFunction)(void (*)(void))mp_py_condition_notify, METH_FASTCALL, NULL},
    {"is_of_atoms", mp_py_is_of_atoms, METH_O, NULL},
    {"is_small", mp_py_is_small, METH_O, NULL},
    {"dict_of", mp_py_dict_of, METH_O, NULL},
    {"look", mp_py_look, METH_VARARGS, NULL},
    {"see", mp_py_see, METH_VARARGS, NULL},
    {"make_task_ring", mp_py_make_task_ring, METH_NOARGS, NULL},
    {"open_task_ring", mp_py_open_task_ring, METH_VARARGS, NULL},
    {"wait_any", mp_py_wait_any, METH_VARARGS, NULL},
    {"open_block", mp_py_open_block, METH_O, NULL},
    {"in_message", mp_py_in_message, METH_VARARGS, NULL},
    {"pickled", mp_py_pickled, METH_VARARGS, NULL},
    {"pickled_by_value", mp_py_pickled_by_value, METH_VARARGS, NULL},
    {"sent", mp_py_sent, METH_VARARGS, NULL},
    {"by_value", mp_py_by_value, METH_NOARGS, NULL},
    {"shares_now", mp_py_shares_now, METH_NOARGS, NULL},
    {"share", mp_py_share, METH_O, NULL},
    {"message_exhausted", mp_py_message_exhausted, METH_NOARGS, NULL},
    {"copied_bytes", mp_py_copied_bytes, METH_O, NULL},
    {"out_of_band", mp_py_out_of_band, METH_O, out_of_band_doc},
    {"setup_reducer_table", mp_py_setup_reducer_table, METH_VARARGS, NULL},
    {"load_out_of_band", mp_py_load_out_of_band, METH_VARARGS, load_out_of_band_doc},
    {"pack_arrow", mp_py_pack_arrow, METH_VARARGS, NULL},
    {"unpack_arrow", mp_py_unpack_arrow, METH_VARARGS, NULL},
    {"setup_channels", mp_py_setup_channels, METH_VARARGS, NULL},
    {"make_channel", mp_py_make_channel, METH_VARARGS, NULL},
    {"open_channel", mp_py_open_channel, METH_VARARGS, NULL},
    {"channel_count", mp_py_channel_count, METH_NOARGS, NULL},
    {"channels_refused", mp_py_channels_refused, METH_NOARGS, NULL},
    {"plain_loads", mp_py_plain_loads, METH_O, NULL},
    {"only_atoms", mp_py_only_atoms, METH_O, NULL},
    {"plain_pickle", mp_py_plain_pickle, METH_O, NULL},
    {"plain_data", mp_py_plain_data, METH_O, NULL},
    {"setup_locks", mp_py_setup_locks, METH_O, NULL},
    {"create_sync", mp_py_create_sync, METH_VARARGS, NULL},
    {"sync_handle", mp_py_sync_handle, METH_O, NULL},
    {"version", mp_py_version, METH_NOARGS, NULL},
    {"set_manager", mp_py_set_manager, METH_O, NULL},
    {"own_session", mp_py_own_session, METH_NOARGS, NULL},
    {"attach_to", mp_py_attach_to, METH_O, NULL},
    {"attach_by_descriptors", mp_py_attach_by_descriptors, METH_VARARGS, NULL},
    {"open_descriptors_for_child", mp_py_open_descriptors_for_child, METH_NOARGS, NULL},
    {"set_message_timeout", mp_py_set_message_timeout, METH_O, NULL},
    {"handle_alive", mp_py_handle_alive, METH_O, NULL},
    {"timeline_open", mp_py_timeline_open, METH_VARARGS, NULL},
    {"timeline_close", mp_py_timeline_close, METH_NOARGS, NULL},
    {"timeline_name", mp_py_timeline_name, METH_VARARGS, NULL},
    {"timeline_now", mp_py_timeline_now, METH_NOARGS, NULL},
    {"timeline_blocks", mp_py_timeline_blocks, METH_NOARGS, NULL},
    {"timeline_write", (PyCFunction)(void (*)(void))mp_py_timeline_write, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static int block_exec(PyObject *module)
{
    /* The names are first: others write theirs with them. */
    static int (*const add[])(PyObject *) = {
        mp_setup_names,       mp_add_buffer_type,   mp_add_lock_type,     mp_add_task_ring_type,
        mp_add_pickle_writer, mp_add_pickle_reader, mp_setup_large_bytes, mp_add_try_lock_type,
        mp_add_message_type,  mp_add_channel_type,  mp_setup_packs,       mp_add_object_table,
        mp_add_reducer_table, mp_setup_objects,
    };
    PyObject *capsule = mp_api_capsule();
    int rc = capsule == NULL ? -1 : PyModule_AddObjectRef(module, "c_api", capsule);

    Py_XDECREF(capsule);
    for (size_t i = 0; rc == 0 && i < sizeof(add) / sizeof(add[0]); i++)
        rc = add[i](module);
    if (rc == 0)
        rc = PyModule_AddIntMacro(module, MPSHM_FILE_DESCRIPTOR);
    if (rc == 0)
        rc = PyModule_AddIntMacro(module, MPSHM_FILE_SYSTEM);
    if (rc == 0)
        rc = PyModule_AddIntMacro(module, MPSHM_SITE_SIZE);
    if (rc == 0)
        rc = PyModule_AddIntMacro(module, MPSHM_ID_SIZE);
    return rc == 0 ? PyModule_AddIntMacro(module, MPSHM_REFERENCE_SIZE) : rc;
}

static PyModuleDef_Slot block_slots[] = {{Py_mod_exec, block_exec}, {0, NULL}};

static struct PyModuleDef block_module = {
    PyModuleDef_HEAD_INIT,  .m_name = "_block",     .m_doc = "The compiled part of mp_core.",
    .m_methods = functions, .m_slots = block_slots,
};

PyMODINIT_FUNC PyInit__block(void)
{
    return PyModuleDef_Init(&block_module);
}
