/* The file to which a pickler writes a message: it puts large bytes into blocks.
 *
 * Note [A divided pickle]
 *   A pickler writes bytes, bytearrays, texts and in-band buffers of 64 KiB and more straight to
 * its file, each in one call of write() without a copy (PEP 3154 and 574). This file object, a
 *   PickleWriter, puts such a piece into a block and leaves the rest to a stream:
 *
 *     pickle    PROTO ... BINBYTES8 length | 10 MiB | MEMOIZE ... BYTEARRAY8 length | 1 MiB | ...
 * STOP stream    PROTO ... BINBYTES8 length          | MEMOIZE ... BYTEARRAY8 length         | ...
 * STOP places    (position in the stream, bytes of the length, handle), ...
 *
 *   A PickleReader (pickle_reader.c) puts the two together again, and an unpickler reads it as a
 * file: it has the pickle that multiprocessing alone would make, so memo, subclasses and reducers
 * are as ever. The unpickler reads the pieces straight from the blocks into the new objects
 * (readinto, or a memoryview of the block for texts).
 *
 *   Handles of arrays must stay in the stream, where native/memory/receive.c finds those of a lost
 * message. The pickler also writes frames of 64 KiB, which may have handles; these are told from
 * pieces by what was written before: the opcode of a piece and its length. Bytes of a frame that
 * look like that are harmless: the frame goes into a block, and the reader has the same pickle. */
#include <string.h>

#include "messages/messages.h"

enum { HEADER = 9 }; /* the opcode of a piece and its length in eight bytes; the shorter has four */

typedef struct {
    PyObject_HEAD
    PyObject *on_failure, *places;
    PyObject *stream; /* what was written, as bytes; NULL: nothing */
    PyObject *parts;  /* a list of them, if there are several */
    Py_ssize_t written;
    unsigned char last[HEADER]; /* what was written last, at its end */
} Writer;

/* The bytes of the length if the last bytes are the beginning of a piece of `nbytes`, otherwise 0.
 */
static int announced(const Writer *self, size_t nbytes)
{
    const unsigned char *narrow = self->last + HEADER - 5, *wide = self->last;

    if ((narrow[0] == 'B' || narrow[0] == 'X') && mp_little_endian(narrow + 1, 4) == nbytes)
        return 4;
    if ((wide[0] == 0x8d || wide[0] == 0x8e || wide[0] == 0x96) &&
        mp_little_endian(wide + 1, 8) == nbytes)
        return 8;
    return 0;
}

static void note_last(Writer *self, const unsigned char *data, size_t nbytes)
{
    if (nbytes < HEADER) {
        memmove(self->last, self->last + nbytes, HEADER - nbytes);
        memcpy(self->last + HEADER - nbytes, data, nbytes);
    } else {
        memcpy(self->last, data + nbytes - HEADER, HEADER);
    }
}

/* 1 when the piece is in a block, 0 if it has to stay in the stream, -1 with an exception. */
static int divert(Writer *self, PyObject *piece, const void *data, size_t nbytes, int width)
{
    /* A text comes as a memoryview of its memory, which does not change either. */
    int may_change = !PyBytes_CheckExact(piece) && Py_TYPE(piece) != &PyMemoryView_Type, rc = 0;
    PyObject *handle = mp_copy_large(data, nbytes, may_change, &rc), *place;

    if (handle == NULL && rc < 0) {
        PyObject *told = PyObject_CallFunction(self->on_failure, "in", -rc, (Py_ssize_t)nbytes);
        Py_XDECREF(told);
        return told == NULL ? -1 : 0;
    }
    place = handle ? Py_BuildValue("(niN)", self->written, width, handle) : NULL;
    if (self->places == NULL)
        self->places = PyList_New(0);
    int added = place == NULL || self->places == NULL ? -1 : PyList_Append(self->places, place);
    Py_XDECREF(place);
    return added < 0 ? -1 : 1;
}

/* Append to the stream. The pickler lets go of the bytes that it writes; others may change. */
static int append(Writer *self, PyObject *piece, const void *data, size_t nbytes)
{
    PyObject *part = PyBytes_CheckExact(piece)
                         ? Py_NewRef(piece)
                         : PyBytes_FromStringAndSize(data, (Py_ssize_t)nbytes);
    int rc = part == NULL ? -1 : 0;

    if (rc == 0 && self->stream == NULL) {
        self->stream = part;
        return 0;
    }
    if (rc == 0 && self->parts == NULL) {
        self->parts = PyList_New(0);
        rc = self->parts == NULL ? -1 : PyList_Append(self->parts, self->stream);
    }
    if (rc == 0)
        rc = PyList_Append(self->parts, part);
    Py_XDECREF(part);
    return rc;
}

/* write(data): take the next bytes of the pickle */
static PyObject *writer_write(PyObject *op, PyObject *piece)
{
    Writer *self = (Writer *)op;
    Py_buffer view;
    int rc = 0, width;

    if (PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    const unsigned char *data = view.buf;
    size_t nbytes = (size_t)view.len;
    PyBuffer_Release(&view); /* see large_bytes.c; the caller keeps the object */
    if (nbytes >= MP_LARGE && (width = announced(self, nbytes)) != 0)
        rc = divert(self, piece, data, nbytes, width);
    if (rc < 0)
        return NULL;
    if (rc == 1)
        return PyLong_FromSize_t(nbytes);
    note_last(self, data, nbytes);
    self->written += (Py_ssize_t)nbytes;
    return append(self, piece, data, nbytes) < 0 ? NULL : PyLong_FromSize_t(nbytes);
}

static PyObject *joined(PyObject *parts)
{
    PyObject *empty = PyBytes_FromStringAndSize(NULL, 0);
    PyObject *whole = empty ? PyObject_CallMethod(empty, "join", "(O)", parts) : NULL;

    Py_XDECREF(empty);
    return whole;
}

/* take() -> (stream, places): what was written; the next pickle begins */
static PyObject *writer_take(PyObject *op, PyObject *unused)
{
    Writer *self = (Writer *)op;
    PyObject *stream = self->parts != NULL    ? joined(self->parts)
                       : self->stream != NULL ? Py_NewRef(self->stream)
                                              : PyBytes_FromStringAndSize(NULL, 0);
    PyObject *places = self->places != NULL ? Py_NewRef(self->places) : PyList_New(0);

    Py_CLEAR(self->stream);
    Py_CLEAR(self->parts);
    Py_CLEAR(self->places);
    self->written = 0;
    memset(self->last, 0, sizeof(self->last));
    if (stream != NULL && places != NULL)
        return Py_BuildValue("(NN)", stream, places);
    Py_XDECREF(stream);
    Py_XDECREF(places);
    return NULL;
}

/* PickleWriter(on_failure): a function called with (errno, number of bytes) of a piece that stays
 * in the stream. A place is (position, bytes of the length, handle) of a piece in a block. */
static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *on_failure;

    if (!PyArg_ParseTuple(args, "O:PickleWriter", &on_failure))
        return NULL;
    Writer *self = mp_new(type);
    if (self != NULL)
        self->on_failure = Py_NewRef(on_failure);
    return (PyObject *)self;
}

static int writer_traverse(PyObject *op, visitproc visit, void *arg)
{
    Writer *self = (Writer *)op;

    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->on_failure);
    Py_VISIT(self->places);
    Py_VISIT(self->stream);
    Py_VISIT(self->parts);
    return 0;
}

static int writer_clear(PyObject *op)
{
    Writer *self = (Writer *)op;

    Py_CLEAR(self->on_failure);
    Py_CLEAR(self->places);
    Py_CLEAR(self->stream);
    Py_CLEAR(self->parts);
    return 0;
}

static void writer_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    writer_clear(op);
    mp_free(op);
}

static PyMethodDef writer_methods[] = {
    {"write", writer_write, METH_O, "Take the next bytes of the pickle."},
    {"take", writer_take, METH_NOARGS, "Return (stream, places), and begin the next pickle."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot writer_slots[] = {
    {Py_tp_doc, "The file to which a pickler writes: large bytes go into blocks."},
    {Py_tp_new, writer_new},
    {Py_tp_dealloc, writer_dealloc},
    {Py_tp_traverse, writer_traverse},
    {Py_tp_clear, writer_clear},
    {Py_tp_methods, writer_methods},
    {0, NULL},
};

int mp_add_pickle_writer(PyObject *module)
{
    PyObject *type = mp_add_type(module, "mp_core._block.PickleWriter", sizeof(Writer),
                                 Py_TPFLAGS_HAVE_GC, writer_slots);

    Py_XDECREF(type);
    return type == NULL ? -1 : 0;
}
