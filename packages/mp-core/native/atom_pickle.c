/* The pickle of one number, short text, None, True or False, written and read without a pickler.
 *
 *   PROTO 4 | opcode, value | STOP
 *
 * A pickler and an unpickler cost ten times as much as this. Any unpickler reads these pickles. */
#include <string.h>

#include "native.h"

enum { PROTO = 2, SHORT = 255, ROOM = PROTO + 9 + 1 };

static PyObject *pickled(char opcode, const void *value, size_t nbytes)
{
    char data[ROOM] = "\x80\x04";

    data[PROTO] = opcode;
    memcpy(data + PROTO + 1, value, nbytes);
    data[PROTO + 1 + nbytes] = '.';
    return PyBytes_FromStringAndSize(data, (Py_ssize_t)(PROTO + 1 + nbytes + 1));
}

/* BININT1, BININT2 or BININT, which are little-endian. */
static PyObject *pickle_int(PyObject *object)
{
    int overflow;
    long value = PyLong_AsLongAndOverflow(object, &overflow);

    if (overflow || value < INT32_MIN || value > INT32_MAX)
        return NULL;
    unsigned char bytes[4];
    for (int i = 0; i < 4; i++)
        bytes[i] = (unsigned char)((unsigned long)value >> 8 * i);
    if (value < 0 || value > UINT16_MAX)
        return pickled('J', bytes, 4);
    return value > UINT8_MAX ? pickled('M', bytes, 2) : pickled('K', bytes, 1);
}

/* BINFLOAT: eight bytes, the highest first. */
static PyObject *pickle_float(PyObject *object)
{
    double value = PyFloat_AsDouble(object);
    uint64_t bits;
    unsigned char bytes[8];

    memcpy(&bits, &value, sizeof(bits));
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(bits >> 8 * (7 - i));
    return pickled('G', bytes, 8);
}

/* SHORT_BINUNICODE or SHORT_BINBYTES: the length in one byte. */
static PyObject *pickle_short(char opcode, const char *data, Py_ssize_t nbytes)
{
    if (data == NULL || nbytes > SHORT) {
        PyErr_Clear(); /* half of a surrogate pair has no UTF-8: pickle has a way to write it */
        return NULL;
    }
    PyObject *made = PyBytes_FromStringAndSize(NULL, PROTO + 2 + nbytes + 1);
    if (made == NULL)
        return NULL;
    char *at = PyBytes_AsString(made);
    memcpy(at, "\x80\x04", PROTO);
    at[PROTO] = opcode;
    at[PROTO + 1] = (char)nbytes;
    memcpy(at + PROTO + 2, data, (size_t)nbytes);
    at[PROTO + 2 + nbytes] = '.';
    return made;
}

PyObject *mp_pickle_atom(PyObject *object)
{
    if (PyLong_CheckExact(object))
        return pickle_int(object);
    if (PyFloat_CheckExact(object))
        return pickle_float(object);
    if (object == Py_None)
        return pickled('N', "", 0);
    if (object == Py_True || object == Py_False)
        return pickled(object == Py_True ? '\x88' : '\x89', "", 0);
    Py_ssize_t n = 0;
    if (PyUnicode_CheckExact(object)) {
        if (PyUnicode_GetLength(object) > SHORT)
            return NULL;
        const char *text = PyUnicode_AsUTF8AndSize(object, &n);
        return pickle_short('\x8c', text, n);
    }
    if (PyBytes_CheckExact(object))
        return pickle_short('C', PyBytes_AsString(object), PyBytes_Size(object));
    return NULL;
}

static double float_of(const unsigned char *bytes)
{
    uint64_t bits = 0;
    double value;

    for (int i = 0; i < 8; i++)
        bits = bits << 8 | bytes[i];
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static PyObject *int_of(const unsigned char *bytes, Py_ssize_t nbytes)
{
    uint32_t value = 0;

    for (Py_ssize_t i = 0; i < nbytes; i++)
        value |= (uint32_t)bytes[i] << 8 * i;
    return PyLong_FromLong(nbytes == 4 ? (int32_t)value : (long)value);
}

PyObject *mp_unpickle_atom(const char *data, Py_ssize_t nbytes)
{
    const unsigned char *at = (const unsigned char *)data + PROTO;
    Py_ssize_t n = nbytes - PROTO - 2; /* of the value */

    if (n < 0 || data[0] != '\x80' || data[1] != 4 || data[nbytes - 1] != '.')
        return NULL;
    switch (*at++) {
    case 'K':
        return n == 1 ? int_of(at, 1) : NULL;
    case 'M':
        return n == 2 ? int_of(at, 2) : NULL;
    case 'J':
        return n == 4 ? int_of(at, 4) : NULL;
    case 'G':
        return n == 8 ? PyFloat_FromDouble(float_of(at)) : NULL;
    case 'N':
        return n == 0 ? Py_NewRef(Py_None) : NULL;
    case 0x88:
        return n == 0 ? Py_NewRef(Py_True) : NULL;
    case 0x89:
        return n == 0 ? Py_NewRef(Py_False) : NULL;
    case 0x8c:
        return n >= 1 && n == 1 + at[0] ? PyUnicode_FromStringAndSize((const char *)at + 1, n - 1)
                                        : NULL;
    case 'C':
        return n >= 1 && n == 1 + at[0] ? PyBytes_FromStringAndSize((const char *)at + 1, n - 1)
                                        : NULL;
    default:
        return NULL;
    }
}
