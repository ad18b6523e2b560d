/* Many tensors in one message: their blocks, handles and copies, each for all tensors in one call.
 *
 * Note [Handles of a table]
 *   A handle follows the opcode that pickle would write, so that a message that cannot be read has
 *   its blocks freed (receive.c). */
#include <errno.h>
#include <string.h>

#include "dlpack.h"

static const unsigned char opcode[2] = {'C', MPSHM_HANDLE_SIZE}; /* SHORT_BINBYTES, length */

enum { STEP = sizeof(opcode) + MPSHM_HANDLE_SIZE };

int mp_find_block(const void *at, mpshm_block *block)
{
    int rc = mpshm_block_find(at, MPSHM_NOWAIT, block);

    if (rc == -EAGAIN) {
        Py_BEGIN_ALLOW_THREADS rc = mpshm_block_find(at, 0, block);
        Py_END_ALLOW_THREADS
    }
    return rc;
}

/* find_private([address], [bytes]) -> the positions of addresses in no block; None if one is in a
 * block but these bytes are not all of it */
PyObject *mp_py_find_private(PyObject *module, PyObject *args)
{
    PyObject *addresses, *sizes;
    (void)module;

    if (!PyArg_ParseTuple(args, "O!O!:find_private", &PyList_Type, &addresses, &PyList_Type,
                          &sizes))
        return NULL;
    PyObject *positions = PyList_New(0);
    for (Py_ssize_t i = 0; positions != NULL && i < PyList_Size(addresses); i++) {
        mpshm_block block;
        PyObject *address = PyList_GetItem(addresses, i), *size = PyList_GetItem(sizes, i);
        if (size != NULL && mp_find_block(PyLong_AsVoidPtr(address), &block) == 0) {
            int whole = block.data == PyLong_AsVoidPtr(address) &&
                        block.nbytes == PyLong_AsUnsignedLongLong(size);
            mpshm_block_release(&block);
            if (!whole && !PyErr_Occurred()) {
                Py_DECREF(positions);
                Py_RETURN_NONE;
            }
        } else if (size != NULL) {
            PyObject *position = PyLong_FromSsize_t(i);
            if (position == NULL || PyList_Append(positions, position) < 0)
                Py_CLEAR(positions);
            Py_XDECREF(position);
        }
        if (PyErr_Occurred())
            Py_CLEAR(positions);
    }
    return positions;
}

/* handles_at([address]) -> the handles of the blocks there, each after its opcode */
PyObject *mp_py_handles_at(PyObject *module, PyObject *addresses)
{
    Py_ssize_t count = PyList_Size(addresses);
    PyObject *handles = count < 0 ? NULL : PyBytes_FromStringAndSize(NULL, STEP * count);
    char *to = handles ? PyBytes_AsString(handles) : NULL;
    (void)module;

    for (Py_ssize_t i = 0; handles != NULL && i < count; i++, to += STEP) {
        mpshm_block block;
        PyObject *address = PyList_GetItem(addresses, i), *handle = NULL;
        int rc = address ? mp_find_block(PyLong_AsVoidPtr(address), &block) : -ENOENT;
        if (rc == 0) {
            handle = mp_make_handle(&block, 0);
            mpshm_block_release(&block);
        } else if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_RuntimeError, "a tensor was resized while it was sent");
        }
        if (handle == NULL) {
            Py_CLEAR(handles);
        } else {
            memcpy(to, opcode, sizeof(opcode));
            memcpy(to + sizeof(opcode), PyBytes_AsString(handle), MPSHM_HANDLE_SIZE);
            Py_DECREF(handle);
        }
    }
    return handles;
}

/* copies_of(exchange, [address], [bytes]) -> [tensor of unsigned bytes], each over a new block; or
 * -errno as an int. The caller keeps the memory at the addresses alive. */
PyObject *mp_py_copies_of(PyObject *module, PyObject *args)
{
    PyObject *capsule, *addresses, *sizes;
    int rc = 0;
    (void)module;

    if (!PyArg_ParseTuple(args, "OO!O!:copies_of", &capsule, &PyList_Type, &addresses, &PyList_Type,
                          &sizes))
        return NULL;
    const dl_exchange *exchange = mp_dl_exchange(capsule);
    Py_ssize_t count = PyList_Size(addresses);
    PyObject *tensors = exchange ? PyList_New(count) : NULL;
    for (Py_ssize_t i = 0; tensors != NULL && rc == 0 && i < count; i++) {
        mpshm_block block;
        PyObject *address = PyList_GetItem(addresses, i), *size = PyList_GetItem(sizes, i);
        PyObject *tensor = NULL;
        const void *from = address ? PyLong_AsVoidPtr(address) : NULL;
        int64_t nbytes = size ? PyLong_AsLongLong(size) : -1;
        if (!PyErr_Occurred())
            rc = mp_copy_to_block(from, (uint64_t)nbytes, &block);
        if (rc == 0 && !PyErr_Occurred())
            tensor =
                mp_dl_tensor_over(exchange, &block, (dl_record){DL_UNSIGNED, 8, 1, 0}, &nbytes);
        if (tensor != NULL)
            PyList_SetItem(tensors, i, tensor);
        else
            Py_CLEAR(tensors);
    }
    return rc < 0 ? PyLong_FromLong(rc) : tensors;
}

/* ---- receiving ---- */

typedef struct {
    const char *at, *end;
    dl_record record;
    int64_t dims[DL_DIMS];
    int nd; /* of the last shape, -1 before the first */
} layout_reader;

static int next_record(layout_reader *from)
{
    dl_record *r = &from->record;

    if (from->end - from->at < (Py_ssize_t)sizeof(*r))
        return -1;
    memcpy(r, from->at, sizeof(*r));
    from->at += sizeof(*r);
    size_t shape = r->same_shape ? 0 : r->nd * sizeof(from->dims[0]);
    if (r->bits == 0 || r->bits % 8 != 0 || r->nd > DL_DIMS ||
        (r->same_shape ? r->nd != from->nd : (size_t)(from->end - from->at) < shape))
        return -1;
    memcpy(from->dims, from->at, shape);
    from->at += shape;
    from->nd = r->nd;
    return 0;
}

int mp_take_block(const char *handle, mpshm_block *block)
{
    int rc;
    PyObject *bytes = PyBytes_FromStringAndSize(handle, MPSHM_HANDLE_SIZE);
    PyObject *received = bytes ? mp_receive_block(bytes, &rc) : NULL;

    if (received != NULL) { /* take its reference, and leave an empty one */
        *block = ((mp_buffer *)received)->block;
        memset(&((mp_buffer *)received)->block, 0, sizeof(*block));
        Py_DECREF(received);
    } else if (bytes != NULL) {
        mp_refuse(bytes, rc);
    }
    Py_XDECREF(bytes);
    return received != NULL ? 0 : -1;
}

/* receive_tensors(exchange, handles, layout) -> ([tensor], [address]) */
PyObject *mp_py_receive_tensors(PyObject *module, PyObject *args)
{
    PyObject *capsule;
    const char *handles, *records;
    Py_ssize_t length, size;
    (void)module;

    if (!PyArg_ParseTuple(args, "Oy#y#:receive_tensors", &capsule, &handles, &length, &records,
                          &size))
        return NULL;
    const dl_exchange *exchange = mp_dl_exchange(capsule);
    if (exchange == NULL)
        return NULL;
    Py_ssize_t count = length / STEP;
    layout_reader from = {.at = records, .end = records + size, .nd = -1};
    int damaged = length % STEP != 0; /* found before anything is received */
    for (Py_ssize_t i = 0; !damaged && i < count; i++)
        damaged = memcmp(handles + STEP * i, opcode, sizeof(opcode)) != 0 || next_record(&from) < 0;
    if (damaged || from.at != from.end)
        return PyErr_Format(
            PyExc_ValueError,
            "the message of tensors is damaged: its %zd handles do not fit its %zd bytes of shapes",
            count, size);
    from = (layout_reader){.at = records, .end = records + size, .nd = -1};
    PyObject *tensors = PyList_New(count), *addresses = PyList_New(count), *both = NULL;
    int ok = tensors != NULL && addresses != NULL;
    for (Py_ssize_t i = 0; ok && i < count; i++) {
        mpshm_block block;
        PyObject *address = NULL, *tensor = NULL;
        ok = next_record(&from) == 0 &&
             mp_take_block(handles + STEP * i + sizeof(opcode), &block) == 0;
        if (ok) {
            address = PyLong_FromVoidPtr(block.data);
            tensor = mp_dl_tensor_over(exchange, &block, from.record, from.dims);
            ok = address != NULL && tensor != NULL;
            PyList_SetItem(addresses, i, address);
            PyList_SetItem(tensors, i, tensor);
        }
    }
    if (ok)
        both = PyTuple_Pack(2, tensors, addresses);
    Py_XDECREF(tensors);
    Py_XDECREF(addresses);
    return both;
}
