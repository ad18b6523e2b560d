/* Write the pickle of a small message: atoms, objects of types that another package writes (arrays,
 * mp_reductions), and tuples, lists and dicts of them.
 *
 *   PROTO 4 | items, each before the opcode of its container | STOP
 *
 * fits() has seen before that the message can be written, so what follows usually is: to begin and
 * give up would copy large arrays twice. To write an array may release the GIL, and another thread
 * may change a list or dict meanwhile; so each item is held, limits are looked at again, and a dict
 * of another size is left to the pickler, which raises. If the message is not written to its end,
 * the caller discards the handles. */
#include <string.h>

#include "native.h"

/* ---- the bytes ---- */

static int put(mp_writer *to, const void *bytes, size_t nbytes)
{
    char *at = mp_writer_room(to, nbytes);

    if (at == NULL)
        return -1;
    memcpy(at, bytes, nbytes);
    return 1;
}

static int put_opcode(mp_writer *to, char opcode)
{
    return put(to, &opcode, 1);
}

/* ---- atoms ---- */

static int put_int(mp_writer *to, PyObject *object)
{
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    char data[MP_NUMBER];

    return overflow ? 0 : put(to, data, (size_t)(mp_put_number(data, value) - data));
}

/* BINFLOAT: eight bytes, the highest first. */
static int put_float(mp_writer *to, PyObject *object)
{
    double value = PyFloat_AsDouble(object);
    uint64_t bits;
    char data[9] = "G";

    memcpy(&bits, &value, sizeof(bits));
    for (int i = 0; i < 8; i++)
        data[1 + i] = (char)(bits >> 8 * (7 - i));
    return put(to, data, sizeof(data));
}

/* The length in one byte after the first opcode, or in four after the second; and the bytes. */
static int put_sized(mp_writer *to, const char opcodes[2], const char *data, Py_ssize_t nbytes)
{
    if (data == NULL || nbytes > MP_LONGEST_UTF8) {
        PyErr_Clear(); /* half of a surrogate pair has no UTF-8: pickle has a way to write it */
        return 0;
    }
    int width = nbytes > UINT8_MAX ? 4 : 1;
    char *at = mp_writer_room(to, (size_t)(1 + width + nbytes));
    if (at == NULL)
        return -1;
    *at++ = opcodes[width == 4];
    at = mp_put_little_endian(at, (uint64_t)nbytes, width);
    memcpy(at, data, (size_t)nbytes);
    return 1;
}

/* 1 when written, 0 for an object that needs a pickler, -1 with an exception; so are all below. */
static int put_atom(mp_writer *to, PyObject *object)
{
    if (PyLong_CheckExact(object))
        return put_int(to, object);
    if (PyFloat_CheckExact(object))
        return put_float(to, object);
    if (object == Py_None)
        return put_opcode(to, 'N');
    if (object == Py_True || object == Py_False)
        return put_opcode(to, object == Py_True ? '\x88' : '\x89');
    Py_ssize_t n = 0;
    if (PyUnicode_CheckExact(object)) {
        const char *text = PyUnicode_AsUTF8AndSize(object, &n);
        return put_sized(to, "\x8cX", text, n);
    }
    if (PyBytes_CheckExact(object))
        return put_sized(to, "CB", PyBytes_AsString(object), PyBytes_Size(object));
    return 0;
}

/* ---- containers ---- */

static int put_object(mp_writer *to, PyObject *object, int depth);

/* The items of a tuple or list. */
static int put_items(mp_writer *to, PyObject *object, int is_tuple, int depth)
{
    for (Py_ssize_t i = 0; i < (is_tuple ? PyTuple_Size(object) : PyList_Size(object)); i++) {
        PyObject *item =
            Py_NewRef(is_tuple ? PyTuple_GetItem(object, i) : PyList_GetItem(object, i));
        int rc = put_object(to, item, depth);
        Py_DECREF(item);
        if (rc != 1)
            return rc;
    }
    return 1;
}

static int put_tuple(mp_writer *to, PyObject *object, int depth)
{
    static const char close[] = {')', '\x85', '\x86', '\x87'}; /* EMPTY_TUPLE, TUPLE1, ... */
    Py_ssize_t n = PyTuple_Size(object);
    int rc = n > 3 ? put_opcode(to, '(') : 1;

    if (rc == 1)
        rc = put_items(to, object, 1, depth);
    return rc == 1 ? put_opcode(to, n > 3 ? 't' : close[n]) : rc;
}

/* EMPTY_LIST, MARK, items, APPENDS */
static int put_list(mp_writer *to, PyObject *object, int depth)
{
    int rc = put(to, "](", 2);

    if (rc == 1)
        rc = put_items(to, object, 0, depth);
    return rc == 1 ? put_opcode(to, 'e') : rc;
}

/* EMPTY_DICT, MARK, keys and values, SETITEMS */
static int put_dict(mp_writer *to, PyObject *object, int depth)
{
    Py_ssize_t size = PyDict_Size(object), at = 0;
    PyObject *key, *value;
    int rc = put(to, "}(", 2);

    while (rc == 1 && PyDict_Next(object, &at, &key, &value)) {
        Py_INCREF(value);
        to->objects++;
        rc = put_atom(to, key);
        if (rc == 1)
            rc = put_object(to, value, depth);
        Py_DECREF(value);
        if (rc == 1 && PyDict_Size(object) != size)
            rc = 0;
    }
    return rc == 1 ? put_opcode(to, 'u') : rc;
}

static int put_object(mp_writer *to, PyObject *object, int depth)
{
    if (to->objects++ >= MP_OBJECTS)
        return 0;
    int rc = mp_is_large(object) ? mp_put_large(to, object) : put_atom(to, object);
    if (rc != 0)
        return rc;
    const mp_pickler *of = mp_pickler_of(object);
    if (of != NULL)
        return of->write(to, object);
    if (depth == 0)
        return 0;
    return PyTuple_CheckExact(object)  ? put_tuple(to, object, depth - 1)
           : PyList_CheckExact(object) ? put_list(to, object, depth - 1)
           : PyDict_CheckExact(object) ? put_dict(to, object, depth - 1)
                                       : 0;
}

int mp_write_message(mp_writer *to, PyObject *object)
{
    int rc = put(to, "\x80\x04", 2);

    if (rc == 1 && (rc = put_atom(to, object)) == 0 && (rc = mp_fits(to, object)) == 1) {
        mp_message message;
        mp_message_enter(&message);
        rc = put_object(to, object, MP_DEPTH);
        to->handles = mp_message_leave(&message);
    }
    return rc == 1 ? put_opcode(to, '.') : rc;
}
