/* The type under mp_cuda.DeviceArray, and how an array is described in a message. */
#include "native.h"

#include <structmember.h>

enum { KNOWN = 64 };

int mp_is_array(PyObject *object)
{
    return (PyObject *)Py_TYPE(object) == mp_hook.array_type;
}

PyObject *mp_damaged(const char *what)
{
    return PyErr_Format(PyExc_ValueError, "the message of a device array is damaged: %s", what);
}

/* ---- dtypes, by DLPack's three numbers ---- */

typedef struct {
    PyObject *dtype;
    uint16_t bits, lanes;
    uint8_t code, is_plain;
} known_dtype;

/* The last ones that were sent, and those that were received. */
static known_dtype sent[KNOWN], received[KNOWN];
static unsigned sent_count, received_count;

static known_dtype *add(known_dtype *table, unsigned *count, known_dtype dtype)
{
    known_dtype *to = &table[(*count)++ % KNOWN];
    PyObject *before = to->dtype;

    *to = dtype;
    Py_XDECREF(before);
    return to;
}

/* What is known of a dtype; NULL with an exception. */
static const known_dtype *numbers_of(PyObject *dtype)
{
    unsigned filled = sent_count < KNOWN ? sent_count : KNOWN;
    int code = 0, bits = 0, lanes = 0;

    for (unsigned i = 0; i < filled; i++)
        if (sent[i].dtype == dtype)
            return &sent[i];
    PyObject *numbers = mp_call(mp_hook.plain_dtype, dtype);
    if (numbers == NULL)
        return NULL;
    int is_plain = numbers != Py_None;
    int ok = !is_plain || PyArg_ParseTuple(numbers, "iii", &code, &bits, &lanes);
    Py_DECREF(numbers);
    known_dtype made = {Py_NewRef(dtype), (uint16_t)bits, (uint16_t)lanes, (uint8_t)code,
                        (uint8_t)is_plain};
    if (!ok || bits < 0 || bits > UINT16_MAX || lanes < 0 || lanes > UINT16_MAX) {
        if (ok)
            PyErr_Format(PyExc_ValueError, "an element of %R is too large to be sent", dtype);
        Py_DECREF(dtype);
        return NULL;
    }
    return add(sent, &sent_count, made);
}

/* The dtype with these numbers, a new reference. */
static PyObject *dtype_of(const mp_layout *l)
{
    unsigned filled = received_count < KNOWN ? received_count : KNOWN;

    for (unsigned i = 0; i < filled; i++)
        if (received[i].code == l->code && received[i].bits == l->bits &&
            received[i].lanes == l->lanes)
            return Py_NewRef(received[i].dtype);
    PyObject *dtype =
        PyObject_CallFunction(mp_hook.dtype_of, "((iii))", l->code, l->bits, l->lanes);
    if (dtype != NULL)
        add(received, &received_count,
            (known_dtype){Py_NewRef(dtype), l->bits, l->lanes, l->code, 1});
    return dtype;
}

/* ---- from arrays ---- */

static int64_t itemsize_of(const mp_layout *l)
{
    return ((int64_t)l->bits * l->lanes + 7) / 8;
}

/* -1 with an exception. */
static int64_t itemsize_in(PyObject *dtype)
{
    PyObject *itemsize = PyObject_GetAttrString(dtype, "itemsize");
    int64_t nbytes = itemsize == NULL ? -1 : PyLong_AsLongLong(itemsize);

    Py_XDECREF(itemsize);
    if (nbytes < 0 && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "%R has a negative itemsize", dtype);
    return nbytes;
}

/* The numbers of a tuple; -1 with an exception. */
static int numbers(PyObject *tuple, int64_t *to, Py_ssize_t n)
{
    if (PyTuple_Size(tuple) != n) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "an array has as many strides as axes");
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        to[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    return PyErr_Occurred() ? -1 : 0;
}

int mp_describe_array(const mp_array *array, mp_described *to)
{
    Py_ssize_t nd = PyTuple_Size(array->shape);
    const known_dtype *dtype = nd < 0 ? NULL : numbers_of(array->dtype);

    if (dtype == NULL)
        return -1;
    if (nd > MP_AXES) {
        PyErr_Format(PyExc_ValueError, "an array with %zd axes cannot be sent; %d is the most", nd,
                     MP_AXES);
        return -1;
    }
    int64_t *shape = to->dims, *strides = to->dims + nd;
    to->head = (mp_layout){.nd = (uint8_t)nd,
                           .flags = array->readonly ? MP_READONLY : 0,
                           .code = dtype->code,
                           .bits = dtype->bits,
                           .lanes = dtype->lanes};
    int64_t step = itemsize_of(&to->head);
    if (!dtype->is_plain) {
        to->head.flags |= MP_OTHER_DTYPE;
        step = itemsize_in(array->dtype);
    }
    if (step < 0 || numbers(array->shape, shape, nd) < 0 ||
        numbers(array->strides, strides, nd) < 0)
        return -1;
    int is_empty = 0;
    to->low = 0;
    to->high = step;
    for (Py_ssize_t i = nd; i-- > 0;) {
        if (strides[i] != step)
            to->head.flags |= MP_STRIDED;
        step *= shape[i] > 1 ? shape[i] : 1;
        is_empty |= shape[i] == 0;
        *(strides[i] < 0 ? &to->low : &to->high) += (shape[i] - 1) * strides[i];
    }
    if (is_empty)
        to->low = to->high = 0;
    to->nbytes =
        sizeof(to->head) + (size_t)nd * sizeof(shape[0]) * (to->head.flags & MP_STRIDED ? 2 : 1);
    return 0;
}

/* ---- to arrays ---- */

int mp_read_layout(const void *layout, size_t nbytes, mp_layout *head)
{
    if (nbytes >= sizeof(*head)) {
        memcpy(head, layout, sizeof(*head));
        size_t each = sizeof(int64_t) * (head->flags & MP_STRIDED ? 2 : 1);
        if (head->nd <= MP_AXES && nbytes == sizeof(*head) + head->nd * each)
            return 0;
    }
    mp_damaged("a layout has the wrong size");
    return -1;
}

static PyObject *tuple_of(const int64_t *values, int n)
{
    PyObject *tuple = PyTuple_New(n);

    for (int i = 0; tuple != NULL && i < n; i++) {
        PyObject *value = PyLong_FromLongLong(values[i]);
        if (value == NULL || PyTuple_SetItem(tuple, i, value) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* The bytes of an array, from its first element, are in the memory. */
static int is_inside(const int64_t *shape, const int64_t *strides, int nd, int64_t itemsize,
                     int64_t offset, uint64_t size)
{
    int64_t low = offset, high, more;
    int is_empty = 0, wraps = __builtin_add_overflow(offset, itemsize, &high);

    for (int i = 0; i < nd; i++) {
        if (shape[i] < 0)
            return 0;
        is_empty |= shape[i] == 0;
        wraps |= __builtin_mul_overflow(shape[i] - 1, strides[i], &more);
        wraps |= strides[i] < 0 ? __builtin_add_overflow(low, more, &low)
                                : __builtin_add_overflow(high, more, &high);
    }
    return is_empty || (!wraps && low >= 0 && (uint64_t)high <= size);
}

PyObject *mp_array_of(const mp_layout *head, const void *layout, uint64_t base, uint64_t size,
                      int device, PyObject *owner, PyObject *dtype)
{
    int nd = head->nd, is_strided = (head->flags & MP_STRIDED) != 0;
    int64_t dims[2 * MP_AXES], *strides = dims + nd;
    int64_t itemsize = dtype != NULL ? itemsize_in(dtype) : itemsize_of(head), step = itemsize;

    if (itemsize < 0)
        return NULL;
    memcpy(dims, (const char *)layout + sizeof(*head),
           (size_t)nd * sizeof(dims[0]) * (is_strided ? 2 : 1));
    for (int i = nd; !is_strided && i-- > 0;) {
        strides[i] = step;
        if (dims[i] > 1 && __builtin_mul_overflow(step, dims[i], &step))
            return mp_damaged("a shape is too large");
    }
    if (!is_inside(dims, strides, nd, itemsize, head->offset, size))
        return mp_damaged("an array reaches beyond its memory");
    dtype = dtype != NULL ? Py_NewRef(dtype) : dtype_of(head);
    if (dtype == NULL)
        return NULL;
    mp_array *array = mp_new(mp_hook.array_type);
    if (array == NULL) {
        Py_DECREF(dtype);
        return NULL;
    }
    array->dtype = dtype;
    array->owner = Py_XNewRef(owner);
    array->ptr = head->row == MP_NO_ROW ? 0 : base + (uint64_t)head->offset;
    array->device = device;
    array->readonly = (head->flags & MP_READONLY) != 0;
    array->shape = tuple_of(dims, nd);
    array->strides = array->shape ? tuple_of(strides, nd) : NULL;
    if (array->strides == NULL)
        Py_CLEAR(array);
    return (PyObject *)array;
}

/* ---- the type ---- */

/* The strides of C order. */
static PyObject *row_major(PyObject *shape, PyObject *dtype)
{
    int64_t step = itemsize_in(dtype);
    Py_ssize_t nd = PyTuple_Size(shape);
    PyObject *strides = step < 0 ? NULL : PyTuple_New(nd);

    for (Py_ssize_t i = nd; strides != NULL && i-- > 0;) {
        long long n = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        PyObject *value = n == -1 && PyErr_Occurred() ? NULL : PyLong_FromLongLong(step);
        if (value == NULL || PyTuple_SetItem(strides, i, value) < 0)
            Py_CLEAR(strides);
        else
            step *= n > 1 ? n : 1;
    }
    return strides;
}

static PyObject *array_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"ptr",      "shape", "dtype",  "device", "strides",
                               "readonly", "owner", "stream", NULL};
    PyObject *shape, *dtype, *strides = Py_None, *owner = Py_None, *stream = Py_None;
    unsigned long long ptr;
    int device, readonly = 0;

    if (!PyArg_ParseTupleAndKeywords(args, names, "KO!Oi|$OpOO:DeviceArray", keywords, &ptr,
                                     &PyTuple_Type, &shape, &dtype, &device, &strides, &readonly,
                                     &owner, &stream))
        return NULL;
    unsigned long long number = stream == Py_None ? 0 : PyLong_AsUnsignedLongLong(stream);
    if (PyErr_Occurred())
        return NULL;
    strides = strides == Py_None ? row_major(shape, dtype) : Py_NewRef(strides);
    if (strides == NULL)
        return NULL;
    mp_array *self = mp_new((PyObject *)type);
    if (self == NULL) {
        Py_DECREF(strides);
        return NULL;
    }
    self->ptr = ptr;
    self->shape = Py_NewRef(shape);
    self->dtype = Py_NewRef(dtype);
    self->strides = strides;
    self->owner = owner == Py_None ? NULL : Py_NewRef(owner);
    self->device = device;
    self->readonly = (char)readonly;
    self->stream = number;
    return (PyObject *)self;
}

static int array_traverse(PyObject *op, visitproc visit, void *arg)
{
    mp_array *self = (mp_array *)op;

    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->dtype);
    Py_VISIT(self->owner);
    return 0;
}

static int array_clear(PyObject *op)
{
    Py_CLEAR(((mp_array *)op)->owner);
    return 0;
}

static void array_dealloc(PyObject *op)
{
    mp_array *self = (mp_array *)op;

    PyObject_GC_UnTrack(op);
    Py_XDECREF(self->shape);
    Py_XDECREF(self->strides);
    Py_XDECREF(self->dtype);
    Py_XDECREF(self->owner);
    mp_free(op);
}

static PyObject *get_stream(PyObject *op, void *unused)
{
    uint64_t stream = ((mp_array *)op)->stream;
    if (stream == 0)
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(stream);
}

static PyMemberDef array_members[] = {
    {"ptr", T_ULONGLONG, offsetof(mp_array, ptr), READONLY, "Address of the first element."},
    {"shape", T_OBJECT_EX, offsetof(mp_array, shape), READONLY, "Lengths of the axes."},
    {"strides", T_OBJECT_EX, offsetof(mp_array, strides), READONLY, "In bytes."},
    {"dtype", T_OBJECT_EX, offsetof(mp_array, dtype), READONLY, "The element type."},
    {"device", T_INT, offsetof(mp_array, device), READONLY, "The ordinal of its device."},
    {"readonly", T_BOOL, offsetof(mp_array, readonly), READONLY, "Whether writing is forbidden."},
    {"_owner", T_OBJECT, offsetof(mp_array, owner), READONLY, "What keeps the memory."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef array_getset[] = {
    {"_stream", get_stream, NULL, "The stream that produces the content, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot array_slots[] = {
    {Py_tp_doc,
     "Array(ptr, shape, dtype, device, *, strides=None, readonly=False, owner=None, stream=None)\n"
     "--\n\nAn array on a device; mp_cuda.DeviceArray adds its methods."},
    {Py_tp_new, array_new},
    {Py_tp_traverse, array_traverse},
    {Py_tp_clear, array_clear},
    {Py_tp_dealloc, array_dealloc},
    {Py_tp_members, array_members},
    {Py_tp_getset, array_getset},
    {0, NULL},
};

int mp_add_array(PyObject *module)
{
    PyObject *type = mp_add_type(module, "mp_cuda._native.Array", sizeof(mp_array),
                                 Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, array_slots);

    Py_XDECREF(type);
    return type == NULL ? -1 : 0;
}
