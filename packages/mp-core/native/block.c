/* The module mp_core._block and the type under mp_core.Block: one reference to a block, with the
 * buffer protocol.
 *
 * The type is not made with cffi: before Python 3.12 only a C type can have the buffer protocol,
 * and an ndarray over a Block keeps exactly this object alive. The module is in the same shared
 * library as the cffi binding, so both use one copy of libshm.
 *
 * Note [The GIL and libshm's lock]
 *   libshm has one lock per process. A thread that waits for the manager holds that lock and has
 *   released the GIL. A thread that holds the GIL never waits for libshm's lock: a call with
 *   MPSHM_NOWAIT fails with -EAGAIN and is repeated without the GIL, and a release that finds the
 *   lock taken is left to the thread that holds it. */
#include <errno.h>

#include "native.h"

typedef mp_buffer Buffer;

PyObject *mp_block_type;
int mp_strategy = MPSHM_FILE_DESCRIPTOR; /* until mp_core.strategy sets another */

PyObject *mp_wrap(PyObject *type, mpshm_block *block)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_alloc);
    Buffer *self = (Buffer *)alloc((PyTypeObject *)type, 0);

    if (self == NULL)
        mpshm_block_release(block);
    else
        self->block = *block;
    return (PyObject *)self;
}

int mp_allocate(int strategy, uint64_t nbytes, int flags, mpshm_block *block)
{
    int rc = -EAGAIN;

    if (nbytes < MP_RELEASE_GIL_BYTES)
        rc = mpshm_block_allocate(strategy, nbytes, flags | MPSHM_NOWAIT, block);
    if (rc == -EAGAIN) {
        Py_BEGIN_ALLOW_THREADS rc = mpshm_block_allocate(strategy, nbytes, flags, block);
        Py_END_ALLOW_THREADS
    }
    return rc;
}

/* allocate(type, strategy, nbytes, zeroed) -> object of type, or -errno as an int */
static PyObject *allocate(PyObject *module, PyObject *args)
{
    PyObject *type;
    int strategy, zeroed;
    unsigned long long nbytes;
    mpshm_block block;
    (void)module;

    if (!PyArg_ParseTuple(args, "OiKp:allocate", &type, &strategy, &nbytes, &zeroed))
        return NULL;
    int rc = mp_allocate(strategy, nbytes, zeroed ? MPSHM_ZEROED : 0, &block);
    return rc < 0 ? PyLong_FromLong(rc) : mp_wrap(type, &block);
}

/* ---- pickling ---- */

/* setup(block_type): the class of received blocks, once mp_core.block has been imported */
static PyObject *setup(PyObject *module, PyObject *type)
{
    (void)module;
    Py_INCREF(type);
    Py_XDECREF(mp_block_type);
    mp_block_type = type;
    Py_RETURN_NONE;
}

/* strategy(number or None) -> the number of the current strategy, after setting it */
static PyObject *current_strategy(PyObject *module, PyObject *number)
{
    (void)module;
    if (number != Py_None) {
        long strategy = PyLong_AsLong(number);
        if (strategy == -1 && PyErr_Occurred())
            return NULL;
        mp_strategy = (int)strategy;
    }
    return PyLong_FromLong(mp_strategy);
}

/* (the module's function `name`, (a handle of the block,)) */
static PyObject *reduce(PyObject *module, PyObject *block, int flags, PyObject **kept,
                        const char *name)
{
    if (!PyObject_TypeCheck(block, (PyTypeObject *)mp_block_type) ||
        ((Buffer *)block)->block.segment == NULL)
        return PyErr_Format(PyExc_ValueError,
                            "an allocated mp_core.Block was expected, not %R; make one with "
                            "mp_core.Block(nbytes)",
                            block);
    if (*kept == NULL) /* kept for the process's lifetime, as the module is */
        *kept = PyObject_GetAttrString(module, name);
    PyObject *handle = *kept ? mp_make_handle(&((Buffer *)block)->block, flags) : NULL;
    return handle ? Py_BuildValue("O(N)", *kept, handle) : NULL;
}

/* reduce_block(block) -> (rebuild_block, (handle,)) */
static PyObject *reduce_block(PyObject *module, PyObject *block)
{
    static PyObject *rebuild;
    return reduce(module, block, 0, &rebuild, "rebuild_block");
}

/* reduce_copy(block) -> (rebuild_copy, (handle,)) */
static PyObject *reduce_copy(PyObject *module, PyObject *block)
{
    static PyObject *rebuild;
    return reduce(module, block, MPSHM_COPY, &rebuild, "rebuild_copy");
}

PyDoc_STRVAR(beside_doc, "beside(number, /)\n--\n\n"
                         "Return an object that the message carries beside its pickle.");
PyDoc_STRVAR(load_beside_doc,
             "load_beside(stream, tables, /)\n--\n\n"
             "Unpickle *stream*, which refers to the objects in *tables* by number.");
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

/* find(type, address) -> object of type, or -errno as an int */
static PyObject *find(PyObject *module, PyObject *args)
{
    PyObject *type;
    unsigned long long address;
    mpshm_block block;
    (void)module;

    if (!PyArg_ParseTuple(args, "OK:find", &type, &address))
        return NULL;
    int rc = mpshm_block_find((const void *)(uintptr_t)address, MPSHM_NOWAIT, &block);
    if (rc == -EAGAIN) {
        Py_BEGIN_ALLOW_THREADS rc = mpshm_block_find((const void *)(uintptr_t)address, 0, &block);
        Py_END_ALLOW_THREADS
    }
    return rc < 0 ? PyLong_FromLong(rc) : mp_wrap(type, &block);
}

int mp_heap_block_at(const void *address, mpshm_block *block)
{
    int rc = mpshm_block_at(address, MPSHM_NOWAIT, block);

    if (rc == -EAGAIN) {
        Py_BEGIN_ALLOW_THREADS rc = mpshm_block_at(address, 0, block);
        Py_END_ALLOW_THREADS
    }
    return rc;
}

static PyMethodDef functions[] = {
    {"allocate", allocate, METH_VARARGS, NULL},
    {"find", find, METH_VARARGS, NULL},
    {"setup", setup, METH_O, NULL},
    {"setup_receiving", mp_py_setup_receiving, METH_VARARGS, NULL},
    {"loads", (PyCFunction)(void (*)(void))mp_py_loads, METH_FASTCALL | METH_KEYWORDS, loads_doc},
    {"strategy", current_strategy, METH_O, NULL},
    {"rebuild_block", mp_py_rebuild_block, METH_O, rebuild_block_doc},
    {"rebuild_copy", mp_py_rebuild_copy, METH_O, rebuild_copy_doc},
    {"rebuild_bytes", mp_py_rebuild_bytes, METH_O, rebuild_large_doc("bytes")},
    {"rebuild_bytearray", mp_py_rebuild_bytearray, METH_O, rebuild_large_doc("bytearray")},
    {"rebuild_str", mp_py_rebuild_str, METH_O, rebuild_large_doc("str")},
    {"copy_large", mp_py_copy_large, METH_O, NULL},
    {"reduce_block", reduce_block, METH_O, reduce_block_doc},
    {"reduce_copy", reduce_copy, METH_O, NULL},
    {"discard", mp_py_discard, METH_O, NULL},
    {"discard_unread", mp_py_discard_unread, METH_O, NULL},
    {"inject", mp_py_inject, METH_O, NULL},
    {"peer", mp_py_peer, METH_O, NULL},
    {"register_at_fork", mp_py_register_at_fork, METH_VARARGS, NULL},
    {"condition_notify", (PyCFunction)(void (*)(void))mp_py_condition_notify, METH_FASTCALL, NULL},
    {"is_of_atoms", mp_py_is_of_atoms, METH_O, NULL},
    {"is_small", mp_py_is_small, METH_O, NULL},
    {"in_message", mp_py_in_message, METH_VARARGS, NULL},
    {"pickled", mp_py_pickled, METH_VARARGS, NULL},
    {"pickled_by_value", mp_py_pickled_by_value, METH_VARARGS, NULL},
    {"pickled_object", mp_py_pickled_object, METH_O, NULL},
    {"sent", mp_py_sent, METH_VARARGS, NULL},
    {"by_value", mp_py_by_value, METH_NOARGS, NULL},
    {"share", mp_py_share, METH_O, NULL},
    {"copied_bytes", mp_py_copied_bytes, METH_O, NULL},
    {"beside", mp_py_beside, METH_O, beside_doc},
    {"load_beside", mp_py_load_beside, METH_VARARGS, load_beside_doc},
    {"setup_beside", mp_py_setup_beside, METH_VARARGS, NULL},
    {"setup_storages", mp_py_setup_storages, METH_VARARGS, NULL},
    {"move_storage", mp_py_move_storage, METH_O, NULL},
    {"remember_storage", mp_py_remember_storage, METH_VARARGS, NULL},
    {"find_storage", mp_py_find_storage, METH_VARARGS, NULL},
    {"setup_tensors", mp_py_setup_tensors, METH_VARARGS, NULL},
    {"pack_tensors", mp_py_pack_tensors, METH_O, NULL},
    {"receive_tensors", mp_py_receive_tensors, METH_VARARGS, NULL},
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
    {"attach_with", mp_py_attach_with, METH_VARARGS, NULL},
    {"open_for_child", mp_py_open_for_child, METH_NOARGS, NULL},
    {"set_message_timeout", mp_py_set_message_timeout, METH_O, NULL},
    {"handle_alive", mp_py_handle_alive, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

/* ---- the type ---- */

static void buffer_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    mpshm_block_release(&((Buffer *)op)->block);
    release(op);
    Py_DECREF(type);
}

static int buffer_get(PyObject *op, Py_buffer *view, int flags)
{
    const mpshm_block *block = &((Buffer *)op)->block;
    return PyBuffer_FillInfo(view, op, block->data, (Py_ssize_t)block->nbytes, 0, flags);
}

/* object.__new__ makes a Block without memory. */
static PyObject *refuse_empty(void)
{
    PyErr_SetString(PyExc_ValueError, "this block was never allocated; use mp_core.Block(nbytes)");
    return NULL;
}

static PyObject *buffer_others(PyObject *op, PyObject *unused)
{
    (void)unused;
    if (((Buffer *)op)->block.segment == NULL)
        return refuse_empty();
    return PyLong_FromLong(mpshm_block_others(&((Buffer *)op)->block));
}

static PyObject *buffer_revoke(PyObject *op, PyObject *unused)
{
    (void)unused;
    if (((Buffer *)op)->block.segment == NULL)
        return refuse_empty();
    mpshm_block_revoke(&((Buffer *)op)->block);
    Py_RETURN_NONE;
}

static PyObject *buffer_nbytes(PyObject *op, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLongLong(((Buffer *)op)->block.nbytes);
}

static PyObject *buffer_address(PyObject *op, void *closure)
{
    (void)closure;
    return PyLong_FromVoidPtr(((Buffer *)op)->block.data);
}

static PyObject *buffer_pointer(PyObject *op, void *closure)
{
    (void)closure;
    if (((Buffer *)op)->block.segment == NULL)
        return refuse_empty();
    return PyLong_FromVoidPtr(&((Buffer *)op)->block);
}

static PyObject *buffer_strategy(PyObject *op, void *closure)
{
    (void)closure;
    if (((Buffer *)op)->block.segment == NULL)
        return refuse_empty();
    return PyLong_FromLong(mpshm_block_strategy(&((Buffer *)op)->block));
}

static PyMethodDef buffer_methods[] = {
    {"_revoke", buffer_revoke, METH_NOARGS, "Revoke the block's messages that are in flight."},
    {"_others", buffer_others, METH_NOARGS,
     "Count other processes with this block, and messages in flight."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef buffer_getset[] = {
    {"nbytes", buffer_nbytes, NULL, "Usable bytes.", NULL},
    {"_address", buffer_address, NULL, "The address of the first byte in this process.", NULL},
    {"_pointer", buffer_pointer, NULL, "The address of the mpshm_block, for cffi.", NULL},
    {"_strategy", buffer_strategy, NULL, "The strategy's number.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot buffer_slots[] = {
    {Py_tp_doc, "One reference to a block of shared memory, with the buffer protocol."},
    {Py_tp_dealloc, buffer_dealloc},
    {Py_tp_methods, buffer_methods},
    {Py_tp_getset, buffer_getset},
    {Py_bf_getbuffer, buffer_get},
    {0, NULL},
};

static PyType_Spec buffer_spec = {
    .name = "mp_core._block.Buffer",
    .basicsize = sizeof(Buffer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = buffer_slots,
};

static int block_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &buffer_spec, NULL);
    PyObject *capsule = mp_api_capsule();
    int rc = type == NULL ? -1 : PyModule_AddObjectRef(module, "Buffer", type);

    if (rc == 0)
        mp_block_type = Py_NewRef(type); /* until mp_core.block sets its subclass */
    if (rc == 0)
        rc = PyModule_AddIntMacro(module, MPSHM_FILE_DESCRIPTOR);
    if (rc == 0)
        rc = PyModule_AddIntMacro(module, MPSHM_FILE_SYSTEM);
    if (rc == 0)
        rc = PyModule_AddIntMacro(module, MPSHM_SITE_SIZE);
    if (rc == 0)
        rc = PyModule_AddIntMacro(module, MPSHM_ID_SIZE);
    if (rc == 0)
        rc = PyModule_AddIntMacro(module, MPSHM_REFERENCE_SIZE);
    if (rc == 0)
        rc = mp_add_lock_type(module);
    if (rc == 0)
        rc = mp_add_journal_type(module);
    if (rc == 0)
        rc = mp_add_pickle_writer(module);
    if (rc == 0)
        rc = mp_add_pickle_reader(module);
    if (rc == 0)
        rc = mp_setup_large_bytes(module);
    if (rc == 0)
        rc = mp_add_try_lock_type(module);
    if (rc == 0)
        rc = mp_add_message_type(module);
    if (rc == 0)
        rc = capsule == NULL ? -1 : PyModule_AddObjectRef(module, "c_api", capsule);
    if (rc == 0)
        rc = mp_add_channel_type(module);
    Py_XDECREF(type);
    Py_XDECREF(capsule);
    return rc;
}

static PyModuleDef_Slot block_slots[] = {{Py_mod_exec, block_exec}, {0, NULL}};

static struct PyModuleDef block_module = {
    PyModuleDef_HEAD_INIT,  .m_name = "_block",     .m_doc = "The C type under mp_core.Block.",
    .m_methods = functions, .m_slots = block_slots,
};

PyMODINIT_FUNC PyInit__block(void)
{
    return PyModuleDef_Init(&block_module);
}
