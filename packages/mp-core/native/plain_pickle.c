/* Messages without a pickler, which costs a few microseconds, and more than all else of a small
 * message.
 *
 *   number, text, None, ...                           written and read in C   write_message.c
 *   few of them and arrays in tuples, lists, dicts    written and read in C   read_message.c
 *   large bytes and texts                             a handle, written and read    large_bytes.c
 *   more atoms, in tuples and lists                   pickle.dumps, which needs no reducers
 *   all else                                          ForkingPickler
 *
 * The pickles are the same to a reader: any unpickler reads them. A program that registers a
 * reducer of its own for a type gets its reducer. All messages that are not written here are left
 * to ForkingPickler.loads. */
#include "native.h"

static PyObject *plain_dumps, *protocol, *forking_pickler, *loads_name, *dumps_name;
static int shares_nothing; /* see only_atoms() */

/* Large bytes go through a block: ForkingPickler does that where write_message.c does not. */
static int is_light(PyObject *object)
{
    return mp_is_atom(object) && !mp_is_large(object);
}

PyObject *mp_plain_pickle(PyObject *object, int may_share, PyObject **handles)
{
    enum { DEPTH = 3, FEW = 16 };
    mp_writer to;
    mp_begin_writing(&to, may_share && !shares_nothing, forking_pickler);
    int rc = mp_write_message(&to, object);
    PyObject *data = rc == 1 ? PyBytes_FromStringAndSize(to.data, (Py_ssize_t)to.used) : NULL;

    PyMem_Free(to.more);
    if (data == NULL) {
        mp_discard_all(to.handles);
        Py_CLEAR(to.handles);
    }
    *handles = to.handles;
    if (rc != 0 || plain_dumps == NULL || !mp_is_made_of(is_light, object, DEPTH, FEW))
        return data;
    return PyObject_CallFunctionObjArgs(plain_dumps, object, protocol, NULL);
}

/* plain_pickle(object) -> bytes, or None for an object whose pickle needs a ForkingPickler */
PyObject *mp_py_plain_pickle(PyObject *module, PyObject *object)
{
    (void)module;
    PyObject *handles, *data = mp_plain_pickle(object, 1, &handles);

    Py_XDECREF(handles);
    if (data == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return data;
}

PyObject *mp_forking_pickle(PyObject *object, int by_value)
{
    /* Looked up in each call, since packages replace it. */
    PyObject *dumps = PyObject_GetAttr(forking_pickler, dumps_name);
    PyObject *args = dumps == NULL ? NULL : PyTuple_Pack(1, object);
    PyObject *message = args == NULL ? NULL : mp_pickled(by_value, dumps, args);

    Py_XDECREF(dumps);
    Py_XDECREF(args);
    return message;
}

/* pickled_object(object) -> Message */
PyObject *mp_py_pickled_object(PyObject *module, PyObject *object)
{
    (void)module;
    PyObject *handles, *data = mp_plain_pickle(object, 1, &handles);

    if (data != NULL)
        return mp_message_new(data, handles);
    return PyErr_Occurred() ? NULL : mp_forking_pickle(object, 0);
}

/* plain_data(object) -> bytes, or None for an object that is not made of few atoms; the pickle has
 * no handles */
PyObject *mp_py_plain_data(PyObject *module, PyObject *object)
{
    (void)module;
    PyObject *handles, *data = mp_plain_pickle(object, 0, &handles);

    if (data == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return data;
}

/* only_atoms(on): leave all messages that may have memory to ForkingPickler.dumps, which the
 * program may have replaced to look at them */
PyObject *mp_py_only_atoms(PyObject *module, PyObject *on)
{
    (void)module;
    shares_nothing = on == Py_True;
    Py_RETURN_NONE;
}

PyObject *mp_plain_loads(PyObject *data)
{
    if (PyBytes_CheckExact(data)) {
        PyObject *object = mp_read_message(data);
        if (object != NULL || PyErr_Occurred())
            return object;
    }
    /* Looked up in each call, since packages replace it. */
    return PyObject_CallMethodObjArgs(forking_pickler, loads_name, data, NULL);
}

/* plain_loads(bytes) -> the object */
PyObject *mp_py_plain_loads(PyObject *module, PyObject *data)
{
    (void)module;
    return mp_plain_loads(data);
}

int mp_setup_plain_pickle(PyObject *dumps, PyObject *number, PyObject *pickler)
{
    /* Once for the process, which keeps them. */
    plain_dumps = Py_NewRef(dumps);
    protocol = Py_NewRef(number);
    forking_pickler = Py_NewRef(pickler);
    loads_name = PyUnicode_InternFromString("loads");
    dumps_name = PyUnicode_InternFromString("dumps");
    return loads_name == NULL || dumps_name == NULL ? -1 : 0;
}
