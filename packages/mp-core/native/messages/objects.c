/* Plain and reduced objects: written and made as pickle does, without a pickler.
 *
 *   plain     class, by its name | EMPTY_TUPLE NEWOBJ MEMOIZE | its __dict__ | BUILD
 *   reduced   class or function, by its name | arguments | REDUCE or NEWOBJ | MEMOIZE
 *             | items, APPENDS | keys and values, SETITEMS | state, BUILD
 *
 * An object is plain if a pickler would write it so: its class has no reducer (reducers.py has
 * found none), defines nothing that pickle asks for, and has no memory of its own, as those of C
 * do. The last is found out by one call of __reduce_ex__ for each class; the others, which a
 * program may change at any time, in each message.
 *
 * An object is reduced if the function that a pickler calls for it is of the standard library, and
 * runs no code of the program: times, decimals, paths, members of an Enum, named tuples, deques and
 * dicts of `collections`, partial functions, methods, exceptions, objects with slots. */
#include "messages/messages.h"
#include "messages/objects.h"

enum { ASKED = 8, ASKED_TO_LOAD = 3, DECIDING = 5 }; /* the first of those asked for decide */

/* What pickle asks a class or object for; and what an unpickler does, see mp_set_state. */
static PyObject *asked[ASKED], *asked_to_load[ASKED_TO_LOAD], *setstate;
static PyObject *mro_name, *dict_name, *way_name, *make_new, *slot_names;
/* Where a function is from; the functions of object. */
static PyObject *class_of_name, *module_name, *of_object[DECIDING];

int mp_setup_objects(PyObject *module)
{
    static const char *const texts[ASKED] = {
        "__reduce_ex__",  "__reduce__",       "__getstate__", "__getnewargs_ex__",
        "__getnewargs__", "__getattribute__", "__getattr__",  "__class__"};

    for (int i = 0; i < ASKED; i++)
        if (mp_intern(&asked[i], texts[i]) < 0)
            return -1;
    if (mp_intern(&setstate, "__setstate__") < 0 || mp_intern(&dict_name, "__dict__") < 0 ||
        mp_intern(&way_name, "way") < 0 || mp_intern(&mro_name, "__mro__") < 0)
        return -1;
    if (mp_intern(&class_of_name, "__objclass__") < 0 || mp_intern(&module_name, "__module__") < 0)
        return -1;
    for (int i = 0; i < DECIDING; i++) { /* those that it has */
        of_object[i] = PyObject_GetAttr((PyObject *)&PyBaseObject_Type, asked[i]);
        if (of_object[i] == NULL)
            PyErr_Clear();
    }
    asked_to_load[0] = setstate;
    asked_to_load[1] = asked[5];
    asked_to_load[2] = asked[6];
    return 0;
}

/* 1 if one of the names is in the class's own attributes; -1 with an exception. */
static int has_one(PyObject *kind, PyObject *const *names, int count)
{
    PyObject *attributes = PyObject_GetAttr(kind, dict_name);
    int has = attributes ? 0 : -1;

    for (int i = 0; has == 0 && i < count; i++)
        has = PySequence_Contains(attributes, names[i]);
    Py_XDECREF(attributes);
    return has;
}

/* The same for the class and its bases. */
static int defines_one(PyTypeObject *kind, PyObject *const *names, int count)
{
    PyObject *mro = PyObject_GetAttr((PyObject *)kind, mro_name);
    int has = mro != NULL && PyTuple_CheckExact(mro) ? 0 : -1;

    for (Py_ssize_t i = 0; has == 0 && i < PyTuple_Size(mro); i++) {
        PyObject *base = PyTuple_GetItem(mro, i);
        if (base != (PyObject *)&PyBaseObject_Type)
            has = has_one(base, names, count);
    }
    Py_XDECREF(mro);
    return has;
}

/* ---- writing ---- */

static int import_copyreg(void)
{
    if (make_new == NULL)
        make_new = mp_imported("copyreg", "__newobj__");
    if (slot_names == NULL)
        slot_names = mp_imported("copyreg", "_slotnames");
    return make_new == NULL || slot_names == NULL ? -1 : 0;
}

/* 1 if its objects have slots. */
static int has_slots(PyTypeObject *kind)
{
    PyObject *names = PyObject_CallFunctionObjArgs(slot_names, kind, NULL);
    int has = names == NULL ? -1 : !PyList_CheckExact(names) || PyList_Size(names) > 0;

    Py_XDECREF(names);
    return has;
}

static int is_none(PyObject *tuple, Py_ssize_t i)
{
    return i >= PyTuple_Size(tuple) || PyTuple_GetItem(tuple, i) == Py_None;
}

/* The reducer of the class that the standard library has registered for methods, partial functions
 * and complex numbers, of which it makes a call; NULL for another one, and perhaps with an
 * exception. */
static PyObject *reducer_of_call(PyTypeObject *kind)
{
    static const char *const names[] = {"_reduce_partial", "_reduce_method",
                                        "_reduce_method_descriptor", "pickle_complex"};
    enum { COUNT = sizeof(names) / sizeof(*names), OF_COPYREG = COUNT - 1 };
    static PyObject *known[COUNT];
    PyObject *reducer = mp_reducer_of(kind);

    for (int i = 0; reducer != NULL && i < COUNT; i++) {
        if (known[i] == NULL &&
            (known[i] = mp_imported(i == OF_COPYREG ? "copyreg" : "multiprocessing.reduction",
                                    names[i])) == NULL)
            return NULL;
        if (reducer == known[i])
            return reducer;
    }
    return NULL;
}

/* The reduction, if it is a tuple of a function, its arguments and more; NULL, without an exception
 * if a pickler has to say what is wrong. */
static PyObject *reduction_of(PyObject *object)
{
    PyObject *reducer = import_copyreg() < 0 ? NULL : reducer_of_call(Py_TYPE(object));
    PyObject *reduction = reducer != NULL    ? PyObject_CallFunctionObjArgs(reducer, object, NULL)
                          : PyErr_Occurred() ? NULL
                                             : PyObject_CallMethod(object, "__reduce_ex__", "i", 4);

    if (reduction == NULL && PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Clear();
    if (reduction != NULL && !(PyTuple_CheckExact(reduction) && PyTuple_Size(reduction) >= 2 &&
                               PyTuple_CheckExact(PyTuple_GetItem(reduction, 1))))
        Py_CLEAR(reduction);
    return reduction;
}

/* How an object is written that has all from `object`: its reduction is (copyreg.__newobj__,
 * (class,), its dict, or a pair of that and its slots, or None). */
static int way_by_reduction(PyObject *object)
{
    PyObject *reduction = reduction_of(object);
    int way = MP_BY_PICKLER;

    if (reduction != NULL) {
        PyObject *args = PyTuple_GetItem(reduction, 1);
        int is = PyTuple_GetItem(reduction, 0) == make_new && PyTuple_Size(args) == 1 &&
                 PyTuple_GetItem(args, 0) == (PyObject *)Py_TYPE(object) && is_none(reduction, 3) &&
                 is_none(reduction, 4);
        int slots = is ? has_slots(Py_TYPE(object)) : 0;
        if (slots == 1)
            way = MP_REDUCED;
        else if (is && (is_none(reduction, 2) || PyDict_CheckExact(PyTuple_GetItem(reduction, 2))))
            way = MP_PLAIN;
    }
    Py_XDECREF(reduction);
    return PyErr_Occurred() ? -1 : way;
}

/* The same, once for each class: `known` keeps the answer. */
static int known_way(PyObject *known, PyObject *object)
{
    PyObject *answer = PyObject_GetAttr(known, way_name);
    int way = answer == NULL      ? -1
              : answer == Py_None ? way_by_reduction(object)
                                  : (int)PyLong_AsLong(answer);

    if (answer == Py_None && way >= 0) {
        PyObject *number = PyLong_FromLong(way);
        if (number == NULL || PyObject_SetAttr(known, way_name, number) < 0)
            way = -1;
        Py_XDECREF(number);
    }
    Py_XDECREF(answer);
    return way;
}

PyObject *mp_state_of(PyObject *object)
{
    PyObject *state = PyObject_GenericGetDict(object, NULL), *key, *value;
    Py_ssize_t at = 0;

    if (state == NULL && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    /* An attribute of the object itself may be what pickle asks for. */
    while (state != NULL && PyDict_Next(state, &at, &key, &value))
        if (!PyUnicode_CheckExact(key) ||
            (PyUnicode_GetLength(key) > 2 && PyUnicode_ReadChar(key, 0) == '_' &&
             PyUnicode_ReadChar(key, 1) == '_'))
            Py_CLEAR(state);
    return state;
}

/* An attribute, or NULL without an exception if there is none. */
static PyObject *get_if_any(PyObject *object, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(object, name);

    if (found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    return found;
}

/* The module of a class or function, or of the class that a method in C is of; NULL, perhaps with
 * an exception. */
static PyObject *module_of(PyObject *thing)
{
    int is_in_c = !PyType_Check(thing) && Py_TYPE(thing) != Py_TYPE(make_new);
    PyObject *of = is_in_c ? get_if_any(thing, class_of_name) : NULL;
    PyObject *module = PyErr_Occurred() ? NULL : get_if_any(of != NULL ? of : thing, module_name);

    Py_XDECREF(of);
    return module;
}

/* 1 if the name of a module is one of these. */
static int is_one(PyObject *module, const char *const *names)
{
    for (; module != NULL && PyUnicode_Check(module) && *names != NULL; names++)
        if (PyUnicode_CompareWithASCIIString(module, *names) == 0)
            return 1;
    return 0;
}

/* 1 if a function that pickle calls for objects of the class is the standard library's, and runs no
 * code of the program. */
static int is_of_library(PyObject *kind, PyObject *function)
{
    /* Of the classes of these modules, and of all classes that inherit from those. */
    static const char *const own[] = {"datetime",
                                      "decimal",
                                      "_decimal",
                                      "_pydecimal",
                                      "pathlib",
                                      "pathlib._local",
                                      "fractions",
                                      "ipaddress",
                                      "operator",
                                      "types",
                                      "uuid",
                                      "pandas",
                                      "pandas._libs.tslibs.timestamps",
                                      "pandas._libs.tslibs.timedeltas",
                                      NULL},
                             *const inherited[] = {"enum", "collections", "dataclasses", NULL},
                             *const language[] = {"builtins", NULL};
    PyObject *module = module_of(function);
    int is = is_one(module, inherited), is_of_language = is_one(module, language);

    if (!is && is_one(module, own)) {
        PyObject *home = module_of(kind);
        is = is_one(home, own);
        Py_XDECREF(home);
    }
    /* The function of exceptions, also of the program's, gives what they were made of. */
    if (!is && is_of_language)
        is = PyExceptionClass_Check(kind) || kind == (PyObject *)&PySlice_Type ||
             kind == (PyObject *)&PyRange_Type;
    Py_XDECREF(module);
    return PyErr_Occurred() ? -1 : is;
}

/* The same of all functions that take part in the pickle of an object of the class: the first that
 * is not object's own, which must be the only one. */
static int is_reduced_by_library(PyObject *kind)
{
    enum { OF_STATE = 2 };
    int is = 0;

    for (int i = 0; i < DECIDING; i++) {
        PyObject *found = get_if_any(kind, asked[i]);
        if (found == NULL && PyErr_Occurred())
            return -1;
        int decides = found != NULL && found != of_object[i];
        if (decides)
            is = is ? 0 : is_of_library(kind, found);
        Py_XDECREF(found);
        if (decides && (is != 1 || i != OF_STATE))
            break;
    }
    return is;
}

/* The same of a class that has no reducer: `known` remembers that none of its bases has one. */
static int way_of_class(PyObject *known, PyObject *object)
{
    PyTypeObject *kind = Py_TYPE(object);
    int defines = defines_one(kind, asked, ASKED);

    if (defines == 0)
        return known_way(known, object);
    if (defines == 1 && import_copyreg() == 0)
        return is_reduced_by_library((PyObject *)kind) == 1 ? MP_REDUCED : MP_BY_PICKLER;
    return -1;
}

int mp_way_of(PyObject *object)
{
    PyTypeObject *kind = Py_TYPE(object), *kind_of_kind = Py_TYPE((PyObject *)kind);
    int way = MP_BY_PICKLER;

    if (mp_reducer_of(kind) != NULL) {
        if (reducer_of_call(kind) != NULL)
            way = MP_REDUCED;
    } else if (kind_of_kind == &PyType_Type || mp_reducer_of(kind_of_kind) == NULL) {
        PyObject *known = PyErr_Occurred() ? NULL : mp_without_reducer((PyObject *)kind);
        if (known != NULL)
            way = way_of_class(known, object);
        Py_XDECREF(known);
    }
    return PyErr_Occurred() ? -1 : way;
}

/* The list of what an iterator of the reduction gives, or NULL if there is none. Only for classes
 * of `collections`: others may have methods of the program that put the items in. */
static int list_items(PyObject *object, PyObject *reduction, Py_ssize_t i, PyObject **list)
{
    static const char *const own[] = {"collections", NULL};

    if (is_none(reduction, i))
        return 1;
    PyObject *home = module_of((PyObject *)Py_TYPE(object));
    int may = is_one(home, own);
    Py_XDECREF(home);
    if (!may)
        return 0;
    *list = PySequence_List(PyTuple_GetItem(reduction, i));
    return *list == NULL ? -1 : 1;
}

int mp_reduce(PyObject *object, mp_reduction *to)
{
    enum { STATE = 2, ITEMS, PAIRS, MOST };
    *to = (mp_reduction){.whole = reduction_of(object)};

    if (to->whole == NULL || PyTuple_Size(to->whole) > MOST)
        return PyErr_Occurred() ? -1 : 0;
    to->function = PyTuple_GetItem(to->whole, 0);
    to->args = Py_NewRef(PyTuple_GetItem(to->whole, 1));
    to->state = is_none(to->whole, STATE) ? NULL : PyTuple_GetItem(to->whole, STATE);
    to->makes_new = to->function == make_new;
    if (to->makes_new) { /* copyreg.__newobj__ has the class among the arguments */
        Py_ssize_t n = PyTuple_Size(to->args);
        if (n == 0)
            return 0;
        to->function = PyTuple_GetItem(to->args, 0);
        PyObject *rest = PyTuple_GetSlice(to->args, 1, n);
        Py_DECREF(to->args);
        to->args = rest;
        if (rest == NULL)
            return -1;
    }
    int rc = list_items(object, to->whole, ITEMS, &to->items);
    return rc == 1 ? list_items(object, to->whole, PAIRS, &to->pairs) : rc;
}

void mp_end_reduction(mp_reduction *reduction)
{
    Py_CLEAR(reduction->items);
    Py_CLEAR(reduction->pairs);
    Py_CLEAR(reduction->args);
    Py_CLEAR(reduction->whole);
}

/* ---- reading ---- */

PyObject *mp_new_object(PyObject *kind, PyObject *args)
{
    if (!PyType_Check(kind) || !PyTuple_CheckExact(args))
        return NULL;
    newfunc make = (newfunc)PyType_GetSlot((PyTypeObject *)kind, Py_tp_new);
    return make == NULL ? NULL : make((PyTypeObject *)kind, args, NULL);
}

/* 1 when its __setstate__ was called, 0 if it has none. */
static int was_set_by_itself(PyObject *object, PyObject *state)
{
    PyObject *set = PyObject_GetAttr(object, setstate);

    if (set == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        return 0;
    }
    PyObject *none = set ? PyObject_CallFunctionObjArgs(set, state, NULL) : NULL;
    Py_XDECREF(set);
    Py_XDECREF(none);
    return none == NULL ? -1 : 1;
}

/* 1 if it may have one: its class has, or its __new__ has left something in its attributes. */
static int may_have_setstate(PyObject *object, PyObject *attributes, mp_usual *usual)
{
    if (attributes != NULL && (!PyDict_CheckExact(attributes) || PyDict_Size(attributes) > 0))
        return 1;
    if (Py_TYPE(object) == usual->kind)
        return 0;
    int may = defines_one(Py_TYPE(object), asked_to_load, ASKED_TO_LOAD);
    if (may == 0)
        *usual = (mp_usual){Py_TYPE(object), attributes == NULL};
    return may;
}

static int set_item(PyObject *attributes, PyObject *key, PyObject *value)
{
    Py_INCREF(key);
    if (PyUnicode_CheckExact(key))
        PyUnicode_InternInPlace(&key); /* as those that an assignment makes */
    int rc = PyDict_CheckExact(attributes) ? PyDict_SetItem(attributes, key, value)
                                           : PyObject_SetItem(attributes, key, value);
    Py_DECREF(key);
    return rc;
}

/* Set each attribute of the slots: 1, or -1. */
static int set_slots(PyObject *object, PyObject *slots)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    int rc = 0;

    while (rc == 0 && PyDict_Next(slots, &at, &key, &value))
        rc = PyObject_SetAttr(object, key, value);
    return rc == 0 ? 1 : -1;
}

int mp_set_state(PyObject *object, PyObject *state, mp_usual *usual)
{
    int has_no_dict = Py_TYPE(object) == usual->kind && usual->has_no_dict;
    PyObject *attributes = has_no_dict ? NULL : PyObject_GetAttr(object, dict_name);
    PyObject *slots = NULL, *key, *value;
    Py_ssize_t at = 0;

    if (attributes == NULL && !has_no_dict && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    int rc = PyErr_Occurred() ? -1 : may_have_setstate(object, attributes, usual);
    if (rc == 1)
        rc = was_set_by_itself(object, state);
    if (rc == 0 && PyTuple_CheckExact(state) && PyTuple_Size(state) == 2) {
        slots = PyTuple_GetItem(state, 1);
        state = PyTuple_GetItem(state, 0);
    }
    if (rc == 0 && attributes != NULL && PyDict_CheckExact(state)) {
        while (rc == 0 && PyDict_Next(state, &at, &key, &value))
            rc = set_item(attributes, key, value);
        rc = rc == 0 ? 1 : rc;
    } else if (rc == 0 && slots != NULL && state == Py_None) {
        rc = 1;
    }
    if (rc == 1 && slots != NULL)
        rc = PyDict_CheckExact(slots) ? set_slots(object, slots) : 0;
    Py_XDECREF(attributes);
    return rc;
}
