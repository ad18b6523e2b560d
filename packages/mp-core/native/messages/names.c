/* Functions and classes, which travel by their names: written as every pickler does, found as every
 * unpickler does.
 *
 * One is left to a pickler, which says what is wrong or has another way, if
 *
 *   its name leads to something else        a lambda, a local class, one that was replaced
 *   the receiver may not have it            it is of a main module that cannot be imported
 *   the program has a way of its own        a reducer for functions, a ForkingPickler that it changed */
#include <string.h>

#include "memory/memory.h"
#include "messages/messages.h"
#include "messages/objects.h"
#include "messages/plan.h"

static PyObject *function_type, *module_name, *qualified_name, *main_name, *code_name, *file_name,
    *function_name, *wrapped_name, *dict_name, *audit_event, *audit, *can_be_imported;

/* The attributes of ForkingPickler that were known when they were looked at last. */
enum { INIT, DUMPS, LOADS, ATTRIBUTES };
static PyObject *attribute_names[ATTRIBUTES], *attributes[ATTRIBUTES];

int mp_setup_names(PyObject *module)
{
    const struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&module_name, "__module__"},
        {&qualified_name, "__qualname__"},
        {&main_name, "__main__"},
        {&code_name, "__code__"},
        {&file_name, "co_filename"},
        {&function_name, "__func__"},
        {&dict_name, "__dict__"},
        {&wrapped_name, "__wrapped__"},
        {&audit_event, "pickle.find_class"},
        {&attribute_names[INIT], "__init__"},
        {&attribute_names[DUMPS], "dumps"},
        {&attribute_names[LOADS], "loads"},
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (mp_intern(names[i].name, names[i].text) < 0)
            return -1;
    if (function_type == NULL)
        function_type = mp_imported("types", "FunctionType");
    return function_type == NULL ? -1 : 0;
}

static int is_function(PyObject *object)
{
    return (PyObject *)Py_TYPE(object) == function_type || PyCFunction_CheckExact(object);
}

int mp_has_name(PyObject *object)
{
    return Py_TYPE(object) == &PyType_Type || is_function(object);
}

/* ---- writing ---- */

/* An attribute that is a text, or NULL: without an exception if there is no such. */
static PyObject *text_of(PyObject *object, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(object, name);

    if (found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    if (found != NULL && !PyUnicode_CheckExact(found))
        Py_CLEAR(found);
    return found;
}

/* What the name leads to, perhaps with dots; NULL without an exception if it leads nowhere. */
static PyObject *found_in(PyObject *from, PyObject *name)
{
    if (PyUnicode_FindChar(name, '.', 0, PyUnicode_GetLength(name), 1) < 0) {
        PyObject *found = PyObject_GetAttr(from, name);
        if (found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError))
            PyErr_Clear();
        return found;
    }
    PyObject *dot = PyUnicode_FromString("."), *parts = dot ? PyUnicode_Split(name, dot, -1) : NULL;
    PyObject *found = parts ? Py_NewRef(from) : NULL;
    for (Py_ssize_t i = 0; found != NULL && i < PyList_Size(parts); i++) {
        PyObject *next = found_in(found, PyList_GetItem(parts, i));
        Py_DECREF(found);
        found = next;
    }
    Py_XDECREF(parts);
    Py_XDECREF(dot);
    return found;
}

/* The main module's dict that was looked at last, and what in it says whether it can be
 * imported. */
static PyObject *main_file, *main_spec;
static const void *main_dict;

/* 1 if main_module.py says so. It is asked again when the main module has another file or
 * spec. */
static int main_can_be_imported(void)
{
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *main = modules ? PyDict_GetItemWithError(modules, main_name) : NULL;
    PyObject *names = main != NULL && PyModule_Check(main) ? PyModule_GetDict(main) : NULL;
    PyObject *file = names ? PyDict_GetItemString(names, "__file__") : NULL;
    PyObject *spec = names ? PyDict_GetItemString(names, "__spec__") : NULL;

    if (file == NULL || PySys_GetObject("ps1") != NULL)
        return PyErr_Occurred() ? -1 : 0;
    if (names == main_dict && file == main_file && spec == main_spec)
        return 1;
    if (can_be_imported == NULL)
        can_be_imported = mp_imported("mp_core.children.main_module", "main_can_be_imported");
    Py_INCREF(file);
    Py_XINCREF(spec);
    PyObject *answer = can_be_imported ? PyObject_CallNoArgs(can_be_imported) : NULL;
    int can = answer == NULL ? -1 : answer == Py_True;
    Py_XDECREF(answer);
    if (can == 1) {
        PyObject *old_file = main_file, *old_spec = main_spec;
        main_file = file;
        main_spec = spec;
        main_dict = names;
        file = old_file;
        spec = old_spec;
    }
    Py_XDECREF(file);
    Py_XDECREF(spec);
    return can;
}

/* 1 if all receivers have it from a fork, see main_module.py. */
static int is_in_each_main(PyObject *thing)
{
    static PyObject *function;

    if (function == NULL)
        function = mp_imported("mp_core.children.main_module", "is_in_each_main");
    PyObject *answer = function ? PyObject_CallFunctionObjArgs(function, thing, NULL) : NULL;
    int is = answer == NULL ? -1 : answer == Py_True;
    Py_XDECREF(answer);
    return is;
}

/* 1 for a function whose text is in a file, and not in a debugger's line or an exec(). */
static int is_of_a_file(PyObject *function)
{
    PyObject *code = (PyObject *)Py_TYPE(function) == function_type
                         ? PyObject_GetAttr(function, code_name)
                         : NULL;
    PyObject *file = code ? PyObject_GetAttr(code, file_name) : NULL;
    int is = file != NULL && PyUnicode_CheckExact(file) && PyUnicode_GetLength(file) > 0 &&
             PyUnicode_ReadChar(file, 0) != '<';

    Py_XDECREF(code);
    Py_XDECREF(file);
    return PyErr_Occurred() ? -1 : is;
}

/* 1 for an attribute of ForkingPickler that is multiprocessing's, pickle's or ours. A function that
 * another one wraps, as functools.wraps makes it, has the module of the other. */
static int is_known(PyObject *attribute)
{
    static const char *const modules[] = {"multiprocessing.reduction", "_pickle",
                                          "mp_core.installation.install",
                                          "mp_core.messages.pickling", "mp_core._block"};
    PyObject *function = PyObject_GetAttr(attribute, function_name); /* of a class method */
    int is = 0;

    if (function == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        function = Py_NewRef(attribute);
    }
    PyObject *module = function ? text_of(function, module_name) : NULL;
    for (size_t i = 0; module != NULL && !is && i < sizeof(modules) / sizeof(modules[0]); i++)
        is = PyUnicode_CompareWithASCIIString(module, modules[i]) == 0;
    if (is)
        is = !PyObject_HasAttr(function, wrapped_name);
    Py_XDECREF(module);
    Py_XDECREF(function);
    return PyErr_Occurred() ? -1 : is;
}

static int has_standard(PyObject *of_class, int which)
{
    PyObject *found = PyObject_GetItem(of_class, attribute_names[which]);

    if (found == NULL && PyErr_ExceptionMatches(PyExc_KeyError))
        PyErr_Clear();
    int is = found == NULL ? 0 : found == attributes[which] ? 1 : is_known(found);
    if (is == 1 && found != attributes[which]) {
        PyObject *old = attributes[which];
        attributes[which] = Py_NewRef(found);
        Py_XDECREF(old);
    }
    Py_XDECREF(found);
    return is;
}

/* 1 if the class has one base, a Pickler, and no attribute that changes what a Pickler does. */
static int is_unchanged(PyObject *of_class)
{
    static Py_ssize_t size = -1; /* when it was so */
    static const char *const changing[] = {"reducer_override", "persistent_id", "dispatch_table",
                                           "dump", "__new__"};
    Py_ssize_t n = PyObject_Size(of_class);

    if (n == size || n < 0)
        return n < 0 ? -1 : 1;
    PyObject *mro = PyObject_GetAttrString(mp_forking_pickler, "__mro__");
    int is = mro == NULL ? -1 : PyTuple_Size(mro) == 3;
    Py_XDECREF(mro);
    for (size_t i = 0; is == 1 && i < sizeof(changing) / sizeof(changing[0]); i++)
        is = !PyMapping_HasKeyString(of_class, changing[i]);
    if (is == 1)
        size = n;
    return is;
}

int mp_pickler_is_standard(void)
{
    PyObject *of_class = PyObject_GetAttr(mp_forking_pickler, dict_name);
    int is = of_class ? is_unchanged(of_class) : -1;

    for (int i = INIT; is == 1 && i <= DUMPS; i++)
        is = has_standard(of_class, i);
    Py_XDECREF(of_class);
    return is;
}

int mp_unpickler_is_standard(void)
{
    if (mp_set_up_pickling() < 0)
        return -1;
    PyObject *of_class = PyObject_GetAttr(mp_forking_pickler, dict_name);
    int is_replaced = mp_unpickle != NULL && mp_unpickle != mp_plain_loads; /* before ours */
    int is = of_class == NULL ? -1 : is_replaced ? 0 : has_standard(of_class, LOADS);
    Py_XDECREF(of_class);
    return is;
}

/* 1 if it can be found by that name, here and by the receiver. */
static int leads_to(PyObject *thing, PyObject *module, PyObject *name)
{
    int is_main = module == main_name || PyUnicode_Compare(module, main_name) == 0;
    int rc = is_main ? main_can_be_imported() : 1;

    if (rc == 1 && is_main && is_function(thing))
        rc = is_of_a_file(thing);
    else if (rc == 0)
        rc = is_in_each_main(thing);
    PyObject *modules = rc == 1 ? PyImport_GetModuleDict() : NULL;
    PyObject *from = modules ? PyDict_GetItemWithError(modules, module) : NULL;
    if (from == NULL)
        return PyErr_Occurred() ? -1 : 0;
    Py_INCREF(from);
    PyObject *found = found_in(from, name);
    Py_DECREF(from);
    Py_XDECREF(found);
    return found == thing ? 1 : PyErr_Occurred() ? -1 : 0;
}

/* Write two texts and STACK_GLOBAL; returns the end. */
static char *put_texts(char *at, const char *module, size_t n, const char *name, size_t m)
{
    at = mp_put_sized(at, '\x8c', module, n);
    at = mp_put_sized(at, '\x8c', name, m);
    *at = '\x93';
    return at + 1;
}

static int put_names(mp_writer *to, PyObject *module, PyObject *name)
{
    Py_ssize_t n, m;
    const char *text = PyUnicode_AsUTF8AndSize(module, &n);
    const char *word = text ? PyUnicode_AsUTF8AndSize(name, &m) : NULL;

    if (word == NULL || n > UINT8_MAX || m > UINT8_MAX) {
        PyErr_Clear(); /* half of a surrogate pair has no UTF-8 */
        return 0;
    }
    char *at = mp_writer_room(to, (size_t)(n + m) + 5);
    if (at == NULL)
        return -1;
    put_texts(at, text, (size_t)n, word, (size_t)m);
    return 1;
}

int mp_make_global(mp_global *to, PyObject *function)
{
    PyObject *module = PyObject_GetAttr(function, module_name);
    PyObject *name = module ? PyObject_GetAttr(function, qualified_name) : NULL;
    Py_ssize_t n = 0, m = 0;
    const char *text = name ? PyUnicode_AsUTF8AndSize(module, &n) : NULL;
    const char *word = text ? PyUnicode_AsUTF8AndSize(name, &m) : NULL;

    if (word != NULL && (size_t)(n + m) + 5 <= sizeof(to->bytes)) {
        char *end = put_texts(to->bytes, text, (size_t)n, word, (size_t)m);
        to->module_nbytes = (size_t)n + 2;
        to->nbytes = (size_t)(end - to->bytes);
    } else if (word != NULL) {
        PyErr_Format(PyExc_ValueError, "the name of %R is longer than %zu bytes", function,
                     sizeof(to->bytes) - 5);
    }
    Py_XDECREF(module);
    Py_XDECREF(name);
    return PyErr_Occurred() ? -1 : 0;
}

int mp_find_global(mp_global *to, PyObject *module, const char *name)
{
    PyObject *function = PyObject_GetAttrString(module, name);
    int rc = function == NULL ? -1 : mp_make_global(to, function);

    Py_XDECREF(function);
    return rc;
}

int mp_put_name(mp_writer *to, PyObject *thing)
{
    PyObject *reducer = mp_reducer_of(Py_TYPE(thing));
    PyObject *module = reducer == NULL && !PyErr_Occurred() ? text_of(thing, module_name) : NULL;
    PyObject *name = module ? text_of(thing, qualified_name) : NULL;
    int rc = 0;

    if (name != NULL && PyUnicode_FindChar(name, '<', 0, PyUnicode_GetLength(name), 1) == -1)
        rc = leads_to(thing, module, name);
    if (rc == 1)
        rc = put_names(to, module, name);
    Py_XDECREF(module);
    Py_XDECREF(name);
    return PyErr_Occurred() ? -1 : rc;
}

/* ---- reading ---- */

/* The module, which another thread may be importing; a new reference. */
static PyObject *imported(PyObject *name)
{
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *found = PyDict_GetItemWithError(modules, name);

    if (found == NULL || found == Py_None) /* by __import__, which a program may have replaced */
        return PyErr_Occurred() ? NULL : PyImport_Import(name);
    if (PyUnicode_Compare(name, main_name) != 0) { /* nobody waits for that one */
        PyObject *first = PyImport_ImportModuleLevelObject(name, NULL, NULL, NULL, 0);
        if (first == NULL)
            return NULL;
        Py_DECREF(first); /* the package that it is in */
        found = PyDict_GetItemWithError(modules, name);
    }
    if (found == NULL && !PyErr_Occurred())
        PyErr_SetObject(PyExc_KeyError, name);
    return Py_XNewRef(found);
}

PyObject *mp_find_name(PyObject *module, PyObject *name)
{
    if (!PyUnicode_CheckExact(module) || !PyUnicode_CheckExact(name))
        return NULL;
    if (audit == NULL && (audit = mp_imported("sys", "audit")) == NULL)
        return NULL;
    PyObject *none = PyObject_CallFunctionObjArgs(audit, audit_event, module, name, NULL);
    PyObject *from = none ? imported(module) : NULL;
    Py_XDECREF(none);
    if (from == NULL)
        return NULL;
    PyObject *found = found_in(from, name);
    if (found == NULL && !PyErr_Occurred())
        PyErr_Format(PyExc_AttributeError, "Can't get attribute %R on %R", name, from);
    Py_DECREF(from);
    return found;
}
