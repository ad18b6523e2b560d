/* The tensors of a table: handles and layout of many, and many from these (table.py).
 *
 * Note [Handles of a table]
 *   A handle follows the opcode that pickle would write, so that a message that cannot be read has
 *   its blocks freed (mp-core's receive.c). */
#include <string.h>

#include "native.h"

static const unsigned char opcode[2] = {'C', MPSHM_HANDLE_SIZE}; /* SHORT_BINBYTES, length */

enum { STEP = sizeof(opcode) + MPSHM_HANDLE_SIZE };

/* ---- sending ---- */

typedef struct {
    unsigned char *bytes;
    size_t used, room;
    int64_t dims[DL_DIMS]; /* the shape of the last record */
    int nd;                /* -1 before the first */
} layout;

static int add_record(layout *to, const dl_shape *t)
{
    dl_record r = t->record;
    size_t shape = r.nd * sizeof(t->dims[0]), needed = sizeof(r) + shape;

    if (to->used + needed > to->room) {
        size_t room = 2 * (to->room + needed);
        unsigned char *bytes = PyMem_Realloc(to->bytes, room);
        if (bytes == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        to->bytes = bytes;
        to->room = room;
    }
    r.same_shape = to->nd == r.nd && memcmp(to->dims, t->dims, shape) == 0;
    memcpy(to->bytes + to->used, &r, sizeof(r));
    to->used += sizeof(r);
    if (!r.same_shape) {
        memcpy(to->bytes + to->used, t->dims, shape);
        memcpy(to->dims, t->dims, shape);
        to->used += shape;
        to->nd = r.nd;
    }
    return 0;
}

/* Retain the block of a tensor, and describe it: 1, 0 if it needs its reducer, or -1 with an
 * exception. */
static int describe(PyObject *tensor, mpshm_block *block, layout *to)
{
    dl_shape shape;

    if (!mp_tensor_is_plain(tensor, &shape)) {
        if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
            return -1; /* of a signal handler */
        PyErr_Clear(); /* the pickler says what is wrong with the tensor */
        return 0;
    }
    int rc = mp_block_of_tensor(tensor, &shape, block);
    if (rc == 1 && add_record(to, &shape) < 0) {
        mp_core.block_release(block);
        rc = -1;
    }
    return rc;
}

/* The handles of the blocks, each after its opcode. */
static PyObject *handles_of(const mpshm_block *blocks, Py_ssize_t count)
{
    PyObject *handles = PyBytes_FromStringAndSize(NULL, STEP * count);
    char *to = handles ? PyBytes_AsString(handles) : NULL;

    for (Py_ssize_t i = 0; handles != NULL && i < count; i++) {
        PyObject *handle = mp_core.make_handle(&blocks[i], 0);
        if (handle == NULL) {
            Py_CLEAR(handles); /* the failed message discards the others */
        } else {
            to = mp_put(to, opcode, sizeof(opcode));
            to = mp_put(to, PyBytes_AsString(handle), MPSHM_HANDLE_SIZE);
            Py_DECREF(handle);
        }
    }
    return handles;
}

/* pack_tensors([tensor]) -> (handles, layout, [position of a tensor that needs its reducer]). The
 * storages of the others are in blocks afterwards. */
PyObject *mp_py_pack_tensors(PyObject *module, PyObject *tensors)
{
    Py_ssize_t n = PyList_Size(tensors), count = 0;
    mpshm_block *blocks = n < 0 ? NULL : PyMem_Malloc(((size_t)n + 1) * sizeof(*blocks));
    PyObject *others = PyList_New(0), *result = NULL;
    layout made = {.nd = -1};
    int rc = blocks != NULL && others != NULL ? 0 : -1;
    (void)module;

    for (Py_ssize_t i = 0; rc >= 0 && i < n; i++) {
        PyObject *tensor = Py_XNewRef(PyList_GetItem(tensors, i));
        rc = tensor ? describe(tensor, &blocks[count], &made) : -1;
        Py_XDECREF(tensor);
        if (rc == 0) {
            PyObject *position = PyLong_FromSsize_t(i);
            rc = position ? PyList_Append(others, position) : -1;
            Py_XDECREF(position);
        } else if (rc == 1) {
            count++;
        }
    }
    PyObject *handles = rc >= 0 ? handles_of(blocks, count) : NULL;
    if (handles != NULL)
        result = Py_BuildValue("(Oy#O)", handles, made.bytes ? (char *)made.bytes : "",
                               (Py_ssize_t)made.used, others);
    while (count > 0)
        mp_core.block_release(&blocks[--count]);
    PyMem_Free(blocks);
    PyMem_Free(made.bytes);
    Py_XDECREF(handles);
    Py_XDECREF(others);
    return result != NULL || PyErr_Occurred() ? result : PyErr_NoMemory();
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

/* receive_tensors(handles, layout) -> [tensor] */
PyObject *mp_py_receive_tensors(PyObject *module, PyObject *args)
{
    const char *handles, *records;
    Py_ssize_t length, size;
    (void)module;

    if (!PyArg_ParseTuple(args, "y#y#:receive_tensors", &handles, &length, &records, &size))
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
    PyObject *tensors = PyList_New(count);
    for (Py_ssize_t i = 0; tensors != NULL && i < count; i++) {
        next_record(&from);
        PyObject *tensor =
            mp_tensor_arrived(handles + STEP * i + sizeof(opcode), from.record, from.dims);
        if (tensor == NULL)
            Py_CLEAR(tensors);
        else
            PyList_SetItem(tensors, i, tensor);
    }
    return tensors;
}
