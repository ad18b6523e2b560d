/* Which messages are written without a pickler, and the types that other packages write.
 *
 * There is no memo, so an object that occurs twice is left to a pickler, which writes it once; so
 * are two arrays over one block, which have one Block when they arrive. Numbers, and text of at
 * most 64 bytes, are written as often as they occur.
 *
 * More than 16 arrays are left to the tables of beside.c. Large bytes and texts are written by
 * large_bytes.c, in places where their pickle may be a call.
 *
 * To look at an object may execute Python, so another thread may change a list or dict meanwhile. */
#include <string.h>

#include "native.h"

enum { TYPES = 4, REPEATED = 64, MANY = 16 };

static mp_pickler types[TYPES];
static int type_count;

void mp_set_pickler(const mp_pickler *of)
{
    int i = 0;

    while (i < type_count && types[i].type != of->type)
        i++;
    if (i == TYPES)
        return; /* the pickler goes on to write them */
    Py_INCREF(of->reducer);
    types[i] = *of;
    if (i == type_count)
        type_count++;
}

const mp_pickler *mp_pickler_of(PyObject *object)
{
    for (int i = 0; i < type_count; i++)
        if (Py_TYPE(object) == types[i].type)
            return &types[i];
    return NULL;
}

PyObject *mp_read_registered(mp_reader *from)
{
    for (int i = 0; i < type_count; i++) {
        const mp_pickler *of = &types[i];
        if ((size_t)(from->end - from->at) > of->prefix_nbytes &&
            memcmp(from->at, of->prefix, of->prefix_nbytes) == 0) {
            PyObject *object = of->read(from);
            if (object != NULL || PyErr_Occurred())
                return object;
        }
    }
    return NULL;
}

/* 1 if ForkingPickler has the reducer of the type for which the C function stands. */
static int has_known_reducer(PyObject *forking_pickler, const mp_pickler *of)
{
    static PyObject *name;

    if (name == NULL && (name = PyUnicode_InternFromString("_extra_reducers")) == NULL)
        return 0;
    PyObject *table = PyObject_GetAttr(forking_pickler, name), *known = NULL;
    if (table != NULL && PyDict_Check(table))
        known = PyDict_GetItemWithError(table, (PyObject *)of->type);
    Py_XDECREF(table);
    PyErr_Clear();
    return known == of->reducer;
}

int mp_writer_is_first(mp_writer *to, const void *memory)
{
    for (int i = 0; i < to->seen_count; i++)
        if (to->seen[i] == memory)
            return 0;
    if (to->seen_count == MP_SEEN)
        return 0;
    to->seen[to->seen_count++] = memory;
    return 1;
}

/* 1, 0, or -1 with an exception, as all below. */
static int fits(mp_writer *to, PyObject *object, int depth);

static int items_fit(mp_writer *to, PyObject *object, int depth)
{
    int is_tuple = PyTuple_CheckExact(object);
    Py_ssize_t n = is_tuple ? PyTuple_Size(object) : PyList_Size(object);

    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = is_tuple ? PyTuple_GetItem(object, i) : PyList_GetItem(object, i);
        if (item == NULL) { /* another thread shortened the list */
            PyErr_Clear();
            return 0;
        }
        Py_INCREF(item);
        int fit = fits(to, item, depth);
        Py_DECREF(item);
        if (fit != 1)
            return fit;
    }
    return 1;
}

static int dict_fits(mp_writer *to, PyObject *object, int depth)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;

    while (PyDict_Next(object, &at, &key, &value)) {
        if (!mp_is_atom(key) || mp_is_large(key) || fits(to, key, 0) != 1)
            return 0;
        Py_INCREF(value);
        int fit = fits(to, value, depth);
        Py_DECREF(value);
        if (fit != 1)
            return fit;
    }
    return 1;
}

static int fits(mp_writer *to, PyObject *object, int depth)
{
    if (to->objects++ >= MP_OBJECTS)
        return 0;
    Py_ssize_t n = PyUnicode_CheckExact(object) ? PyUnicode_GetLength(object)
                   : PyBytes_CheckExact(object) ? PyBytes_Size(object)
                                                : 0;
    if (mp_is_large(object))
        return to->registered++ < MANY && to->may_share && !mp_goes_by_value() &&
               mp_writer_is_first(to, object) && mp_large_fits(object);
    if (n > REPEATED)
        return n <= MP_LONGEST && mp_writer_is_first(to, object);
    if (mp_is_atom(object))
        return 1;
    const mp_pickler *of = mp_pickler_of(object);
    if (of != NULL)
        return to->registered++ < MANY && to->may_share && !mp_goes_by_value() &&
                       mp_writer_is_first(to, object) && has_known_reducer(to->forking_pickler, of)
                   ? of->fits(to, object)
                   : 0;
    if (depth == 0 ||
        !(PyTuple_CheckExact(object) || PyList_CheckExact(object) || PyDict_CheckExact(object)))
        return 0;
    /* The empty tuple is one object, wherever it occurs. */
    if (!mp_writer_is_first(to, object) &&
        !(PyTuple_CheckExact(object) && PyTuple_Size(object) == 0))
        return 0;
    return PyDict_CheckExact(object) ? dict_fits(to, object, depth - 1)
                                     : items_fit(to, object, depth - 1);
}

int mp_fits(mp_writer *to, PyObject *object)
{
    int fit = fits(to, object, MP_DEPTH);

    to->objects = 0;
    return fit;
}
