/* Many objects of one message that pickle does not write one by one.
 *
 * Note [Objects beside a pickle]
 *   A message that needs a pickler may have a thousand small arrays, which cost pickle a thousand
 *   times a reduction, a tuple, and three entries in its memo. So from the 17th on the objects of
 *   codecs go into a *table*, and the pickle has their numbers; those that share something do so
 *   from the first on:
 *
 *     pickle of (load_out_of_band, (stream, pickle of a list))
 *                                |
 *                                +-- ... out_of_band(number) ... out_of_band(number) ...
 *
 *   An object is surveyed and written as any other (encode.c), when the pickler meets it: what runs
 *   after that may change it. One that its codec does not take goes to its reducer. The list is
 *   read before the stream, so out_of_band() only looks an object up. An object occurs in it once,
 *   since the pickler's memo finds the second occurrence.
 *
 *   The stream belongs to its message: only the pickler of the message writes numbers, and not a
 *   pickler that a reducer makes meanwhile (pickling.py). Reading nests, and each thread has its
 *   own objects. */
#include "messages/messages.h"
#include "messages/plan.h"

static _Thread_local PyObject *current; /* the list of the stream that is being read */

enum {
    KEPT = 1 << 13,
    FEW = 16,       /* objects that are left to pickle */
    PACK = 1 << 18, /* bytes */
};
static PyObject *arguments[KEPT]; /* (number,), which are the same in each message */
static PyObject *out_of_band;

/* ---- writing ---- */

typedef struct {
    PyObject_HEAD
    mp_survey survey;
    unsigned left; /* objects left to pickle so far */
    size_t count;  /* in the list */
} ObjectTable;

/* The reduction of the object of that number. */
static PyObject *numbered(size_t number)
{
    PyObject *args = number < KEPT ? arguments[number] : NULL;

    if (args == NULL) {
        args = Py_BuildValue("(n)", (Py_ssize_t)number);
        if (args != NULL && number < KEPT)
            arguments[number] = Py_NewRef(args);
    } else {
        Py_INCREF(args);
    }
    PyObject *reduction = args ? PyTuple_Pack(2, out_of_band, args) : NULL;
    Py_XDECREF(args);
    return reduction;
}

/* 1 for an object that is in the list now; 0, and nothing has changed; -1 with an exception. */
static int take(ObjectTable *self, PyObject *object)
{
    int rc = mp_write_one(&self->survey, object, self->left < FEW);

    if (rc == 1)
        self->count++;
    else if (rc == 0)
        self->left++;
    return rc;
}

/* reduce(object) -> its reduction: its number in the list, or as without a table */
static PyObject *reduce(PyObject *op, PyObject *object)
{
    const mp_codec *codec = mp_codec_of(object);
    ObjectTable *self = (ObjectTable *)op;

    if (codec == NULL)
        return PyErr_Format(PyExc_TypeError, "%R has no codec", Py_TYPE(object));
    int rc = take(self, object);
    if (rc < 0)
        return NULL;
    return rc == 1 ? numbered(self->count - 1)
                   : PyObject_CallFunctionObjArgs(codec->reducer, object, NULL);
}

static int begin_list(ObjectTable *self)
{
    mp_begin_survey(&self->survey, 1);
    self->survey.is_crowded = 1;
    self->survey.may_view = 0; /* their Block may be elsewhere in the message */
    self->survey.pack_room = PACK;
    self->survey.plan.numbers = 1; /* the list */
    self->left = 0;
    self->count = 0;
    char *head = mp_writer_room(&self->survey.plan.bytes, 5);
    if (head != NULL)
        memcpy(head, "\x80\x04]\x94(", 5);
    return head == NULL ? -1 : 0;
}

/* The pickle of the list. */
static PyObject *list_of_objects(ObjectTable *self)
{
    mp_writer *bytes = &self->survey.plan.bytes;
    char *end = mp_writer_room(bytes, 2);

    if (end == NULL)
        return NULL;
    memcpy(end, "e.", 2);
    if (mp_plan_finish(&self->survey.plan) < 0)
        return NULL;
    return PyBytes_FromStringAndSize(bytes->data, (Py_ssize_t)bytes->used);
}

/* written() -> the pickle of the list of the objects, None without objects; the next message begins */
static PyObject *written(PyObject *op, PyObject *unused)
{
    ObjectTable *self = (ObjectTable *)op;

    if (self->count == 0 && self->left == 0)
        Py_RETURN_NONE;
    PyObject *list = self->count > 0 ? list_of_objects(self) : Py_NewRef(Py_None);
    mp_end_plan(&self->survey.plan);
    if (begin_list(self) < 0)
        Py_CLEAR(list);
    return list;
}

/* ObjectTable(reducers of the message's pickler): replaces those of codecs */
static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *reducers;

    if (!PyArg_ParseTuple(args, "O!:ObjectTable", &PyDict_Type, &reducers) ||
        mp_set_up_pickling() < 0)
        return NULL;
    ObjectTable *self = mp_new(type);
    if (self == NULL)
        return NULL;
    int rc = begin_list(self);
    PyObject *method = rc < 0 ? NULL : PyObject_GetAttrString((PyObject *)self, "reduce");
    if (method == NULL || mp_replace_reducers(reducers, method) < 0)
        Py_CLEAR(self);
    Py_XDECREF(method);
    return (PyObject *)self;
}

static void table_dealloc(PyObject *op)
{
    mp_end_plan(&((ObjectTable *)op)->survey.plan);
    mp_free(op);
}

/* ---- reading ---- */

/* out_of_band(number) -> the object */
PyObject *mp_py_out_of_band(PyObject *module, PyObject *number)
{
    size_t n = PyLong_AsSize_t(number);

    if (n == (size_t)-1 && PyErr_Occurred())
        return NULL;
    if (current != NULL && n < (size_t)PyList_Size(current))
        return Py_NewRef(PyList_GetItem(current, (Py_ssize_t)n));
    return PyErr_Format(PyExc_ValueError, "the message is damaged: it has no object number %zu", n);
}

/* load_out_of_band(stream, pickle of a list) -> the object of the stream */
PyObject *mp_py_load_out_of_band(PyObject *module, PyObject *args)
{
    PyObject *stream, *objects;

    if (!PyArg_ParseTuple(args, "SO:load_out_of_band", &stream, &objects))
        return NULL;
    if (!PyBytes_CheckExact(objects))
        return PyErr_Format(PyExc_ValueError,
                            "the message is damaged: its objects are a %R, not bytes",
                            Py_TYPE(objects));
    objects = mp_decode_part(objects);
    if (objects != NULL && !PyList_CheckExact(objects)) {
        PyErr_Format(PyExc_ValueError, "the message is damaged: its objects are a %R, not a list",
                     Py_TYPE(objects));
        Py_CLEAR(objects);
    }
    if (objects == NULL)
        return NULL;
    PyObject *before = current;
    current = objects;
    PyObject *object = mp_unpickle_part(stream);
    current = before;
    Py_DECREF(objects);
    return object;
}

/* ---- the type ---- */

static PyMethodDef methods[] = {
    {"reduce", reduce, METH_O, "Reduce an object of the message."},
    {"written", written, METH_NOARGS, "Return the pickle of the list, or None; begin the next."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "ObjectTable(reducers, /)\n--\n\nThe out-of-band objects of a message."},
    {Py_tp_new, table_new},
    {Py_tp_dealloc, table_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

int mp_add_object_table(PyObject *module)
{
    PyObject *type =
        mp_add_type(module, "mp_core._block.ObjectTable", sizeof(ObjectTable), 0, slots);

    Py_XDECREF(type);
    out_of_band = PyObject_GetAttrString(module, "out_of_band");
    return type == NULL || out_of_band == NULL ? -1 : 0;
}
