/* The file from which an unpickler reads a divided pickle; see pickle_writer.c, Note [A divided
 * pickle]. */
#include <string.h>

#include "memory/memory.h"
#include "messages/messages.h"

typedef struct {
    PyObject_HEAD
    PyObject *pieces;         /* memoryviews, in their order */
    PyObject *piece;          /* the one that is being read; it is in the list */
    Py_ssize_t next, at, end; /* of the piece after it; in the piece */
} Reader;

/* Go to the next piece with bytes, if this one has none left. 0 at the end of all. */
static int advance(Reader *self)
{
    while (self->at == self->end && self->next < PyList_Size(self->pieces)) {
        self->piece = PyList_GetItem(self->pieces, self->next++);
        self->at = 0;
        self->end = PyObject_Size(self->piece);
    }
    return self->at < self->end;
}

static Py_ssize_t least(Py_ssize_t a, Py_ssize_t b)
{
    return a < b ? a : b;
}

/* Copy up to `n` bytes of this piece. -1 with an exception. */
static Py_ssize_t copy_some(Reader *self, char *to, Py_ssize_t n)
{
    Py_buffer view;

    if (PyObject_GetBuffer(self->piece, &view, PyBUF_SIMPLE) < 0)
        return -1;
    n = least(n, view.len - self->at);
    const char *from = (const char *)view.buf + self->at;
    if (n < MP_RELEASE_GIL_BYTES) {
        memcpy(to, from, (size_t)n);
    } else {
        Py_BEGIN_ALLOW_THREADS
        memcpy(to, from, (size_t)n);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&view);
    self->at += n;
    return n;
}

static Py_ssize_t copy_all(Reader *self, char *to, Py_ssize_t n)
{
    Py_ssize_t done = 0, some;

    while (done < n && advance(self)) {
        if ((some = copy_some(self, to + done, n - done)) < 0)
            return -1;
        done += some;
    }
    return done;
}

/* readinto(memory) -> how many bytes */
static PyObject *reader_readinto(PyObject *op, PyObject *into)
{
    Py_buffer view;

    if (PyObject_GetBuffer(into, &view, PyBUF_WRITABLE) < 0)
        return NULL;
    Py_ssize_t done = copy_all((Reader *)op, view.buf, view.len);
    PyBuffer_Release(&view);
    if (done >= MP_LARGE)
        mp_count_copied((unsigned long long)done);
    return done < 0 ? NULL : PyLong_FromSsize_t(done);
}

static PyObject *slice(const Reader *self, Py_ssize_t n)
{
    return PySequence_GetSlice(self->piece, self->at, self->at + n);
}

/* read(n) -> memory with n bytes, without a copy where they are in one piece; fewer at the end */
static PyObject *reader_read(PyObject *op, PyObject *number)
{
    Reader *self = (Reader *)op;
    Py_ssize_t n = PyNumber_AsSsize_t(number, PyExc_OverflowError);

    if (n == -1 && PyErr_Occurred())
        return NULL;
    if (n <= 0 || !advance(self))
        return PyBytes_FromStringAndSize(NULL, 0);
    if (n <= self->end - self->at) {
        PyObject *part = slice(self, n);
        self->at += n;
        if (n >= MP_LARGE)
            mp_count_copied((unsigned long long)n); /* a text is made of it */
        return part;
    }
    /* Only damage leads here: no opcode has bytes of two pieces. */
    PyObject *parts = PyByteArray_FromStringAndSize(NULL, 0);
    while (parts != NULL && n > 0 && advance(self)) {
        Py_ssize_t had = PyByteArray_Size(parts), some = least(n, self->end - self->at);
        if (PyByteArray_Resize(parts, had + some) < 0 ||
            copy_some(self, PyByteArray_AsString(parts) + had, some) < 0)
            Py_CLEAR(parts);
        n -= some;
    }
    return parts;
}

/* peek(n) -> the rest of this piece; nothing is taken */
static PyObject *reader_peek(PyObject *op, PyObject *number)
{
    Reader *self = (Reader *)op;
    Py_ssize_t n = PyNumber_AsSsize_t(number, NULL);

    if (n == -1 && PyErr_Occurred())
        return NULL;
    return self->piece == NULL ? PyBytes_FromStringAndSize(NULL, 0)
                               : slice(self, least(n, self->end - self->at));
}

/* readline() -> a line; no opcode of this protocol has one, but an unpickler wants the method */
static PyObject *reader_readline(PyObject *op, PyObject *unused)
{
    Reader *self = (Reader *)op;
    PyObject *line = PyByteArray_FromStringAndSize(NULL, 0);
    char last = 0;

    while (line != NULL && last != '\n' && advance(self)) {
        Py_ssize_t had = PyByteArray_Size(line);
        if (copy_some(self, &last, 1) < 0 || PyByteArray_Resize(line, had + 1) < 0)
            Py_CLEAR(line);
        else
            PyByteArray_AsString(line)[had] = last;
    }
    return line;
}

static int add_piece(PyObject *pieces, PyObject *memory, Py_ssize_t from, Py_ssize_t to)
{
    PyObject *view = memory ? PyMemoryView_FromObject(memory) : NULL;
    PyObject *part = view ? PySequence_GetSlice(view, from, to) : NULL;
    int rc = part ? PyList_Append(pieces, part) : -1;

    Py_XDECREF(part);
    Py_XDECREF(view);
    return rc;
}

/* The stream, cut at the places, with the memory of each place between. */
static PyObject *arranged(PyObject *stream, PyObject *places)
{
    PyObject *pieces = PyList_New(0), *memory;
    Py_ssize_t from = 0, to, end = PyBytes_Size(stream);
    int width, rc = pieces == NULL ? -1 : 0;

    for (Py_ssize_t i = 0; rc == 0 && i < PyList_Size(places); i++) {
        PyObject *place = PyList_GetItem(places, i);
        if (!PyTuple_Check(place) || !PyArg_ParseTuple(place, "niO", &to, &width, &memory)) {
            rc = -1;
        } else if (to < from || to > end) {
            PyErr_Format(PyExc_ValueError,
                         "the message is damaged: a part of it belongs at byte %zd of %zd", to,
                         end);
            rc = -1;
        } else {
            rc = add_piece(pieces, stream, from, to);
            if (rc == 0)
                rc = add_piece(pieces, memory, 0, PY_SSIZE_T_MAX);
        }
        from = to;
    }
    if (rc == 0)
        rc = add_piece(pieces, stream, from, end);
    if (rc < 0)
        Py_CLEAR(pieces);
    return pieces;
}

/* PickleReader(stream, [(position, bytes of the length, memory), ...]) */
static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *stream, *places;

    if (!PyArg_ParseTuple(args, "SO!:PickleReader", &stream, &PyList_Type, &places))
        return NULL;
    PyObject *pieces = arranged(stream, places);
    Reader *self = pieces ? mp_new(type) : NULL;
    if (self == NULL)
        Py_XDECREF(pieces);
    else
        self->pieces = pieces;
    return (PyObject *)self;
}

static int reader_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((Reader *)op)->pieces);
    return 0;
}

static int reader_clear(PyObject *op)
{
    Reader *self = (Reader *)op;

    self->piece = NULL;
    self->at = self->end = self->next = 0;
    Py_CLEAR(self->pieces);
    return 0;
}

static void reader_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    reader_clear(op);
    mp_free(op);
}

static PyMethodDef reader_methods[] = {
    {"read", reader_read, METH_O, "Return the next bytes."},
    {"readinto", reader_readinto, METH_O, "Copy the next bytes into memory."},
    {"readline", reader_readline, METH_NOARGS, "Return the bytes up to the next line feed."},
    {"peek", reader_peek, METH_O, "Return the next bytes and take none."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_doc, "The file from which an unpickler reads a divided pickle."},
    {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_traverse, reader_traverse},
    {Py_tp_clear, reader_clear},
    {Py_tp_methods, reader_methods},
    {0, NULL},
};

int mp_add_pickle_reader(PyObject *module)
{
    PyObject *type = mp_add_type(module, "mp_core._block.PickleReader", sizeof(Reader),
                                 Py_TPFLAGS_HAVE_GC, reader_slots);

    Py_XDECREF(type);
    return type == NULL ? -1 : 0;
}
