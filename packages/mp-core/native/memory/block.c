/* The type under mp_core.Block: one reference to a block, with the buffer protocol.
 *
 * The type is not made with cffi: before Python 3.12 only a C type can have the buffer protocol,
 * and an ndarray over a Block keeps exactly this object alive.
 *
 * Note [The GIL and libshm's lock]
 *   libshm has one lock per process. A thread that waits for the manager holds that lock and has
 *   released the GIL. A thread that holds the GIL never waits for libshm's lock: a call with
 *   MPSHM_NOWAIT fails with -EAGAIN and is repeated without the GIL, and a release that finds the
 *   lock taken is left to the thread that holds it. */
#include <errno.h>

#include "memory/memory.h"

typedef mp_buffer Buffer;

PyObject *mp_block_type;
int mp_strategy = MPSHM_FILE_DESCRIPTOR; /* until mp_core.sharing.strategy sets another */

PyObject *mp_wrap(PyObject *type, mpshm_block *block)
{
    Buffer *self = mp_new(type);

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
        Py_BEGIN_ALLOW_THREADS
        rc = mpshm_block_allocate(strategy, nbytes, flags, block);
        Py_END_ALLOW_THREADS
    }
    return rc;
}

/* allocate(type, strategy, nbytes, zeroed) -> object of type, or -errno as an int */
PyObject *mp_py_allocate(PyObject *module, PyObject *args)
{
    PyObject *type;
    int strategy, zeroed;
    unsigned long long nbytes;
    mpshm_block block;

    if (!PyArg_ParseTuple(args, "OiKp:allocate", &type, &strategy, &nbytes, &zeroed))
        return NULL;
    int rc = mp_allocate(strategy, nbytes, zeroed ? MPSHM_ZEROED : 0, &block);
    return rc < 0 ? PyLong_FromLong(rc) : mp_wrap(type, &block);
}

/* object.__new__ makes a Block without memory. */
static PyObject *refuse_empty(void)
{
    return PyErr_Format(PyExc_ValueError,
                        "this block was never allocated; use mp_core.Block(nbytes)");
}

/* ---- pickling ---- */

/* setup(block_type): the class of received blocks, once mp_core.memory.block has been imported */
PyObject *mp_py_setup(PyObject *module, PyObject *type)
{
    Py_INCREF(type);
    Py_XDECREF(mp_block_type);
    mp_block_type = type;
    Py_RETURN_NONE;
}

/* strategy(number or None) -> the number of the current strategy, after setting it */
PyObject *mp_py_strategy(PyObject *module, PyObject *number)
{
    if (number != Py_None) {
        long strategy = PyLong_AsLong(number);
        if (strategy == -1 && PyErr_Occurred())
            return NULL;
        mp_strategy = (int)strategy;
    }
    return PyLong_FromLong(mp_strategy);
}

mpshm_block *mp_block_of(PyObject *object)
{
    mpshm_block *block = &((Buffer *)object)->block;

    return PyObject_TypeCheck(object, (PyTypeObject *)mp_block_type) && block->segment != NULL
               ? block
               : NULL;
}

/* (the module's function `name`, (a handle of the block,)) */
static PyObject *reduce(PyObject *module, PyObject *block, int flags, PyObject **kept,
                        const char *name)
{
    if (mp_block_of(block) == NULL)
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
PyObject *mp_py_reduce_block(PyObject *module, PyObject *block)
{
    static PyObject *rebuild;
    return reduce(module, block, 0, &rebuild, "rebuild_block");
}

/* reduce_copy(block) -> (rebuild_copy, (handle,)) */
PyObject *mp_py_reduce_copy(PyObject *module, PyObject *block)
{
    static PyObject *rebuild;
    return reduce(module, block, MPSHM_COPY, &rebuild, "rebuild_copy");
}

/* lasting_handle(block) -> the handle of a reference in flight that does not expire */
PyObject *mp_py_lasting_handle(PyObject *module, PyObject *block)
{
    return mp_block_of(block) == NULL ? refuse_empty()
                                      : mp_make_handle(mp_block_of(block), MPSHM_LASTING);
}

int mp_block_find(const void *address, mpshm_block *block)
{
    int rc = mpshm_block_find(address, MPSHM_NOWAIT, block);

    if (rc == -EAGAIN) {
        Py_BEGIN_ALLOW_THREADS
        rc = mpshm_block_find(address, 0, block);
        Py_END_ALLOW_THREADS
    }
    return rc;
}

/* find(type, address) -> object of type, or -errno as an int */
PyObject *mp_py_find(PyObject *module, PyObject *args)
{
    PyObject *type;
    unsigned long long address;
    mpshm_block block;

    if (!PyArg_ParseTuple(args, "OK:find", &type, &address))
        return NULL;
    int rc = mp_block_find((const void *)(uintptr_t)address, &block);
    return rc < 0 ? PyLong_FromLong(rc) : mp_wrap(type, &block);
}

/* open_block(block) -> (descriptor of the memory it is in, offset of its first byte), or -errno */
PyObject *mp_py_open_block(PyObject *module, PyObject *block)
{
    uint64_t offset;
    int fd;

    if (mp_block_of(block) == NULL)
        return refuse_empty();
    Py_BEGIN_ALLOW_THREADS
    fd = mpshm_block_open(&((Buffer *)block)->block, &offset);
    Py_END_ALLOW_THREADS
    return fd < 0 ? PyLong_FromLong(fd) : Py_BuildValue("iK", fd, (unsigned long long)offset);
}

int mp_heap_block_at(const void *address, mpshm_block *block)
{
    int rc = mpshm_block_at(address, MPSHM_NOWAIT, block);

    if (rc == -EAGAIN) {
        Py_BEGIN_ALLOW_THREADS
        rc = mpshm_block_at(address, 0, block);
        Py_END_ALLOW_THREADS
    }
    return rc;
}

void mp_release_place(mp_place *place)
{
    if (place->keeper != NULL)
        Py_DECREF(place->keeper);
    else if (place->block.data != NULL)
        mpshm_block_release(&place->block);
    *place = (mp_place){.keeper = NULL};
}

/* ---- the type ---- */

static void buffer_dealloc(PyObject *op)
{
    mpshm_block_release(&((Buffer *)op)->block);
    mp_free(op);
}

static int buffer_get(PyObject *op, Py_buffer *view, int flags)
{
    const mpshm_block *block = &((Buffer *)op)->block;
    return PyBuffer_FillInfo(view, op, block->data, (Py_ssize_t)block->nbytes, 0, flags);
}

static PyObject *buffer_others(PyObject *op, PyObject *unused)
{
    if (((Buffer *)op)->block.segment == NULL)
        return refuse_empty();
    return PyLong_FromLong(mpshm_block_others(&((Buffer *)op)->block));
}

static PyObject *buffer_revoke(PyObject *op, PyObject *unused)
{
    if (((Buffer *)op)->block.segment == NULL)
        return refuse_empty();
    mpshm_block_revoke(&((Buffer *)op)->block);
    Py_RETURN_NONE;
}

/* The first word of the block names the process that has signed it. */
void mp_lease_sign(const mpshm_block *block)
{
    *(volatile uint32_t *)block->data = mpshm_own_word(block);
}

static PyObject *buffer_sign(PyObject *op, PyObject *unused)
{
    const mpshm_block *block = &((Buffer *)op)->block;

    if (block->nbytes < sizeof(uint32_t)) /* 0 without memory */
        return refuse_empty();
    mp_lease_sign(block);
    Py_RETURN_NONE;
}

int mp_lease_owner_lives(const mpshm_block *block)
{
    uint32_t word = *(volatile uint32_t *)block->data;
    int lives = mpshm_word_lives(block, word, MPSHM_NOWAIT);

    if (lives == -EAGAIN) {
        Py_BEGIN_ALLOW_THREADS
        lives = mpshm_word_lives(block, word, 0);
        Py_END_ALLOW_THREADS
    }
    return lives;
}

static PyObject *buffer_signer_lives(PyObject *op, PyObject *unused)
{
    const mpshm_block *block = &((Buffer *)op)->block;

    if (block->nbytes < sizeof(uint32_t)) /* 0 without memory */
        return refuse_empty();
    return PyBool_FromLong(mp_lease_owner_lives(block));
}

/* Whether only this process has the block: then its name is gone from the first word, and C code
 * that finds it gone makes no message of the block any more. The GIL keeps the two in one step. */
int mp_lease_end(const mpshm_block *block)
{
    if (mpshm_block_others(block) != 0)
        return 0;
    *(volatile uint32_t *)block->data = 0;
    return 1;
}

static PyObject *buffer_end(PyObject *op, PyObject *unused)
{
    const mpshm_block *block = &((Buffer *)op)->block;

    if (block->nbytes < sizeof(uint32_t)) /* 0 without memory */
        return refuse_empty();
    return PyBool_FromLong(mp_lease_end(block));
}

static PyObject *buffer_nbytes(PyObject *op, void *closure)
{
    return PyLong_FromUnsignedLongLong(((Buffer *)op)->block.nbytes);
}

static PyObject *buffer_address(PyObject *op, void *closure)
{
    return PyLong_FromVoidPtr(((Buffer *)op)->block.data);
}

static PyObject *buffer_pointer(PyObject *op, void *closure)
{
    if (((Buffer *)op)->block.segment == NULL)
        return refuse_empty();
    return PyLong_FromVoidPtr(&((Buffer *)op)->block);
}

static PyObject *buffer_strategy(PyObject *op, void *closure)
{
    if (((Buffer *)op)->block.segment == NULL)
        return refuse_empty();
    return PyLong_FromLong(mpshm_block_strategy(&((Buffer *)op)->block));
}

static PyMethodDef buffer_methods[] = {
    {"_revoke", buffer_revoke, METH_NOARGS, "Revoke the block's messages that are in flight."},
    {"_others", buffer_others, METH_NOARGS,
     "Count other processes with this block, and messages in flight."},
    {"_end", buffer_end, METH_NOARGS,
     "Tell whether only this process has the block, and take its name out of it."},
    {"_sign", buffer_sign, METH_NOARGS, "Write the name of this process into the first word."},
    {"_signer_lives", buffer_signer_lives, METH_NOARGS,
     "Tell whether the process that has signed the block lives."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef buffer_getset[] = {
    {"nbytes", buffer_nbytes, NULL, "Usable bytes.", NULL},
    {"address", buffer_address, NULL, "The address of the first byte in this process.", NULL},
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

int mp_add_buffer_type(PyObject *module)
{
    /* until mp_core.memory.block sets its subclass */
    mp_block_type = mp_add_type(module, "mp_core._block.Buffer", sizeof(Buffer),
                                Py_TPFLAGS_BASETYPE, buffer_slots);
    return mp_block_type == NULL ? -1 : 0;
}
