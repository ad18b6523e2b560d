/* The codecs: who writes and reads the objects of a type without a pickler. */
#include <string.h>

#include "messages/messages.h"

enum { CODECS = 16, CONSTRUCTORS = 24 };

static mp_codec codecs[CODECS];
static int count;

static struct {
    PyTypeObject *type;
    PyObject *(*args_of)(PyObject *);
} constructors[CONSTRUCTORS];
static int constructor_count;

void mp_register_codec(const mp_codec *codec)
{
    int i = 0;

    while (i < count && (codecs[i].type != codec->type || codecs[i].survey != codec->survey))
        i++;
    if (i == CODECS)
        return; /* the pickler goes on to write them */
    Py_INCREF(codec->reducer);
    codecs[i] = *codec;
    if (i == count)
        count++;
}

const mp_codec *mp_codec_of(PyObject *object)
{
    for (int i = 0; i < count; i++)
        if (Py_TYPE(object) == codecs[i].type)
            return &codecs[i];
    return NULL;
}

const mp_codec *mp_codec_after(const mp_codec *codec)
{
    for (const mp_codec *next = codec + 1; next < codecs + count; next++)
        if (next->type == codec->type)
            return next;
    return NULL;
}

void mp_register_constructor(PyTypeObject *type, PyObject *(*args_of)(PyObject *object))
{
    int i = 0;

    while (i < constructor_count && constructors[i].type != type)
        i++;
    if (i == CONSTRUCTORS)
        return; /* the pickler goes on to write them */
    constructors[i].type = type;
    constructors[i].args_of = args_of;
    if (i == constructor_count)
        constructor_count++;
}

PyObject *(*mp_constructor_of(PyObject *object))(PyObject *)
{
    for (int i = 0; i < constructor_count; i++)
        if (Py_TYPE(object) == constructors[i].type)
            return constructors[i].args_of;
    return NULL;
}

PyObject *mp_reducer_of(PyTypeObject *type)
{
    static PyObject *name, *of_copyreg;

    if (name == NULL && (name = PyUnicode_InternFromString("_extra_reducers")) == NULL)
        return NULL;
    if (of_copyreg == NULL && (of_copyreg = mp_imported("copyreg", "dispatch_table")) == NULL)
        return NULL;
    PyObject *table = PyObject_GetAttr(mp_forking_pickler, name), *known = NULL;
    if (table != NULL && PyDict_Check(table))
        known = PyDict_GetItemWithError(table, (PyObject *)type);
    Py_XDECREF(table);
    PyErr_Clear();
    return known != NULL ? known : PyDict_GetItemWithError(of_copyreg, (PyObject *)type);
}

int mp_codec_is_current(const mp_codec *codec)
{
    PyObject *reducer = mp_reducer_of(codec->type);

    PyErr_Clear();
    return reducer == codec->reducer;
}

int mp_replace_reducers(PyObject *reducers, PyObject *function)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < count; i++) {
        PyObject *type = (PyObject *)codecs[i].type;
        PyObject *known = PyDict_GetItemWithError(reducers, type);
        if (known == codecs[i].reducer)
            rc = PyDict_SetItem(reducers, type, function);
        else if (known == NULL && PyErr_Occurred())
            rc = -1;
    }
    return rc;
}

PyObject *mp_read_by_codec(mp_reader *from)
{
    for (int i = 0; i < count; i++) {
        const mp_codec *codec = &codecs[i];
        if ((size_t)(from->end - from->at) > codec->prefix_nbytes &&
            memcmp(from->at, codec->prefix, codec->prefix_nbytes) == 0) {
            PyObject *object = codec->read(from);
            if (object != NULL || PyErr_Occurred())
                return object;
        }
    }
    return NULL;
}
