/* The dtypes of the fast path, and their names in messages.
 *
 * Nearly every array has a dtype that is a single object per process, with a character of its own
 * ('d', 'i', '?'). Of the others those are here that their `str` describes completely: dates and
 * durations with a unit, texts and bytes of a length, numbers of the other byte order. NumPy makes
 * a new object for each of these, so they are looked up by their address first. A dtype that only
 * equals one of them has no name: it may have metadata, which NumPy's == ignores. */
#include <string.h>

#include "native.h"

enum {
    OBJECTS = 16, /* that are known by their address */
    RECENT = 8,   /* names that are found without a dict */
    MOST = 4096,  /* names that this process gives; arrays of further dtypes take the slow path */
};

mp_dtype mp_dtype_of_char[MP_DTYPE_CHARS];
static PyObject *of_name; /* {name: the address of its entry} */
static const mp_dtype *recent[RECENT];
static unsigned recent_at;

static struct {
    PyObject *descr;       /* held: so no other has its address */
    const mp_dtype *dtype; /* NULL for one without a name */
} seen[OBJECTS];

static PyObject *name_of, *from_name; /* functions of array.py */

/* Make an entry of a name: 0, or -1. */
static int fill(mp_dtype *dtype, PyObject *descr, PyObject *name)
{
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(name, &length);

    if (text == NULL || length > MP_DTYPE_NAME)
        return -1;
    *dtype = (mp_dtype){.descr = Py_NewRef(descr),
                        .name = Py_NewRef(name),
                        .text = text,
                        .length = (size_t)length,
                        .itemsize = (size_t)PyDataType_ELSIZE((PyArray_Descr *)descr)};
    return 0;
}

/* The entry of a name; NULL, perhaps with an exception. */
static const mp_dtype *known_by(const char *text, size_t length)
{
    for (int i = 0; i < RECENT && recent[i] != NULL; i++)
        if (recent[i]->length == length && memcmp(recent[i]->text, text, length) == 0)
            return recent[i];
    PyObject *name = PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, NULL);
    PyObject *address = name ? PyDict_GetItemWithError(of_name, name) : NULL;
    const mp_dtype *dtype = address ? PyLong_AsVoidPtr(address) : NULL;

    Py_XDECREF(name);
    if (dtype != NULL)
        recent[recent_at++ % RECENT] = dtype;
    return dtype;
}

/* Make the entry of a name, for the process's lifetime. */
static const mp_dtype *remember(PyObject *descr, PyObject *name)
{
    mp_dtype *dtype = PyMem_Calloc(1, sizeof(*dtype));
    PyObject *address = dtype ? PyLong_FromVoidPtr(dtype) : PyErr_NoMemory();

    if (address != NULL && fill(dtype, descr, name) == 0 &&
        PyDict_SetItem(of_name, dtype->name, address) == 0) {
        recent[recent_at++ % RECENT] = dtype;
    } else if (dtype != NULL) {
        Py_XDECREF(dtype->descr);
        Py_XDECREF(dtype->name);
        PyMem_Free(dtype);
        dtype = NULL;
    }
    Py_XDECREF(address);
    return dtype;
}

/* The entry of a dtype, made if it has none yet; NULL, perhaps with an exception, for one without a
 * name, or with another than the `expected` one, if that is not NULL. */
static const mp_dtype *enter(PyObject *descr, const char *expected, size_t expected_length)
{
    PyObject *name = PyObject_CallFunctionObjArgs(name_of, descr, NULL);
    Py_ssize_t length = 0;
    const char *text =
        name != NULL && name != Py_None ? PyUnicode_AsUTF8AndSize(name, &length) : NULL;
    const mp_dtype *dtype = NULL;

    if (text != NULL && (expected == NULL || ((size_t)length == expected_length &&
                                              memcmp(text, expected, expected_length) == 0))) {
        dtype = known_by(text, (size_t)length);
        if (dtype == NULL && !PyErr_Occurred() && (expected != NULL || PyDict_Size(of_name) < MOST))
            dtype = remember(descr, name);
    }
    Py_XDECREF(name);
    return dtype;
}

/* `descr` is held: name_of is Python code, in which another thread may give the array another
 * one. */
static const mp_dtype *other_dtype(PyObject *descr)
{
    size_t at = ((uintptr_t)descr >> 4) * 0x9E3779B97F4A7C15u >> 60;

    if (seen[at].descr == descr)
        return seen[at].dtype;
    const mp_dtype *dtype = enter(descr, NULL, 0);
    if (PyErr_Occurred())
        return NULL;
    PyObject *before = seen[at].descr;
    seen[at].descr = Py_NewRef(descr);
    seen[at].dtype = dtype;
    Py_XDECREF(before);
    return dtype;
}

const mp_dtype *mp_other_dtype(const PyArrayObject *a)
{
    PyArray_Descr *descr = PyArray_DESCR((PyArrayObject *)a);

    if (PyDataType_FLAGCHK(descr, NPY_ITEM_HASOBJECT))
        return NULL;
    Py_INCREF((PyObject *)descr);
    const mp_dtype *dtype = other_dtype((PyObject *)descr);
    int is_same = PyArray_DESCR((PyArrayObject *)a) == descr;
    Py_DECREF((PyObject *)descr);
    return is_same ? dtype : NULL;
}

const mp_dtype *mp_dtype_of_text(const char *text, size_t length)
{
    const mp_dtype *dtype = length <= MP_DTYPE_NAME ? known_by(text, length) : NULL;

    if (dtype != NULL || length > MP_DTYPE_NAME || PyErr_Occurred())
        return dtype;
    PyObject *descr = PyObject_CallFunction(from_name, "s#", text, (Py_ssize_t)length);
    dtype = descr != NULL && PyArray_DescrCheck(descr) ? enter(descr, text, length) : NULL;
    Py_XDECREF(descr);
    return dtype;
}

int mp_setup_dtypes(PyObject *dtypes, PyObject *names, PyObject *reads)
{
    PyObject *name, *dtype;
    Py_ssize_t at = 0;

    name_of = Py_NewRef(names); /* once for the process, which keeps them */
    from_name = Py_NewRef(reads);
    of_name = PyDict_New();
    if (of_name == NULL)
        return -1;
    while (PyDict_Next(dtypes, &at, &name, &dtype)) {
        Py_UCS4 c = PyUnicode_ReadChar(name, 0);
        if (c >= MP_DTYPE_CHARS || !PyArray_DescrCheck(dtype) ||
            fill(&mp_dtype_of_char[c], dtype, name) < 0) {
            PyErr_Format(PyExc_ValueError, "%R: %R is no dtype of one ASCII character", name,
                         dtype);
            return -1;
        }
    }
    return 0;
}
