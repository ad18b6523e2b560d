/* The codec of arrays: how one is written into a small message and read, without a pickler.
 *
 *   module, rebuild_from_bytes, STACK_GLOBAL | bytes  | name | shape | TUPLE3 | REDUCE
 *   module, rebuild_from_block, STACK_GLOBAL | handle | name | shape | TUPLE3 | REDUCE
 *   module, rebuild_from_pack,  STACK_GLOBAL, MARK | pack | offset | name | shape | TUPLE | REDUCE
 *   module, rebuild_view,       STACK_GLOBAL, MARK | block | name | shape | offset | strides |
 *                                                    NEWTRUE or NEWFALSE | TUPLE | REDUCE
 *   module, rebuild_strided,    STACK_GLOBAL, MARK | bytes | name | ...
 *
 * The first two are the pickle that the fast path's reduction (fast_path.c) would give, without
 * memo and frame; mp_core/native/messages/packs.c has the pack and the block. */
#include <string.h>

#include "native.h"

enum { TAIL = 16 + MP_DTYPE_NAME + MP_NUMBER * NPY_MAXDIMS, HANDLE = 2 + MPSHM_HANDLE_SIZE };

static const unsigned char close_tuple[] = {')', 0x85, 0x86, 0x87}; /* EMPTY_TUPLE, TUPLE1, ... */
static mp_global from_bytes, from_block, from_pack, view, strided;

/* ---- writing ---- */

static char *put_shape(char *at, const npy_intp *dims, int nd)
{
    if (nd > 3)
        *at++ = '('; /* MARK */
    for (int i = 0; i < nd; i++)
        at = mp_put_number(at, dims[i]);
    *at++ = nd > 3 ? 't' : (char)close_tuple[nd];
    return at;
}

/* The number of its bytes, and its dtype; or -1, perhaps with an exception, for an array that needs
 * the reducer. */
static Py_ssize_t writable_nbytes(PyObject *op, const mp_dtype **dtype)
{
    Py_ssize_t nbytes = mp_fast_nbytes(op, dtype);

    /* NumPy 2 has more dimensions than its headers for 1.25 say. */
    return PyArray_NDIM((PyArrayObject *)op) > NPY_MAXDIMS ? -1 : nbytes;
}

/* Whether it is a part of a block, or small and private. */
static int survey_view(mp_entry *entry)
{
    const mp_dtype *dtype;
    mp_own_bytes own;
    int rc = mp_view_of(entry->object, &dtype, &entry->place);

    if (rc != 1)
        return rc;
    entry->is_view = entry->place.block.data != NULL;
    if (entry->is_view)
        return entry->may_view;
    if (!mp_own_bytes_of((PyArrayObject *)entry->object, dtype->itemsize, &own) ||
        own.nbytes > MP_SMALL || !mp_core.message_has_room(own.nbytes, mp_inline_limit()))
        return 0;
    entry->nbytes = own.nbytes;
    entry->in_message = entry->is_strided = 1;
    return 1;
}

static int survey_array(mp_entry *entry)
{
    const mp_dtype *dtype;
    Py_ssize_t nbytes = writable_nbytes(entry->object, &dtype);

    if (nbytes < 0 && PyErr_Occurred())
        return -1;
    if (nbytes < 0 || !mp_place_of(entry->object, nbytes, &entry->place))
        return survey_view(entry);
    entry->memory = entry->place.block.data;
    if (entry->memory == NULL) {
        entry->nbytes = (size_t)nbytes;
        entry->in_message =
            nbytes <= INT32_MAX && mp_core.message_has_room(entry->nbytes, mp_inline_limit());
        entry->in_pack = !entry->in_message && entry->may_pack && nbytes <= MP_SMALL &&
                         entry->nbytes <= mp_inline_limit();
    }
    return 1;
}

/* An array that is written, and its dtype. */
typedef struct {
    const PyArrayObject *array;
    const mp_dtype *dtype;
} source;

/* name, shape */
static char *put_layout(char *at, source a)
{
    at = mp_put_sized(at, '\x8c', a.dtype->text, a.dtype->length);
    return put_shape(at, PyArray_DIMS((PyArrayObject *)a.array), PyArray_NDIM(a.array));
}

/* name, shape, and what ends the pickle */
static size_t put_tail(char *tail, source a, const char ends[2])
{
    return (size_t)(mp_put(put_layout(tail, a), ends, 2) - tail);
}

/* Write what comes before the memory and after it; returns the place for the memory. */
static char *write_around(mp_writer *to, const mp_global *rebuild, size_t nbytes, source a)
{
    char tail[TAIL];
    size_t tail_nbytes = put_tail(tail, a, "\x87R");
    char *at = mp_core.writer_room(to, rebuild->nbytes + nbytes + tail_nbytes);

    if (at == NULL)
        return NULL;
    char *memory = mp_put(at, rebuild->bytes, rebuild->nbytes);
    mp_put(memory + nbytes, tail, tail_nbytes);
    return memory;
}

/* BINBYTES, the length, the bytes. */
static int write_bytes(mp_writer *to, source a, size_t nbytes)
{
    char *at = write_around(to, &from_bytes, 5 + nbytes, a);

    if (at == NULL)
        return -1;
    *at++ = 'B';
    at = mp_put_little_endian(at, nbytes, 4);
    memcpy(at, PyArray_DATA((PyArrayObject *)a.array), nbytes);
    return 1;
}

/* Takes over the reference to the handle, which may be NULL. */
static int write_handle(mp_writer *to, source a, PyObject *handle)
{
    char *at = handle != NULL ? write_around(to, &from_block, HANDLE, a) : NULL;

    if (at != NULL)
        mp_put_sized(at, 'C', PyBytes_AsString(handle), MPSHM_HANDLE_SIZE);
    Py_XDECREF(handle);
    return at != NULL ? 1 : PyErr_Occurred() ? -1 : 0;
}

/* 1 if the array is as the survey found it: another thread may have changed it. */
static int is_unchanged(const mp_entry *entry, source a)
{
    const mp_dtype *dtype;

    return writable_nbytes(entry->object, &dtype) == (Py_ssize_t)entry->nbytes && dtype == a.dtype;
}

static int put_all(mp_writer *to, const char *bytes, const char *end)
{
    char *at = mp_core.writer_room(to, (size_t)(end - bytes));

    if (at == NULL)
        return -1;
    mp_put(at, bytes, (size_t)(end - bytes));
    return 1;
}

static int write_in_pack(const mp_entry *entry, source a, mp_writer *to)
{
    mp_pack *pack = entry->pack;
    char all[sizeof(from_pack.bytes) + 1 + MP_MEMO_GET + MP_NUMBER + TAIL];
    char *end = mp_put(all, from_pack.bytes, from_pack.nbytes);

    *end++ = '('; /* MARK */
    if (pack->block.data != NULL) {
        end = mp_put_memo_get(end, pack->number);
    } else {
        int rc = put_all(to, all, end);
        if (rc == 1)
            rc = mp_core.write_pack(pack, to);
        if (rc != 1)
            return rc;
        if (!is_unchanged(entry, a))
            return PyErr_Occurred() ? -1 : 0;
        end = all;
    }
    memcpy((char *)pack->block.data + entry->offset, PyArray_DATA((PyArrayObject *)a.array),
           entry->nbytes);
    if (pack->room != 0)
        mp_core.count_copied(entry->nbytes); /* otherwise the pack was counted */
    end = mp_put_number(end, (int64_t)entry->offset);
    end += put_tail(end, a, "tR");
    return put_all(to, all, end);
}

static int write_private(const mp_entry *entry, source a, mp_writer *to)
{
    size_t nbytes = entry->nbytes;

    if (entry->in_message)
        return write_bytes(to, a, nbytes);
    if (entry->pack != NULL)
        return write_in_pack(entry, a, to);
    PyObject *handle = mp_copy_to_block(entry->object, nbytes, a.dtype);
    if (handle != NULL && !is_unchanged(entry, a)) {
        Py_DECREF(handle);
        return PyErr_Occurred() ? -1 : 0;
    }
    return write_handle(to, a, handle);
}

enum { VIEW_TAIL = MP_DTYPE_NAME + MP_NUMBER + 2 * MP_NUMBER * NPY_MAXDIMS + 16 };

/* name, shape, offset, strides, whether it is writeable, TUPLE, REDUCE */
static size_t put_view_tail(char *tail, source a, int64_t offset, const npy_intp *strides)
{
    int writeable = (PyArray_FLAGS(a.array) & NPY_ARRAY_WRITEABLE) != 0;
    char *end = mp_put_number(put_layout(tail, a), offset);

    end = put_shape(end, strides, PyArray_NDIM(a.array));
    return (size_t)(mp_put(end, writeable ? "\x88tR" : "\x89tR", 3) - tail);
}

static int write_view(const mp_entry *entry, source a, mp_writer *to)
{
    char head[sizeof(view.bytes) + 1], *head_end = mp_put(head, view.bytes, view.nbytes);
    char rest[MP_MEMO_GET + VIEW_TAIL], *end = rest;
    int64_t offset =
        (char *)PyArray_DATA((PyArrayObject *)a.array) - (char *)entry->place.block.data;

    *head_end++ = '('; /* MARK */
    if (!entry->is_first)
        end = mp_put_memo_get(end, entry->number);
    /* All is read before write_block(), in which Python code may run. */
    end += put_view_tail(end, a, offset, PyArray_STRIDES((PyArrayObject *)a.array));
    int rc = put_all(to, head, head_end);
    if (rc == 1 && entry->is_first)
        rc = mp_core.write_block(entry, to);
    return rc == 1 ? put_all(to, rest, end) : rc;
}

static int write_strided(const mp_entry *entry, source a, mp_writer *to)
{
    mp_own_bytes own;
    char tail[VIEW_TAIL];

    if (!mp_own_bytes_of((PyArrayObject *)a.array, a.dtype->itemsize, &own) ||
        own.nbytes != entry->nbytes)
        return 0;
    size_t tail_nbytes = put_view_tail(tail, a, own.offset, own.strides);
    char *at = mp_core.writer_room(to, strided.nbytes + 6 + own.nbytes + tail_nbytes);
    if (at == NULL)
        return -1;
    at = mp_put(at, strided.bytes, strided.nbytes);
    at = mp_put(at, "(B", 2); /* MARK, BINBYTES */
    at = mp_put_little_endian(at, own.nbytes, 4);
    mp_copy_own_bytes(&own, at);
    mp_put(at + own.nbytes, tail, tail_nbytes);
    return 1;
}

static int write_any_layout(const mp_entry *entry, mp_writer *to)
{
    source a = {.array = (const PyArrayObject *)entry->object};
    mp_place place;
    int rc = mp_view_of(entry->object, &a.dtype, &place);
    int is_same = rc == 1 && place.block.data == entry->place.block.data;

    mp_core.release_place(&place);
    if (!is_same) /* another thread has changed it since the survey */
        return rc < 0 ? -1 : 0;
    return entry->is_view ? write_view(entry, a, to) : write_strided(entry, a, to);
}

static int write_array(const mp_entry *entry, mp_writer *to)
{
    if (entry->is_view || entry->is_strided)
        return write_any_layout(entry, to);
    source a = {.array = (const PyArrayObject *)entry->object};
    const mpshm_block *block = &entry->place.block;
    Py_ssize_t nbytes = writable_nbytes(entry->object, &a.dtype);

    /* Another thread may have changed it since the survey. */
    if (nbytes < 0)
        return PyErr_Occurred() ? -1 : 0;
    if (block->data == NULL)
        return (size_t)nbytes == entry->nbytes ? write_private(entry, a, to) : 0;
    if (block->data != PyArray_DATA((PyArrayObject *)a.array) || block->nbytes != (uint64_t)nbytes)
        return 0;
    return write_handle(to, a, mp_core.make_handle(block, 0));
}

/* ---- reading ---- */

/* Read a shape as put_shape() writes it: the number of dimensions, or -1. */
static int take_shape(mp_reader *from, int64_t *dims)
{
    int marked = mp_take_these(from, "(", 1), nd = 0;
    int64_t dim;

    while (mp_take_number(from, &dim)) {
        if (nd == NPY_MAXDIMS)
            return -1;
        dims[nd++] = dim;
    }
    const unsigned char *close = mp_take(from, 1);
    return close != NULL && (marked ? *close == 't' : nd <= 3 && *close == close_tuple[nd]) ? nd
                                                                                            : -1;
}

/* name, shape */
static int take_layout(mp_reader *from, mp_layout *layout)
{
    const unsigned char *head = mp_take(from, 2);
    const unsigned char *name = head != NULL && head[0] == 0x8c ? mp_take(from, head[1]) : NULL;
    int64_t dims[NPY_MAXDIMS];
    int nd = name != NULL ? take_shape(from, dims) : -1;

    return nd < 0 ? -1
                  : mp_layout_of(mp_dtype_named((const char *)name, head[1]), nd, dims, layout);
}

/* name, shape, and what ends the pickle */
static int take_tail(mp_reader *from, mp_layout *layout, const char ends[2])
{
    return take_layout(from, layout) < 0 || !mp_take_these(from, ends, 2) ? -1 : 0;
}

static PyObject *read_bytes(mp_reader *from)
{
    const unsigned char *head = mp_take(from, 5);
    const unsigned char *bytes =
        head != NULL && *head == 'B' ? mp_take(from, mp_little_endian(head + 1, 4)) : NULL;
    mp_layout layout;

    if (bytes == NULL || take_tail(from, &layout, "\x87R") < 0 ||
        (uint64_t)layout.nbytes != mp_little_endian(head + 1, 4))
        return NULL; /* the unpickler says what is wrong */
    return mp_array_of(&layout, bytes);
}

static PyObject *read_block(mp_reader *from)
{
    const unsigned char *at = mp_take_handle(from);
    mp_layout layout;

    if (at == NULL || take_tail(from, &layout, "\x87R") < 0)
        return NULL;
    PyObject *handle = PyBytes_FromStringAndSize((const char *)at, MPSHM_HANDLE_SIZE);
    if (handle == NULL)
        return NULL;
    from->received = 1;
    PyObject *a = mp_receive_array(handle, &layout);
    Py_DECREF(handle);
    return a;
}

static PyObject *read_in_pack(mp_reader *from)
{
    uint64_t nbytes;
    int64_t offset;
    mp_layout layout;
    const char *pack = mp_take_these(from, "(", 1) ? mp_core.read_pack(from, &nbytes) : NULL;

    if (pack == NULL || !mp_take_number(from, &offset) || take_tail(from, &layout, "tR") < 0)
        return NULL;
    return mp_array_of_pack(&layout, pack, nbytes, (uint64_t)offset);
}

typedef struct {
    mp_layout layout;
    npy_intp strides[NPY_MAXDIMS];
    int64_t offset;
    int writeable;
} view_tail;

/* Read what put_view_tail() writes: 0, or -1. */
static int take_view_tail(mp_reader *from, view_tail *tail)
{
    int64_t steps[NPY_MAXDIMS];

    if (take_layout(from, &tail->layout) < 0 || !mp_take_number(from, &tail->offset) ||
        take_shape(from, steps) != tail->layout.nd)
        return -1;
    const unsigned char *last = mp_take(from, 3);
    if (last == NULL || (last[0] != 0x88 && last[0] != 0x89) || memcmp(last + 1, "tR", 2) != 0)
        return -1;
    tail->writeable = last[0] == 0x88;
    for (int i = 0; i < tail->layout.nd; i++)
        tail->strides[i] = (npy_intp)steps[i];
    return 0;
}

static PyObject *read_view(mp_reader *from)
{
    PyObject *block = mp_take_these(from, "(", 1) ? mp_core.read_block(from) : NULL;
    view_tail tail;

    if (block == NULL || take_view_tail(from, &tail) < 0)
        return NULL;
    return mp_array_over_part(block, &tail.layout, tail.offset, tail.strides, tail.writeable);
}

static PyObject *read_strided(mp_reader *from)
{
    const unsigned char *head = mp_take(from, 6);
    size_t nbytes = head != NULL ? mp_little_endian(head + 2, 4) : 0;
    const unsigned char *bytes =
        head != NULL && memcmp(head, "(B", 2) == 0 ? mp_take(from, nbytes) : NULL;
    view_tail tail;

    if (bytes == NULL || take_view_tail(from, &tail) < 0)
        return NULL;
    return mp_array_of_own_bytes((const char *)bytes, nbytes, &tail.layout, tail.offset,
                                 tail.strides, tail.writeable);
}

static const struct {
    const mp_global *rebuild;
    PyObject *(*read)(mp_reader *from);
} kinds[] = {{&from_bytes, read_bytes},
             {&from_block, read_block},
             {&from_pack, read_in_pack},
             {&view, read_view},
             {&strided, read_strided}};

static PyObject *read_array(mp_reader *from)
{
    const unsigned char *before = from->at;
    size_t left = (size_t)(from->end - before), at = from_bytes.module_nbytes + 1;

    /* The length of the function's name, at `at`, tells most of them apart. */
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const mp_global *rebuild = kinds[i].rebuild;
        if (left <= at || before[at] != (unsigned char)rebuild->bytes[at] ||
            !mp_take_these(from, rebuild->bytes, rebuild->nbytes))
            continue;
        PyObject *a = kinds[i].read(from);
        if (a == NULL)
            from->at = before;
        return a;
    }
    return NULL;
}

/* ---- registration ---- */

static int make_global(mp_global *to, PyObject *module, const char *name)
{
    PyObject *function = PyObject_GetAttrString(module, name);
    int rc = function == NULL ? -1 : mp_core.make_global(to, function);

    Py_XDECREF(function);
    return rc;
}

int mp_init_array_codec(PyObject *module)
{
    return make_global(&from_bytes, module, "rebuild_from_bytes") < 0 ||
                   make_global(&from_block, module, "rebuild_from_block") < 0 ||
                   make_global(&view, module, "rebuild_view") < 0 ||
                   make_global(&strided, module, "rebuild_strided") < 0
               ? -1
               : make_global(&from_pack, module, "rebuild_from_pack");
}

void mp_register_array_codec(PyObject *reducer)
{
    mp_codec codec = {.type = &PyArray_Type,
                      .reducer = reducer,
                      .prefix = from_bytes.bytes,
                      .prefix_nbytes = from_bytes.module_nbytes,
                      .survey = survey_array,
                      .write = write_array,
                      .read = read_array};
    mp_core.register_codec(&codec);
}
