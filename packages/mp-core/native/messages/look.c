/* A look at what is in objects, for messages/contents.py: into Python's own containers and the
 * attributes of objects, without a line of Python for each.
 *
 * It runs no code of the program. A collection of garbage in it may: so each object is kept while
 * it is looked at, and no length is trusted twice. */
#include "messages/messages.h"
#include "messages/plan.h"

struct look {
    PyObject *pending; /* list: what is still to be looked at */
    PyObject *places;  /* dict: where an object is in `pending`, by its address */
    PyObject *values;  /* list: what was seen */
    Py_ssize_t count;  /* of the parts */
};

static int is_value(PyObject *object)
{
    return mp_is_atom(object) || Py_TYPE(object) == &PyComplex_Type || object == Py_Ellipsis ||
           object == Py_NotImplemented;
}

static int append_new(PyObject *list, PyObject *object)
{
    int result = object == NULL ? -1 : PyList_Append(list, object);
    Py_XDECREF(object);
    return result;
}

/* Append the value, or the place of another object, which is to be looked at if it is new. */
static int see(struct look *look, PyObject *part)
{
    look->count++;
    if (is_value(part))
        return PyList_Append(look->values, part);
    PyObject *key = PyLong_FromVoidPtr(part);
    if (key == NULL)
        return -1;
    PyObject *place = PyDict_GetItemWithError(look->places, key);
    int result = -1;
    if (place != NULL) {
        result = PyList_Append(look->values, place);
    } else if (!PyErr_Occurred()) {
        place = Py_BuildValue("(n)", PyList_Size(look->pending));
        if (place != NULL && PyDict_SetItem(look->places, key, place) == 0 &&
            PyList_Append(look->pending, part) == 0)
            result = PyList_Append(look->values, place);
        Py_XDECREF(place);
    }
    Py_DECREF(key);
    return result;
}

static int see_kept(struct look *look, PyObject *part)
{
    Py_INCREF(part);
    int result = see(look, part);
    Py_DECREF(part);
    return result;
}

static int see_items(struct look *look, PyObject *each)
{
    int is_list = PyList_CheckExact(each), result = 0;
    for (Py_ssize_t i = 0; result == 0 && i < (is_list ? PyList_Size(each) : PyTuple_Size(each));
         i++)
        result = see_kept(look, is_list ? PyList_GetItem(each, i) : PyTuple_GetItem(each, i));
    return result;
}

static int see_dict(struct look *look, PyObject *each, int keys)
{
    PyObject *key, *value;
    Py_ssize_t position = 0;
    int result = 0;
    while (result == 0 && PyDict_Next(each, &position, &key, &value))
        result = see_kept(look, keys ? key : value);
    return result;
}

static int see_set(struct look *look, PyObject *each)
{
    PyObject *iterator = PyObject_GetIter(each), *part;
    int result = iterator == NULL ? -1 : 0;
    while (result == 0 && (part = PyIter_Next(iterator)) != NULL) {
        result = see(look, part);
        Py_DECREF(part);
    }
    Py_XDECREF(iterator);
    return result == 0 && PyErr_Occurred() ? -1 : result;
}

/* Return the length of a container of Python's own; -1 of another object. */
static Py_ssize_t length_of(PyObject *each)
{
    if (PyList_CheckExact(each))
        return PyList_Size(each);
    if (PyTuple_CheckExact(each))
        return PyTuple_Size(each);
    if (PyDict_CheckExact(each))
        return PyDict_Size(each);
    return PyAnySet_CheckExact(each) ? PySet_Size(each) : -1;
}

static int see_container(struct look *look, PyObject *each, Py_ssize_t length)
{
    if (PyList_Append(look->values, (PyObject *)Py_TYPE(each)) < 0 ||
        append_new(look->values, PyLong_FromSsize_t(length)) < 0)
        return -1;
    if (PyDict_CheckExact(each))
        return see_dict(look, each, 1) < 0 ? -1 : see_dict(look, each, 0);
    return PyAnySet_CheckExact(each) ? see_set(look, each) : see_items(look, each);
}

/* Look at the attributes of an object of a class whose dicts *getters* read. Return 0 if it is none. */
static int see_attributes(struct look *look, PyObject *each, PyObject *getters)
{
    PyObject *key = PyLong_FromVoidPtr(Py_TYPE(each));
    PyObject *getter = key == NULL ? NULL : PyDict_GetItemWithError(getters, key);
    if (getter == NULL) {
        Py_XDECREF(key);
        return PyErr_Occurred() ? -1 : 0;
    }
    PyObject *own = PyObject_CallFunctionObjArgs(getter, each, NULL);
    int result = own == NULL ? -1 : PyDict_Check(own);
    if (result > 0) {
        PyObject *keys = PyDict_Keys(own);
        if (PyList_Append(look->values, key) < 0 ||
            append_new(look->values, keys == NULL ? NULL : PyList_AsTuple(keys)) < 0 ||
            see_dict(look, own, 0) < 0)
            result = -1;
        Py_XDECREF(keys);
    }
    Py_XDECREF(own);
    Py_DECREF(key);
    return result;
}

/* see(parts, pending, places, values) -> count
 *
 * See the objects in the list *parts*: return how many these are. */
PyObject *mp_py_see(PyObject *module, PyObject *args)
{
    struct look look = {.count = 0};
    PyObject *parts;
    if (!PyArg_ParseTuple(args, "O!O!O!O!:see", &PyList_Type, &parts, &PyList_Type, &look.pending,
                          &PyDict_Type, &look.places, &PyList_Type, &look.values) ||
        see_items(&look, parts) < 0)
        return NULL;
    return PyLong_FromSsize_t(look.count);
}

/* look(pending, begin, places, values, getters, objects, parts) -> end, count
 *
 * Look at the objects in *pending* from *begin* on, and at those that this appends: at most up to
 * the number *objects*, and until so many *parts* were seen. Return the number of the first one that
 * was not looked at, since it is none of these or has more than *parts*; and how many parts were
 * seen. */
PyObject *mp_py_look(PyObject *module, PyObject *args)
{
    struct look look = {.count = 0};
    PyObject *getters;
    Py_ssize_t begin, objects, most;
    if (!PyArg_ParseTuple(args, "O!nO!O!O!nn:look", &PyList_Type, &look.pending, &begin,
                          &PyDict_Type, &look.places, &PyList_Type, &look.values, &PyDict_Type,
                          &getters, &objects, &most))
        return NULL;
    if (begin < 0)
        return PyErr_Format(PyExc_ValueError, "begin is %zd, and must not be negative", begin);
    for (; begin < objects && begin < PyList_Size(look.pending) && look.count <= most; begin++) {
        PyObject *each = PyList_GetItem(look.pending, begin);
        Py_INCREF(each);
        Py_ssize_t length = length_of(each);
        int result = length > most ? 0 : length >= 0 ? 1 : see_attributes(&look, each, getters);
        if (result > 0 && length >= 0 && see_container(&look, each, length) < 0)
            result = -1;
        Py_DECREF(each);
        if (result < 0)
            return NULL;
        if (result == 0)
            break;
    }
    return Py_BuildValue("nn", begin, look.count);
}
