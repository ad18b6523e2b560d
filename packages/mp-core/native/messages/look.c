/* A look at what is in objects, for messages/contents.py: into Python's own containers and the
 * attributes of objects, without a line of Python for each.
 *
 * It runs no code of the program. A collection of garbage in it may: so each object is kept while
 * it is looked at, and no length is trusted twice.
 *
 * Note [A second look]
 * --------------------
 * Nothing was changed since the first look at most times. Then each object is still at the address
 * that it had, so that its place needs no search and nothing is written down:
 *
 *     values before   dict 1 "lr" (1) | list 2 0.1 (2) ...
 *     ids before                  |__ ids[1]: the object here has this address, so its place is (1)
 *
 * The first difference ends the look with a LookupError. What Python has seen meanwhile is in `values`
 * and compared at the next call. */
#include "messages/messages.h"
#include "messages/plan.h"

struct look {
    PyObject *pending; /* list: what is still to be looked at */
    PyObject *places;  /* dict: where an object is in `pending`, by its address */
    PyObject *values;  /* list: what was seen */
    PyObject *objects; /* list: what is compared by its identity */
    PyObject *classes; /* dict, by the ids: whether the objects are a dict alone, or links (None) */
    PyObject *rest;    /* iterator: of the values before, those that are still to come; or NULL */
    PyObject *ids;     /* list: of the objects in `pending` before */
    Py_ssize_t count;  /* of the parts that were seen */
};

static int fail_of_difference(void)
{
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_LookupError, "not as before");
    return -1;
}

/* Tell whether a value is that from *before*; of a long text, that is its type, length and hash. */
static int is_same(PyObject *value, PyObject *before)
{
    if (value == before)
        return 1;
    if (PyFloat_CheckExact(value) && PyFloat_CheckExact(before)) {
        double one = PyFloat_AsDouble(value), other = PyFloat_AsDouble(before);
        return memcmp(&one, &other, sizeof one) == 0; /* 0.0 is not -0.0 */
    }
    if (Py_TYPE(value) == Py_TYPE(before))
        return PyObject_RichCompareBool(value, before, Py_EQ);
    if (!PyTuple_CheckExact(before) || PyTuple_Size(before) != 3 ||
        PyTuple_GetItem(before, 0) != (PyObject *)Py_TYPE(value) ||
        PyLong_AsSsize_t(PyTuple_GetItem(before, 1)) != PyObject_Size(value))
        return PyErr_Occurred() ? -1 : 0;
    Py_ssize_t hash = PyLong_AsSsize_t(PyTuple_GetItem(before, 2));
    return PyErr_Occurred() ? -1 : hash == PyObject_Hash(value);
}

/* Note a value that was seen: compare it, or append it. */
static int note(struct look *look, PyObject *value)
{
    if (look->rest == NULL)
        return PyList_Append(look->values, value);
    PyObject *before = PyIter_Next(look->rest);
    int result = before == NULL ? -1 : is_same(value, before);
    Py_XDECREF(before);
    return result > 0 ? 0 : fail_of_difference();
}

static int note_new(struct look *look, PyObject *value)
{
    int result = value == NULL ? -1 : note(look, value);
    Py_XDECREF(value);
    return result;
}

/* Begin with the *state*, (pending, places, values, objects, classes, rest or None, ids). */
static int begin_look(struct look *look, PyObject *state)
{
    look->count = 0;
    if (!PyArg_ParseTuple(state, "O!O!O!O!O!OO!", &PyList_Type, &look->pending, &PyDict_Type,
                          &look->places, &PyList_Type, &look->values, &PyList_Type, &look->objects,
                          &PyDict_Type, &look->classes, &look->rest, &PyList_Type, &look->ids))
        return -1;
    if (look->rest == Py_None) {
        look->rest = NULL;
        return 0;
    }
    if (!PyIter_Check(look->rest)) {
        PyErr_SetString(PyExc_TypeError, "the rest must be an iterator, or None");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyList_Size(look->values); i++)
        if (note_new(look, Py_NewRef(PyList_GetItem(look->values, i))) < 0)
            return -1;
    return PyList_SetSlice(look->values, 0, PyList_Size(look->values), NULL);
}

static int is_value(PyObject *object)
{
    return mp_is_atom(object) || Py_TYPE(object) == &PyComplex_Type || object == Py_Ellipsis ||
           object == Py_NotImplemented;
}

static int see_place_before(struct look *look, PyObject *part)
{
    PyObject *place = PyIter_Next(look->rest);
    int result = 0;
    if (place != NULL && PyTuple_CheckExact(place) && PyTuple_Size(place) == 1 &&
        PyLong_CheckExact(PyTuple_GetItem(place, 0))) {
        Py_ssize_t number = PyLong_AsSsize_t(PyTuple_GetItem(place, 0));
        Py_ssize_t seen = PyList_Size(look->pending);
        PyObject *id = number < 0 || number > seen || number >= PyList_Size(look->ids)
                           ? NULL
                           : PyList_GetItem(look->ids, number);
        if (id != NULL && PyLong_CheckExact(id) && PyLong_AsVoidPtr(id) == part)
            result = number < seen || PyList_Append(look->pending, part) == 0;
    }
    Py_XDECREF(place);
    return result ? 0 : fail_of_difference();
}

/* Note the value, or the place of another object, which is to be looked at if it is new. */
static int see(struct look *look, PyObject *part)
{
    look->count++;
    if (is_value(part))
        return note(look, part);
    if (look->rest != NULL)
        return see_place_before(look, part);
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
    if (note(look, (PyObject *)Py_TYPE(each)) < 0 || note_new(look, PyLong_FromSsize_t(length)) < 0)
        return -1;
    if (PyDict_CheckExact(each))
        return see_dict(look, each, 1) < 0 ? -1 : see_dict(look, each, 0);
    return PyAnySet_CheckExact(each) ? see_set(look, each) : see_items(look, each);
}

/* Note the keys of a dict, as a tuple. */
static int note_keys(struct look *look, PyObject *own)
{
    if (look->rest == NULL) {
        PyObject *keys = PyDict_Keys(own);
        int result = note_new(look, keys == NULL ? NULL : PyList_AsTuple(keys));
        Py_XDECREF(keys);
        return result;
    }
    PyObject *before = PyIter_Next(look->rest), *key;
    Py_ssize_t count = 0, position = 0;
    int result = 0;
    if (before != NULL && PyTuple_CheckExact(before) && PyTuple_Size(before) == PyDict_Size(own)) {
        while (PyDict_Next(own, &position, &key, NULL) && PyTuple_GetItem(before, count) == key)
            count++;
        result = count == PyTuple_Size(before);
    }
    Py_XDECREF(before);
    return result ? 0 : fail_of_difference();
}

static int collect(PyObject *part, void *parts)
{
    return PyList_Append(parts, part);
}

/* Look at an object that is made of references alone: its class first. Values in it, as the numbers
 * of a slice, do not count. */
static int see_links(struct look *look, PyObject *each)
{
    Py_ssize_t count = look->count;
    traverseproc traverse = (traverseproc)PyType_GetSlot(Py_TYPE(each), Py_tp_traverse);
    PyObject *kind = (PyObject *)Py_TYPE(each), *parts = PyList_New(0);
    int result = parts == NULL || (traverse != NULL && traverse(each, collect, parts) < 0) ? -1 : 0;
    if (result == 0)
        result = see(look, kind);
    for (Py_ssize_t i = 0; result == 0 && i < PyList_Size(parts); i++) {
        PyObject *part = PyList_GetItem(parts, i);
        count += part != kind && !is_value(part);
        if (part != kind)
            result = see_kept(look, part);
    }
    look->count = count;
    Py_XDECREF(parts);
    return result;
}

/* Look at an object of one of the classes. Return 0 if it is of another one. */
static int see_object(struct look *look, PyObject *each)
{
    PyObject *key = PyLong_FromVoidPtr(Py_TYPE(each)), *own = NULL;
    PyObject *has_dict = key == NULL ? NULL : PyDict_GetItemWithError(look->classes, key);
    int result = has_dict != NULL ? 1 : PyErr_Occurred() ? -1 : 0;
    if (result > 0 && has_dict == Py_None)
        result = see_links(look, each) < 0 ? -1 : 1;
    else if (result > 0 && has_dict != Py_True)
        result = PyList_Append(look->objects, each) < 0 ? -1 : 1;
    else if (result > 0 &&
             ((own = PyObject_GenericGetDict(each, NULL)) == NULL || note(look, key) < 0 ||
              note_keys(look, own) < 0 || see_dict(look, own, 0) < 0))
        result = -1;
    Py_XDECREF(own);
    Py_XDECREF(key);
    return result;
}

/* dict_of(object) -> the dict of its attributes, whatever its class says of `__dict__` */
PyObject *mp_py_dict_of(PyObject *module, PyObject *object)
{
    return PyObject_GenericGetDict(object, NULL);
}

/* see(state, parts) -> count
 *
 * See the objects in the list *parts*: return how many these are. */
PyObject *mp_py_see(PyObject *module, PyObject *args)
{
    struct look look;
    PyObject *state, *parts;
    if (!PyArg_ParseTuple(args, "O!O!:see", &PyTuple_Type, &state, &PyList_Type, &parts) ||
        begin_look(&look, state) < 0 || see_items(&look, parts) < 0)
        return NULL;
    return PyLong_FromSsize_t(look.count);
}

/* look(state, begin, count, most_objects, most_parts) -> end, count
 *
 * Look at the pending objects from *begin* on, and at those that this appends, up to these numbers.
 * Return the number of the first one that was not looked at, since it is no container, of none of the
 * classes or has more than *most_parts*; and the *count* of parts that were seen. */
PyObject *mp_py_look(PyObject *module, PyObject *args)
{
    struct look look;
    PyObject *state;
    Py_ssize_t begin, count, most_objects, most;
    if (!PyArg_ParseTuple(args, "O!nnnn:look", &PyTuple_Type, &state, &begin, &count, &most_objects,
                          &most) ||
        begin_look(&look, state) < 0)
        return NULL;
    look.count = count;
    if (begin < 0)
        return PyErr_Format(PyExc_ValueError, "begin is %zd, and must not be negative", begin);
    for (; begin < most_objects && begin < PyList_Size(look.pending) && look.count <= most;
         begin++) {
        PyObject *each = PyList_GetItem(look.pending, begin);
        Py_INCREF(each);
        Py_ssize_t length = length_of(each);
        int result = length > most ? 0 : length >= 0 ? 1 : see_object(&look, each);
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
