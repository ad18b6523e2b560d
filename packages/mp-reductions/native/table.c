/* The table of the small arrays of one message, which travels beside its pickle.
 *
 * table.h has its format. The first arrays of a message are left to pickle: so a message with a few
 * has no table. */
#include <string.h>

#include "table.h"

static PyObject *rebuild, *on_exhaustion;

/* ---- writing ---- */

/* Return memory for `nbytes` more bytes; NULL with an exception. */
static unsigned char *more(Table *self, size_t nbytes)
{
    if (self->data == NULL || self->used + nbytes > self->room) {
        size_t room = self->room * 2 > self->used + nbytes ? self->room * 2 : self->used + nbytes;
        room = room < 4096 ? 4096 : room;
        unsigned char *data = PyMem_Realloc(self->data, room);
        if (data == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        self->data = data;
        self->room = room;
    }
    return self->data + self->used;
}

static int table_put_record(Table *self, enum place place, const PyArrayObject *a)
{
    const npy_intp *dims = PyArray_DIMS((PyArrayObject *)a);
    int nd = PyArray_NDIM(a);
    int same =
        nd == self->nd && (nd == 0 || memcmp(dims, self->dims, (size_t)nd * sizeof dims[0]) == 0);
    record r = {(unsigned char)place, (unsigned char)PyArray_DESCR(a)->type, (unsigned char)nd,
                (unsigned char)same};
    unsigned char *at = more(self, sizeof(uint32_t) + sizeof(r) + (size_t)nd * sizeof(int64_t));

    if (at == NULL)
        return -1;
    at = self->data + self->used;
    memcpy(at, &r, sizeof(r));
    self->used += sizeof(r);
    if (!same) {
        for (int i = 0; i < nd; i++) {
            int64_t n = dims[i];
            memcpy(self->data + self->used, &n, sizeof(n));
            self->used += sizeof(n);
            self->dims[i] = dims[i];
        }
        self->nd = nd;
    }
    self->count++;
    return 0;
}

static int table_put_bytes(Table *self, const void *bytes, size_t nbytes)
{
    unsigned char *at = more(self, nbytes);

    if (at == NULL)
        return -1;
    memcpy(at, bytes, nbytes);
    self->used += nbytes;
    return 0;
}

/* Takes over the reference to `handle`, which may be NULL with an exception set. */
static int put_handle(Table *self, enum place place, const PyArrayObject *a, PyObject *handle)
{
    int rc = handle == NULL || table_put_record(self, place, a) < 0 ||
                     table_put_bytes(self, MP_HANDLE_OPCODE, 2) < 0 ||
                     table_put_bytes(self, PyBytes_AsString(handle), MPSHM_HANDLE_SIZE) < 0
                 ? -1
                 : 1;
    Py_XDECREF(handle);
    return rc;
}

/* Put a small private array into the table: for want of room in the message, and of memory. */
static int put_inline(Table *self, const PyArrayObject *a, size_t nbytes)
{
    if (table_put_record(self, IN_TABLE, a) < 0)
        return -1;
    return table_put_bytes(self, PyArray_DATA((PyArrayObject *)a), nbytes) < 0 ? -1 : 1;
}

static int new_pack(Table *self, size_t nbytes, mpshm_block *pack)
{
    size_t size = self->pack_nbytes > nbytes ? self->pack_nbytes : nbytes;
    int rc = mp_core.block_allocate(*mp_core.strategy, size, MPSHM_NOWAIT, pack);

    if (rc < 0) {
        int strategy = *mp_core.strategy;
        Py_BEGIN_ALLOW_THREADS rc = mp_core.block_allocate(strategy, size, 0, pack);
        Py_END_ALLOW_THREADS
    }
    self->pack_nbytes = PACK;
    return rc;
}

/* Put a small private array into a pack: 1, or -1. */
static int put_packed(Table *self, const PyArrayObject *a, size_t nbytes)
{
    enum place place = IN_PACK;
    PyObject *handle = NULL;

    if (self->pack.data == NULL || nbytes > self->pack.nbytes - self->packed) {
        mpshm_block pack;
        int rc = new_pack(self, nbytes, &pack);
        if (rc < 0) { /* deliver it all the same */
            PyObject *told = PyObject_CallFunction(on_exhaustion, "ni", (Py_ssize_t)nbytes, -rc);
            Py_XDECREF(told);
            return told == NULL ? -1 : put_inline(self, a, nbytes);
        }
        handle = mp_core.make_handle(&pack, MPSHM_COPY);
        if (handle == NULL) {
            mp_core.block_release(&pack);
            return -1;
        }
        if (self->pack.data != NULL)
            mp_core.block_release(&self->pack); /* its in-flight reference keeps it */
        self->pack = pack;
        self->packed = 0;
        place = FIRST;
    }
    memcpy((char *)self->pack.data + self->packed, PyArray_DATA((PyArrayObject *)a), nbytes);
    self->packed += nbytes;
    mp_core.count_copied(nbytes);
    if (place == FIRST)
        return put_handle(self, place, a, handle);
    return table_put_record(self, place, a) < 0 ? -1 : 1;
}

/* Find where the bytes of an array are that the table takes: 1, or 0. */
static int place_of(PyObject *op, mp_place *place, Py_ssize_t *nbytes)
{
    enum { OF_ARRAY_AND_PLACE = 2 };

    *nbytes = mp_fast_nbytes(op);
    if (*nbytes < 0 || !mp_place_of(op, *nbytes, place))
        return 0;
    /* The message may have another reference to the Block, which pickle's memo finds. */
    if (place->keeper == NULL || Py_REFCNT(place->keeper) == OF_ARRAY_AND_PLACE)
        return 1;
    mp_core.release_place(place);
    return 0;
}

/* 1 when the array is in the table, 0 if it has to be pickled, -1 with an exception. */
static int table_add(Table *self, PyObject *op, const mp_place *place, Py_ssize_t nbytes)
{
    const PyArrayObject *a = (const PyArrayObject *)op;

    if (place->block.data != NULL)
        return put_handle(self, IN_BLOCK, a, mp_core.make_handle(&place->block, 0));
    if (nbytes > MP_SMALL || (size_t)nbytes > mp_inline_limit())
        return 0;
    if (!mp_core.message_has_room((size_t)nbytes, mp_inline_limit()))
        return put_packed(self, a, (size_t)nbytes);
    return put_inline(self, a, (size_t)nbytes);
}

/* reduce(array) -> its reduction: its number in the table, or as without a table */
static PyObject *table_reduce(PyObject *op, PyObject *array)
{
    Table *self = (Table *)op;

    if (self->left < FEW) {
        self->left++;
        return mp_py_reduce_array(NULL, array);
    }
    Py_ssize_t nbytes;
    mp_place place;
    int added = 0;
    if (place_of(array, &place, &nbytes)) {
        added = table_add(self, array, &place, nbytes);
        mp_core.release_place(&place);
    }
    if (added < 0)
        return NULL;
    return added ? mp_core.beside(self->number, self->count - 1) : mp_py_reduce_array(NULL, array);
}

/* __reduce__() -> (rebuild_table, (bytes,)) */
static PyObject *table_pickle(PyObject *op, PyObject *unused)
{
    Table *self = (Table *)op;
    (void)unused;

    if (more(self, 0) == NULL)
        return NULL;
    memcpy(self->data, &self->count, sizeof(self->count));
    return Py_BuildValue("(O(y#))", rebuild, (char *)self->data, (Py_ssize_t)self->used);
}

static PyObject *table_count(PyObject *op, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLong(((Table *)op)->count);
}

/* Table(number of the table in its message) */
static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    int number;
    (void)names;

    if (!PyArg_ParseTuple(args, "i:Table", &number))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Table *self = (Table *)alloc(type, 0);
    if (self != NULL) {
        self->number = number;
        self->nd = -1;
        self->pack_nbytes = PACK;
        self->used = sizeof(uint32_t); /* the number of records */
    }
    return (PyObject *)self;
}

static void table_dealloc(PyObject *op)
{
    Table *self = (Table *)op;
    PyTypeObject *type = Py_TYPE(op);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    if (self->pack.data != NULL)
        mp_core.block_release(&self->pack);
    PyMem_Free(self->data);
    release(op);
    Py_DECREF(type);
}

/* ---- a message that is nothing but a list of arrays ---- */

enum { LARGE_PACK = 1 << 24 }; /* bytes */

/* The first position of each object of a list, by its address. */
typedef struct {
    PyObject **objects;
    uint32_t *positions;
    size_t mask;
} positions;

/* Return the earlier position of `object`, or `at` after entering it. */
static uint32_t first_position(positions *of, PyObject *object, uint32_t at)
{
    size_t k = ((uintptr_t)object >> 4) * 0x9E3779B97F4A7C15u >> 20;

    for (k &= of->mask; of->objects[k] != NULL; k = (k + 1) & of->mask)
        if (of->objects[k] == object)
            return of->positions[k];
    of->objects[k] = object;
    of->positions[k] = at;
    return at;
}

/* Check each array of the list and find its place: the bytes for packs, or -1 if one has to be
 * pickled. */
static Py_ssize_t survey(PyObject *arrays, Py_ssize_t count, mp_place *places, positions *seen)
{
    Py_ssize_t sum = 0, nbytes;

    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *array = PyTuple_GetItem(arrays, i);
        if (first_position(seen, array, (uint32_t)i) != (uint32_t)i)
            continue;
        if (!PyArray_CheckExact(array) || !place_of(array, &places[i], &nbytes))
            return -1;
        if (places[i].block.data != NULL)
            continue;
        if (nbytes > MP_SMALL || (size_t)nbytes > mp_inline_limit())
            return -1;
        sum += nbytes;
    }
    return sum;
}

/* Whether the array is still where the survey found it: another thread may have changed it. */
static int is_there(PyObject *array, const mp_place *place, Py_ssize_t nbytes)
{
    return nbytes >= 0 && (place->block.data == NULL ||
                           (place->block.nbytes == (uint64_t)nbytes &&
                            place->block.data == PyArray_DATA((PyArrayObject *)array)));
}

static int add_all(Table *self, PyObject *arrays, Py_ssize_t count, const mp_place *places,
                   positions *seen)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *array = PyTuple_GetItem(arrays, i);
        uint32_t first = first_position(seen, array, (uint32_t)i);
        if (first != (uint32_t)i) {
            if (table_put_record(self, AS_BEFORE, (PyArrayObject *)array) < 0 ||
                table_put_bytes(self, &first, sizeof(first)) < 0)
                return -1;
            continue;
        }
        Py_ssize_t nbytes = mp_fast_nbytes(array);
        int added =
            is_there(array, &places[i], nbytes) ? table_add(self, array, &places[i], nbytes) : 0;
        if (added == 0)
            PyErr_SetString(PyExc_RuntimeError, "an array was changed while it was sent");
        if (added <= 0)
            return -1;
    }
    return 1;
}

/* take_list(list) -> True if the table now is that list; False, and nothing has changed, if one of
 * its objects is no array for the table. */
static PyObject *take_list(PyObject *op, PyObject *list)
{
    Table *self = (Table *)op;
    Py_ssize_t count = PyList_CheckExact(list) ? PyList_Size(list) : 0, size = 64;
    int taken = 0;

    if (count <= FEW || count > UINT32_MAX / 4 || !PyArray_CheckExact(PyList_GetItem(list, 0)) ||
        !PyArray_CheckExact(PyList_GetItem(list, count - 1)))
        Py_RETURN_FALSE;
    while (size < 2 * count)
        size *= 2;
    PyObject *arrays = PyList_AsTuple(list);
    mp_place *places = PyMem_Calloc((size_t)count, sizeof(*places));
    positions seen = {PyMem_Calloc((size_t)size, sizeof(PyObject *)),
                      PyMem_Malloc((size_t)size * sizeof(uint32_t)), (size_t)size - 1};
    if (arrays != NULL && PyTuple_Size(arrays) == count && places != NULL && seen.objects != NULL &&
        seen.positions != NULL) {
        Py_ssize_t packed = survey(arrays, count, places, &seen);
        if (packed >= 0) {
            self->pack_nbytes = (size_t)(packed < LARGE_PACK ? packed : LARGE_PACK);
            taken = add_all(self, arrays, count, places, &seen);
        }
    } else if (!PyErr_Occurred()) {
        PyErr_NoMemory();
        taken = -1;
    }
    for (Py_ssize_t i = 0; places != NULL && i < count; i++)
        mp_core.release_place(&places[i]);
    PyMem_Free(seen.objects);
    PyMem_Free(seen.positions);
    PyMem_Free(places);
    Py_XDECREF(arrays);
    return taken < 0 ? NULL : PyBool_FromLong(taken);
}

/* ---- the type ---- */

static PyMethodDef methods[] = {
    {"reduce", table_reduce, METH_O, "Reduce an array of the message."},
    {"take_list", take_list, METH_O, "Become a list of arrays, the whole message."},
    {"__reduce__", table_pickle, METH_NOARGS, "Pickle as the list of its arrays."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"count", table_count, NULL, "The number of arrays in it.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Table(number, /)\n--\n\nThe small arrays of one message, beside its pickle."},
    {Py_tp_new, table_new},
    {Py_tp_dealloc, table_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "mp_reductions._native.Table",
    .basicsize = sizeof(Table),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

/* setup_table(on_exhaustion): called with (bytes, errno) when there is no memory for a pack */
PyObject *mp_py_setup_table(PyObject *module, PyObject *callable)
{
    (void)module;
    on_exhaustion = Py_NewRef(callable); /* once for the process, which keeps it */
    Py_RETURN_NONE;
}

int mp_add_table_type(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    int rc = type == NULL ? -1 : PyModule_AddObjectRef(module, "Table", type);

    Py_XDECREF(type);
    rebuild = PyObject_GetAttrString(module, "rebuild_table");
    return rebuild == NULL ? -1 : rc;
}
