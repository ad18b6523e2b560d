/* Packs: the bytes of many small objects of a message in one block.
 *
 * Note [Packs]
 *   A block for each of a thousand small arrays would cost more than their bytes. So they share a
 *   block, the *pack*, whose size the survey has added up; for the objects beside a pickle it has a
 *   fixed size, since they are written as they come. In the pickle it is an object with a
 *   number in the memo, and each array has a position in it:
 *
 *     from_pack ( rebuild_copy handle TUPLE1 REDUCE MEMOIZE   0  char shape TUPLE REDUCE
 *     from_pack ( BINGET                                   1024  char shape TUPLE REDUCE
 *
 *   The receiver copies the bytes out into private memory, so that one array does not keep the
 *   memory of all. */
#include "native.h"

static mp_global rebuilds_pack; /* rebuild_copy */

int mp_setup_packs(PyObject *module)
{
    PyObject *function = PyObject_GetAttrString(module, "rebuild_copy");
    int rc = function == NULL ? -1 : mp_make_global(&rebuilds_pack, function);

    Py_XDECREF(function);
    return rc;
}

/* ---- writing ---- */

int mp_write_pack(mp_pack *pack, mp_writer *to)
{
    enum { HANDLE = 2 + MPSHM_HANDLE_SIZE };
    mpshm_block block;

    if (mp_allocate(mp_strategy, pack->room != 0 ? pack->room : pack->nbytes, 0, &block) < 0)
        return 0;
    PyObject *handle = mp_make_handle(&block, MPSHM_COPY);
    char *at = handle ? mp_writer_room(to, rebuilds_pack.nbytes + HANDLE + 3) : NULL;
    if (at == NULL) {
        mpshm_block_release(&block);
    } else {
        pack->block = block;
        at = mp_put(at, rebuilds_pack.bytes, rebuilds_pack.nbytes);
        at = mp_put_sized(at, 'C', PyBytes_AsString(handle), MPSHM_HANDLE_SIZE);
        mp_put(at, "\x85R\x94", 3);
    }
    Py_XDECREF(handle);
    return at != NULL ? 1 : -1;
}

/* ---- reading ---- */

const char *mp_read_pack(mp_reader *from, uint64_t *nbytes)
{
    PyObject *memory;

    if (mp_take_these(from, rebuilds_pack.bytes, rebuilds_pack.nbytes)) {
        const unsigned char *at = mp_take_handle(from);
        if (at == NULL || !mp_take_these(from, "\x85R\x94", 3))
            return NULL;
        from->received = 1;
        PyObject *handle = PyBytes_FromStringAndSize((const char *)at, MPSHM_HANDLE_SIZE);
        memory = handle ? mp_memo_add(from, mp_py_rebuild_copy(NULL, handle)) : NULL;
        Py_XDECREF(handle);
    } else {
        memory = mp_memo_take(from);
    }
    if (memory == NULL)
        return NULL;
    if (PyByteArray_CheckExact(memory)) {
        *nbytes = (uint64_t)PyByteArray_Size(memory);
        return PyByteArray_AsString(memory);
    }
    if ((PyObject *)Py_TYPE(memory) != mp_block_type)
        return NULL;
    *nbytes = ((mp_buffer *)memory)->block.nbytes;
    return ((mp_buffer *)memory)->block.data;
}
