/* Blocks with a number in the memo of a pickle: packs, and those of which a message has views.
 *
 * Note [Views]
 *   Two slices of one array have one Block when they arrive. So it is written once:
 *
 *     rebuild_view ( rebuild_block handle TUPLE1 REDUCE MEMOIZE   name shape offset strides ...
 *     rebuild_view ( BINGET                                       name shape offset strides ...
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
#include "memory/memory.h"
#include "messages/messages.h"
#include "messages/objects.h"
#include "messages/plan.h"

static mp_global rebuilds_pack, rebuilds_block; /* rebuild_copy, rebuild_block */

int mp_setup_packs(PyObject *module)
{
    return mp_find_global(&rebuilds_pack, module, "rebuild_copy") < 0
               ? -1
               : mp_find_global(&rebuilds_block, module, "rebuild_block");
}

/* ---- writing ---- */

/* The call that makes the object of a handle, which may be NULL with an exception; MEMOIZE. */
static int put_call(mp_writer *to, const mp_global *rebuild, PyObject *handle)
{
    enum { HANDLE = 2 + MPSHM_HANDLE_SIZE };
    char *at = handle ? mp_writer_room(to, rebuild->nbytes + HANDLE + 3) : NULL;

    if (at != NULL) {
        at = mp_put(at, rebuild->bytes, rebuild->nbytes);
        at = mp_put_sized(at, 'C', PyBytes_AsString(handle), MPSHM_HANDLE_SIZE);
        mp_put(at, "\x85R\x94", 3);
    }
    Py_XDECREF(handle);
    return at != NULL ? 1 : -1;
}

int mp_write_pack(mp_pack *pack, mp_writer *to)
{
    mpshm_block block;

    if (mp_allocate(mp_strategy, pack->room != 0 ? pack->room : pack->nbytes, 0, &block) < 0)
        return 0;
    int rc = put_call(to, &rebuilds_pack, mp_make_handle(&block, MPSHM_COPY));
    if (rc < 0) {
        mpshm_block_release(&block);
        return rc;
    }
    pack->block = block;
    if (pack->room == 0)
        mp_count_copied(pack->nbytes);
    return 1;
}

int mp_write_block(const mp_entry *entry, mp_writer *to)
{
    return put_call(to, &rebuilds_block, mp_make_handle(&entry->place.block, 0));
}

/* ---- reading ---- */

/* The object of a call that put_call() has written, or of a number; borrowed. */
static PyObject *take_call(mp_reader *from, const mp_global *rebuild,
                           PyObject *(*make)(PyObject *, PyObject *))
{
    if (!mp_take_these(from, rebuild->bytes, rebuild->nbytes))
        return mp_memo_take(from);
    const unsigned char *at = mp_take_handle(from);
    if (at == NULL || !mp_take_these(from, "\x85R\x94", 3))
        return NULL;
    from->received = 1;
    PyObject *handle = PyBytes_FromStringAndSize((const char *)at, MPSHM_HANDLE_SIZE);
    PyObject *object = handle ? mp_memo_add(from, make(NULL, handle)) : NULL;
    Py_XDECREF(handle);
    return object;
}

PyObject *mp_read_block(mp_reader *from)
{
    PyObject *block = take_call(from, &rebuilds_block, mp_py_rebuild_block);

    return block != NULL && (PyObject *)Py_TYPE(block) == mp_block_type ? block : NULL;
}

const char *mp_read_pack(mp_reader *from, uint64_t *nbytes)
{
    PyObject *memory = take_call(from, &rebuilds_pack, mp_py_rebuild_copy);

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
