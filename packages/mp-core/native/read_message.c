/* Read the pickles of write_message.c without an unpickler.
 *
 * Every other pickle goes to Python's unpickler, even if it starts the same way. The unpickler also
 * says what is wrong with a damaged message. But a handle can be received once: after the first, an
 * error is final here, and the handles that were not received are discarded as by loads(). Only
 * write_message.c puts a handle after its function without a memo, so only damage leads there.
 *
 * A pickle is a program for a stack. */
#include <string.h>

#include "native.h"

enum { PROTO = 2, DEEPEST = 8 };

typedef struct {
    PyObject *stack[MP_OBJECTS + DEEPEST];
    int count;
    int marks[DEEPEST], mark_count;
} machine;

static PyObject *take_float(mp_reader *from)
{
    const unsigned char *at = mp_take(from, 8);
    uint64_t bits = 0;
    double value;

    for (int i = 0; at != NULL && i < 8; i++)
        bits = bits << 8 | at[i];
    memcpy(&value, &bits, sizeof(value));
    return at ? PyFloat_FromDouble(value) : NULL;
}

/* No longer ones are written here. */
static PyObject *take_sized(mp_reader *from, int width, PyObject *(*make)(const char *, Py_ssize_t))
{
    const unsigned char *at = mp_take(from, (size_t)width);
    uint64_t n = at ? mp_little_endian(at, width) : 0;

    at = at == NULL || n > MP_LONGEST_UTF8 ? NULL : mp_take(from, n);
    return at ? make((const char *)at, (Py_ssize_t)n) : NULL;
}

/* The object of an opcode that makes one; NULL, perhaps without an exception. */
static PyObject *made(mp_reader *from, unsigned char opcode)
{
    switch (opcode) {
    case 'G':
        return take_float(from);
    case 'N':
        return Py_NewRef(Py_None);
    case 0x88:
        return Py_NewRef(Py_True);
    case 0x89:
        return Py_NewRef(Py_False);
    case 0x8c:
        return take_sized(from, 1, PyUnicode_FromStringAndSize);
    case 'X':
        return take_sized(from, 4, PyUnicode_FromStringAndSize);
    case 'C':
        return take_sized(from, 1, PyBytes_FromStringAndSize);
    case 'B':
        return take_sized(from, 4, PyBytes_FromStringAndSize);
    case ')':
        return PyTuple_New(0);
    case ']':
        return PyList_New(0);
    case '}':
        return PyDict_New();
    default:
        return NULL;
    }
}

static int push(machine *m, PyObject *object)
{
    if (object == NULL)
        return -1;
    if (m->count == MP_OBJECTS + DEEPEST) {
        Py_DECREF(object);
        return -1;
    }
    m->stack[m->count++] = object;
    return 0;
}

static int push_mark(machine *m)
{
    if (m->mark_count == DEEPEST)
        return -1;
    m->marks[m->mark_count++] = m->count;
    return 0;
}

/* No opcode reaches below it. */
static int last_mark(const machine *m)
{
    return m->mark_count == 0 ? 0 : m->marks[m->mark_count - 1];
}

/* Replace the objects from position `from` on by a tuple of them. */
static int close_tuple(machine *m, int from)
{
    PyObject *tuple = from < last_mark(m) || from > m->count ? NULL : PyTuple_New(m->count - from);

    if (tuple == NULL)
        return -1;
    for (int i = from; i < m->count; i++)
        PyTuple_SetItem(tuple, i - from, m->stack[i]);
    m->count = from;
    return push(m, tuple);
}

/* Put the objects after the last mark into the list or dict before it. */
static int close_container(machine *m, int is_dict)
{
    int first = m->mark_count == 0 ? 0 : m->marks[--m->mark_count], rc = 0;
    PyObject *into = first <= last_mark(m) || first > m->count ? NULL : m->stack[first - 1];

    if (into == NULL || (is_dict ? !PyDict_CheckExact(into) || (m->count - first) % 2 != 0
                                 : !PyList_CheckExact(into)))
        return -1;
    for (int i = first; rc == 0 && i < m->count; i += is_dict ? 2 : 1)
        rc = is_dict ? PyDict_SetItem(into, m->stack[i], m->stack[i + 1])
                     : PyList_Append(into, m->stack[i]);
    while (m->count > first)
        Py_DECREF(m->stack[--m->count]);
    return rc;
}

static int step(machine *m, mp_reader *from)
{
    int64_t value;

    if (mp_take_number(from, &value))
        return push(m, PyLong_FromLongLong(value));
    PyObject *object = *from->at == 0x8c ? mp_read_registered(from) : NULL;
    if (object == NULL && !PyErr_Occurred() && *from->at == 0x8c)
        object = mp_read_large(from);
    if (object != NULL)
        return push(m, object);
    if (PyErr_Occurred())
        return -1;
    unsigned char opcode = *mp_take(from, 1);
    switch (opcode) {
    case '(':
        return push_mark(m);
    case 't':
        return m->mark_count == 0 ? -1 : close_tuple(m, m->marks[--m->mark_count]);
    case 0x85:
    case 0x86:
    case 0x87:
        return close_tuple(m, m->count - (opcode - 0x84));
    case 'e':
    case 'u':
        return close_container(m, opcode == 'u');
    default:
        return push(m, made(from, opcode));
    }
}

/* The object, or NULL, perhaps with an exception. */
static PyObject *run(mp_reader *from)
{
    machine m;
    int rc = 0;

    m.count = m.mark_count = 0; /* and not the whole stack, which takes time */
    while (rc == 0 && from->at < from->end)
        rc = step(&m, from);
    if (rc == 0 && m.count == 1 && m.mark_count == 0)
        return m.stack[0];
    while (m.count > 0)
        Py_DECREF(m.stack[--m.count]);
    return NULL;
}

PyObject *mp_read_message(PyObject *data)
{
    const char *bytes = PyBytes_AsString(data);
    Py_ssize_t nbytes = PyBytes_Size(data);

    if (nbytes < PROTO + 2 || memcmp(bytes, "\x80\x04", PROTO) != 0 || bytes[PROTO] == '\x95' ||
        bytes[nbytes - 1] != '.')
        return NULL; /* a pickler writes FRAME first */
    mp_reader from = {.at = (const unsigned char *)bytes + PROTO,
                      .end = (const unsigned char *)bytes + nbytes - 1};
    mp_receiving_begin();
    PyObject *object = run(&from);
    if (object == NULL && !from.received) {
        PyErr_Clear();
    } else if (object == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "the message is damaged: it ends in its middle, or "
                                              "has what no message of this kind has");
        object = mp_receiving_failed(data);
    }
    mp_receiving_end();
    return object;
}
