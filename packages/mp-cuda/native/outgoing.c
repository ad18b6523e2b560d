/* Messages that are sent: the table that the arrays of a message share, and the codec that writes
 * it.
 *
 * Note [One table]
 *   Each array in a message is a position in memory, which the table describes:
 *
 *     leases     for the memory, of this process or of the one that owns it: each with an offer
 *     memories   allocations, with the handle that opens each
 *     events     one for each stream that produced something, recorded when the whole message has
 *                been pickled, because to pickle it may give the device more work
 *
 *     rebuild ( receive_table (offers) table TUPLE2 REDUCE MEMOIZE   layout  ...
 *     rebuild ( BINGET                                              layout  ...
 *
 *   It stands in front of the first array. Where arrays are written as they come (mp-core's
 *   object_table.c), what a later array needs more is in another table.
 *
 * Note [A message that fails]
 *   mp-core discards the offers of a message that is not sent. Here an export without any offer is
 *   dropped, and the slots of events are free again.
 *
 * Note [A sender that is killed]
 *
 *     surveyed        exports without an offer: they are memory of this process, and end with it
 *     offers made     in flight, and noted as of a message that nobody has sent: the reaper of mp-core
 *                     discards them
 *     events taken    slots that nobody clears any more: they end with their lease
 *     recorded        the work ends with the process, and the driver calls the event done
 *     sent            the receiver gets the offer, asks whether the owner lives before and after it opens
 *                     memory, and raises ProducerGoneError; of memory that it has open it is told
 *                     (producer_alive), and closes it when its arrays are gone */
#include "native.h"

enum { FEW = 4, MOST_ROWS = 1000 };

static mp_reference *lease_of(const mp_source *of)
{
    return (mp_reference *)PyTuple_GetItem(of->leases, 0);
}

/* ---- the table ---- */

typedef struct {
    mp_source *of;
    uint16_t lease, leases;
} memory_row;

typedef struct {
    uint64_t stream;
    mp_event *event; /* NULL until the table is written, and if the stream is waited for */
    int device;
    uint16_t memory, lease, slot;
    char is_all; /* the whole device is waited for */
} stream_row;

/* Rows of one kind. */
#define ROWS(type)                                                                                 \
    struct {                                                                                       \
        type *at;                                                                                  \
        type few[FEW];                                                                             \
        size_t count, room;                                                                        \
    }

typedef struct {
    mp_shared shared;
    ROWS(mp_reference *) leases;
    ROWS(memory_row) memories;
    ROWS(stream_row) streams;
    PyObject *fresh;        /* the export for what has no live one */
    uint64_t began, nbytes; /* for the timeline; 0 without one */
    unsigned receivers;
    char is_written, is_finished;
} table;

static void *more_room(void *at, void *few, size_t count, size_t *room, size_t size)
{
    void *more = PyMem_Malloc(4 * *room * size);

    if (more == NULL)
        return PyErr_NoMemory();
    memcpy(more, at, count * size);
    if (at != few)
        PyMem_Free(at);
    *room *= 4;
    return more;
}

/* Room for one more row: its address, or NULL with an exception. */
#define ROOM(rows)                                                                                 \
    ((rows).count == (rows).room ? (more = more_room((rows).at, (rows).few, (rows).count,          \
                                                     &(rows).room, sizeof(*(rows).at))) == NULL    \
                                       ? NULL                                                      \
                                       : ((rows).at = more, &(rows).at[(rows).count++])            \
                                 : &(rows).at[(rows).count++])

static int finish(mp_shared *shared);
static void drop(mp_shared *shared);

static table *new_table(unsigned receivers, PyObject *fresh)
{
    /* It may have been revoked since the table before was written. */
    int may = fresh != NULL && !mp_has_ended((mp_reference *)fresh);
    table *self = PyMem_Calloc(1, sizeof(*self));

    if (self == NULL)
        return (table *)PyErr_NoMemory();
    self->shared.finish = finish;
    self->shared.drop = drop;
    self->leases.at = self->leases.few;
    self->memories.at = self->memories.few;
    self->streams.at = self->streams.few;
    self->leases.room = self->memories.room = self->streams.room = FEW;
    self->receivers = receivers;
    self->fresh = may ? Py_NewRef(fresh) : NULL;
    self->began = mp_core.copy_begins();
    return self;
}

/* The last table of the pickle, or NULL. */
static table *table_of(mp_shared *shared)
{
    while (shared != NULL && shared->finish != finish)
        shared = shared->before;
    return (table *)shared;
}

static int row_of_lease(table *self, mp_reference *lease)
{
    void *more;

    for (size_t i = 0; i < self->leases.count; i++)
        if (self->leases.at[i] == lease)
            return (int)i;
    mp_reference **to = ROOM(self->leases);
    if (to == NULL)
        return -1;
    *to = (mp_reference *)Py_NewRef((PyObject *)lease);
    return (int)self->leases.count - 1;
}

/* The row of memory with these leases; -1 if there is none. */
static int known_row(const table *self, const mp_source *of)
{
    for (size_t i = self->memories.count; i-- > 0;) {
        const mp_source *known = self->memories.at[i].of;
        if (known == of || (known->key == of->key && lease_of(known) == lease_of(of) &&
                            PyTuple_Size(known->leases) == PyTuple_Size(of->leases)))
            return (int)i;
    }
    return -1;
}

static int new_row(table *self, mp_source *of)
{
    Py_ssize_t n = PyTuple_Size(of->leases);
    int first = -1;
    void *more;

    if (n == 1) {
        first = row_of_lease(self, lease_of(of));
    } else {
        first = (int)self->leases.count; /* in a row */
        for (Py_ssize_t i = 0; i < n; i++) {
            mp_reference **to = ROOM(self->leases);
            if (to == NULL)
                return -1;
            *to = (mp_reference *)Py_NewRef(PyTuple_GetItem(of->leases, i));
        }
    }
    memory_row *to = first < 0 ? NULL : ROOM(self->memories);
    if (to == NULL)
        return -1;
    *to = (memory_row){(mp_source *)Py_NewRef((PyObject *)of), (uint16_t)first, (uint16_t)n};
    return (int)self->memories.count - 1;
}

static stream_row *known_stream(const table *self, int device, uint64_t stream, int is_all)
{
    for (size_t i = 0; i < self->streams.count; i++) {
        stream_row *row = &self->streams.at[i];
        if (row->device == device && row->stream == stream && row->is_all == is_all)
            return row;
    }
    return NULL;
}

static int new_stream(table *self, int device, uint64_t stream, int is_all, int memory)
{
    void *more;
    stream_row *to = ROOM(self->streams);

    if (to == NULL)
        return -1;
    *to = (stream_row){
        .stream = stream, .device = device, .memory = (uint16_t)memory, .is_all = (char)is_all};
    return 0;
}

/* An exception that is set stays. */
static void drop(mp_shared *shared)
{
    table *self = (table *)shared;

    mp_error error = mp_set_aside();
    for (size_t i = 0; i < self->streams.count; i++) {
        const stream_row *row = &self->streams.at[i];
        if (row->event != NULL && row->slot != MP_NO_SLOT && !self->is_finished &&
            self->leases.at[row->lease]->block.data != NULL)
            mp_flags(self->leases.at[row->lease])[row->slot] = 0;
    }
    for (size_t i = 0; i < self->memories.count; i++)
        Py_DECREF(self->memories.at[i].of);
    for (size_t i = 0; i < self->leases.count; i++) {
        mp_reference *lease = self->leases.at[i];
        if (!lease->is_sent)
            mp_end_export(lease);
        Py_DECREF(lease);
    }
    Py_XDECREF(self->fresh);
    if (self->leases.at != self->leases.few)
        PyMem_Free(self->leases.at);
    if (self->memories.at != self->memories.few)
        PyMem_Free(self->memories.at);
    if (self->streams.at != self->streams.few)
        PyMem_Free(self->streams.at);
    PyMem_Free(self);
    mp_put_back(&error);
}

/* Record the events, or wait for the work where there is none. */
static int finish(mp_shared *shared)
{
    table *self = (table *)shared;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < self->streams.count;) {
        int device = self->streams.at[i].device;
        mp_context context;
        if (mp_driver_begin(device, &context) < 0)
            return -1;
        for (; rc == 0 && i < self->streams.count && self->streams.at[i].device == device; i++) {
            const stream_row *row = &self->streams.at[i];
            if (row->event != NULL && self->leases.at[row->lease]->block.data == NULL)
                continue; /* it was revoked, and its event may be another message's */
            rc = row->is_all          ? mp_synchronize_device()
                 : row->event == NULL ? mp_synchronize(row->stream)
                                      : mp_record(row->event->event, row->stream);
        }
        mp_driver_end(&context);
    }
    self->is_finished = rc == 0;
    mp_core.device_memory(self->began, self->nbytes, 1);
    return rc;
}

/* ---- the survey ---- */

/* The last export of the array's owner if it has these bytes and may be sent again: a new
 * reference; NULL, perhaps with an exception. */
static mp_source *sent_before(PyObject *owner, uint64_t low, uint64_t high)
{
    mp_source *of = mp_latest_source(owner);

    if (of == NULL || of->key == NULL || of->extra != NULL || !mp_may_send(lease_of(of)) ||
        low < of->base || high > of->base + of->nbytes)
        return NULL;
    return (mp_source *)Py_NewRef((PyObject *)of);
}

/* Whether the stream is unknown, because a queue's thread pickles; -1 with an exception. */
static int in_feeder(void)
{
    static _Thread_local int is; /* 1 or 2 */

    if (is == 0) {
        PyObject *answer = PyObject_CallNoArgs(mp_hook.in_feeder);
        if (answer == NULL)
            return -1;
        is = answer == Py_True ? 1 : 2;
        Py_DECREF(answer);
    }
    return is == 1;
}

/* Where an array of a message is. */
typedef struct {
    table *in;     /* perhaps a new one */
    mp_source *of; /* a new reference; NULL for an array without elements */
    uint64_t row, offset;
} place;

/* Find the rows of a source and of a stream, or make them: in the last table, unless this is NULL
 * or the message has it already. -1 with an exception. */
static int find_rows(mp_source *of, uint64_t stream, int is_all, table *last, unsigned receivers,
                     place *to)
{
    int row = last == NULL ? -1 : known_row(last, of), rc = 0;
    const stream_row *wait = last == NULL ? NULL : known_stream(last, of->device, stream, is_all);

    to->in = last;
    if ((row < 0 || wait == NULL) &&
        (last == NULL || last->is_written || last->memories.count > MOST_ROWS)) {
        to->in = new_table(receivers, last == NULL ? NULL : last->fresh);
        row = -1;
        wait = NULL;
    }
    if (to->in == NULL)
        return -1;
    if (row < 0)
        rc = row = new_row(to->in, of);
    if (rc >= 0 && wait == NULL)
        rc = new_stream(to->in, of->device, stream, is_all, row);
    if (rc < 0 && to->in != last)
        drop(&to->in->shared);
    else if (rc >= 0 && to->in->fresh == NULL && !lease_of(of)->is_sent)
        to->in->fresh = Py_NewRef((PyObject *)lease_of(of));
    to->row = (uint64_t)row;
    return rc < 0 ? -1 : 0;
}

/* Find the place of an array that is described. `last` is the last table, or NULL. */
static int find_place(PyObject *object, const mp_described *d, table *last, unsigned receivers,
                      PyObject *fallback, place *to)
{
    const mp_array *array = (mp_array *)object;
    uint64_t address = array->ptr;

    *to = (place){.row = MP_NO_ROW};
    if (d->low == d->high)
        return 0; /* it needs no device */
    PyObject *owner = array->owner != NULL ? array->owner : object;
    mp_source *of =
        (PyObject *)Py_TYPE(owner) == mp_received_type
            ? NULL
            : sent_before(owner, address + (uint64_t)d->low, address + (uint64_t)d->high);
    if (of == NULL && !PyErr_Occurred())
        of = mp_find_source(object, d->low, d->high,
                            last != NULL ? (mp_reference *)last->fresh : NULL, receivers, fallback,
                            &address);
    if (of == NULL)
        return -1;
    int is_all = array->stream != 0 ? 0 : in_feeder();
    uint64_t stream = array->stream != 0 ? array->stream : MP_LEGACY;
    if (is_all < 0 || find_rows(of, stream, is_all, last, receivers, to) < 0) {
        if (!lease_of(of)->is_sent)
            mp_end_export(lease_of(of));
        Py_DECREF(of);
        return -1;
    }
    to->of = of;
    to->offset = address - of->base;
    to->in->nbytes += (uint64_t)(d->high - d->low);
    return 0;
}

/* An array of a library: its adapter says what there is to it besides the memory. One of a
 * structured type needs its reducer. */
static int survey_array(mp_entry *entry)
{
    PyObject *kind, *array = entry->object, *extra, *parts = NULL;
    mp_described d;
    place at;
    int rc = 1;

    if (!mp_is_array(array)) {
        parts = mp_call(mp_hook.taken_apart, array);
        rc = parts == NULL ? -1 : parts != Py_None;
        if (rc > 0 && !PyArg_ParseTuple(parts, "UO!S", &kind, mp_hook.array_type, &array, &extra))
            rc = -1;
    }
    if (rc > 0)
        rc = mp_describe_array((mp_array *)array, &d) < 0 ? -1 : !(d.head.flags & MP_OTHER_DTYPE);
    if (rc > 0 && find_place(array, &d, table_of(entry->shared), 1, Py_None, &at) < 0)
        rc = -1;
    if (rc > 0) {
        entry->own[0] = at.row;
        entry->own[1] = at.offset;
        entry->shared = at.in == NULL ? NULL : &at.in->shared;
        entry->held = (PyObject *)at.of;
        if (parts != NULL) {
            entry->held = PyTuple_Pack(2, at.of == NULL ? Py_None : (PyObject *)at.of, parts);
            Py_XDECREF((PyObject *)at.of);
            rc = entry->held == NULL ? -1 : 1;
        }
    }
    Py_XDECREF(parts);
    return rc;
}

/* ---- the pass that writes ---- */

static mp_reference *fresh_export(table *self, int *row)
{
    if (self->fresh == NULL)
        self->fresh = (PyObject *)mp_new_export();
    *row = self->fresh == NULL ? -1 : row_of_lease(self, (mp_reference *)self->fresh);
    return *row < 0 ? NULL : (mp_reference *)self->fresh;
}

/* Take an event from the pool for each stream, and find out who keeps it: 0, or -1 with an
 * exception. */
static int take_events(table *self)
{
    for (size_t i = 0; i < self->streams.count; i++) {
        stream_row *row = &self->streams.at[i];
        mp_event *event = row->is_all ? NULL : mp_take_event(row->device);
        int lease = 0;
        if (event == NULL) {
            if (PyErr_Occurred())
                return -1;
            continue;
        }
        /* One receiver may say when it waits for the event; with several it is kept longer. */
        for (size_t k = 0; self->receivers == 1 && !row->slot && k < self->leases.count; k++)
            if (mp_is_me(self->leases.at[k]->pid, self->leases.at[k]->nonce)) {
                row->slot = (uint16_t)mp_keep_event(self->leases.at[k], event);
                lease = (int)k;
            }
        if (row->slot == MP_NO_SLOT) {
            mp_reference *home = fresh_export(self, &lease);
            if (home == NULL || mp_hold_event(home, event) < 0) {
                mp_return_event(event);
                return -1;
            }
        }
        row->event = event;
        row->lease = (uint16_t)lease;
    }
    return 0;
}

/* The offers, a tuple of bytes: for each lease one for each receiver. */
static PyObject *offers_of(table *self)
{
    PyObject *all = PyTuple_New((Py_ssize_t)self->leases.count);

    for (size_t i = 0; all != NULL && i < self->leases.count; i++) {
        PyObject *offer = mp_offer(self->leases.at[i]);
        for (unsigned k = 1; offer != NULL && k < self->receivers; k++) {
            PyObject *one = mp_offer(self->leases.at[i]), *before = offer;
            offer = one == NULL ? NULL : PySequence_Concat(before, one);
            Py_DECREF(before);
            Py_XDECREF(one);
        }
        if (offer == NULL || PyTuple_SetItem(all, (Py_ssize_t)i, offer) < 0)
            Py_CLEAR(all);
    }
    return all;
}

static PyObject *bytes_of(const table *self)
{
    size_t events = 0, nbytes = sizeof(mp_table_head) + self->leases.count * sizeof(mp_table_lease);

    for (size_t i = 0; i < self->memories.count; i++) {
        const mp_source *of = self->memories.at[i].of;
        nbytes += sizeof(mp_table_memory) + (size_t)PyBytes_Size(of->key) +
                  (of->extra ? (size_t)PyBytes_Size(of->extra) : 0);
    }
    for (size_t i = 0; i < self->streams.count; i++)
        events += self->streams.at[i].event != NULL;
    nbytes += events * sizeof(mp_table_event);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)nbytes);
    if (bytes == NULL)
        return NULL;
    mp_table_head head = {MP_TABLE_VERSION, (uint16_t)self->leases.count,
                          (uint16_t)self->memories.count, (uint16_t)events, 0};
    char *at = mp_put(PyBytes_AsString(bytes), &head, sizeof(head));
    for (size_t i = 0; i < self->leases.count; i++) {
        const mp_reference *lease = self->leases.at[i];
        mp_table_lease row = {.serial = lease->serial, .pid = lease->pid};
        memcpy(row.nonce, lease->nonce, MP_NONCE);
        at = mp_put(at, &row, sizeof(row));
    }
    for (size_t i = 0; i < self->memories.count; i++) {
        const memory_row *memory = &self->memories.at[i];
        PyObject *key = memory->of->key, *extra = memory->of->extra;
        mp_table_memory row = {.lease = memory->lease,
                               .leases = memory->leases,
                               .key_nbytes = (uint16_t)PyBytes_Size(key),
                               .extra_nbytes = extra ? (uint32_t)PyBytes_Size(extra) : 0};
        at = mp_put(at, &row, sizeof(row));
        at = mp_put(at, PyBytes_AsString(key), row.key_nbytes);
        if (extra != NULL)
            at = mp_put(at, PyBytes_AsString(extra), row.extra_nbytes);
    }
    for (size_t i = 0; i < self->streams.count; i++) {
        const stream_row *stream = &self->streams.at[i];
        if (stream->event == NULL)
            continue;
        mp_table_event row = {
            .lease = stream->lease, .memory = stream->memory, .slot = stream->slot};
        memcpy(row.handle, stream->event->handle, sizeof(row.handle));
        at = mp_put(at, &row, sizeof(row));
    }
    return bytes;
}

/* A message that was dropped may be as before, but for a lease that has ended: 0, or -1. */
static int without_value_error(void)
{
    if (!PyErr_ExceptionMatches(PyExc_ValueError))
        return -1;
    PyErr_Clear();
    return 0;
}

static size_t sized(size_t nbytes)
{
    return nbytes > UINT8_MAX ? 5 + nbytes : 2 + nbytes;
}

static char *put_bytes(char *at, const void *bytes, size_t nbytes)
{
    if (nbytes <= UINT8_MAX)
        return mp_put_sized(at, 'C', bytes, nbytes);
    *at++ = 'B';
    at = mp_put_little_endian(at, nbytes, 4);
    return mp_put(at, bytes, nbytes);
}

/* The table, as the object of a call with a number in the memo: 1; 0 if a lease has ended; -1. */
static int write_table(table *self, mp_writer *to)
{
    PyObject *offers = NULL, *bytes = NULL;
    char *at = NULL;

    self->is_written = 1;
    if (take_events(self) < 0 || (offers = offers_of(self)) == NULL)
        return without_value_error();
    bytes = bytes_of(self);
    if (bytes != NULL) {
        size_t n = (size_t)PyTuple_Size(offers), nbytes = (size_t)PyBytes_Size(bytes);
        at = mp_core.writer_room(to, mp_names_table.nbytes + 2 + n * (2 + MP_OFFER) +
                                         sized(nbytes) + 3);
        if (at != NULL) {
            at = mp_put(at, mp_names_table.bytes, mp_names_table.nbytes);
            *at++ = '(';
            for (size_t i = 0; i < n; i++)
                at = mp_put_sized(at, 'C', PyBytes_AsString(PyTuple_GetItem(offers, (Py_ssize_t)i)),
                                  MP_OFFER);
            *at++ = 't';
            at = put_bytes(at, PyBytes_AsString(bytes), nbytes);
            mp_put(at, "\x86R\x94", 3);
        }
    }
    Py_DECREF(offers);
    Py_XDECREF(bytes);
    return at != NULL ? 1 : -1;
}

static void set_place(mp_described *to, const mp_source *of, uint64_t row, uint64_t offset)
{
    to->head.row = (uint16_t)row;
    to->head.offset = (int64_t)offset;
    to->head.number = of != NULL ? of->number : 0;
}

/* Function, table or number in the memo or None; behind them follow the other arguments. */
static int write_head(const mp_entry *entry, mp_writer *to, const char *mark, size_t marks)
{
    char *at = mp_core.writer_room(to, mp_names_rebuild.nbytes + marks);

    if (at == NULL)
        return -1;
    mp_put(mp_put(at, mp_names_rebuild.bytes, mp_names_rebuild.nbytes), mark, marks);
    if (entry->is_first)
        return write_table((table *)entry->shared, to);
    char number[MP_MEMO_GET] = "N";
    size_t nbytes = entry->shared == NULL
                        ? 1
                        : (size_t)(mp_put_memo_get(number, entry->shared->number) - number);
    at = mp_core.writer_room(to, nbytes);
    if (at == NULL)
        return -1;
    mp_put(at, number, nbytes);
    return 1;
}

static int write_array(const mp_entry *entry, mp_writer *to)
{
    PyObject *array = entry->object, *of = entry->held, *extra = NULL;
    const char *kind = NULL;
    size_t more = 0;
    Py_ssize_t n = 0;
    mp_described d;

    if (!mp_is_array(array)) {
        PyObject *parts = PyTuple_GetItem(of, 1);
        of = PyTuple_GetItem(of, 0);
        array = PyTuple_GetItem(parts, 1);
        extra = PyTuple_GetItem(parts, 2);
        kind = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(parts, 0), &n);
        if (kind == NULL || n > UINT8_MAX)
            return -1;
        more = 2 + (size_t)n + sized((size_t)PyBytes_Size(extra));
    }
    if (mp_describe_array((mp_array *)array, &d) < 0)
        return -1;
    set_place(&d, of == Py_None ? NULL : (mp_source *)of, entry->own[0], entry->own[1]);
    int rc = write_head(entry, to, "(", kind != NULL);
    char *at = rc == 1 ? mp_core.writer_room(to, sized(d.nbytes) + more + 2) : NULL;
    if (at == NULL)
        return rc == 1 ? -1 : rc;
    at = put_bytes(at, &d, d.nbytes);
    if (kind != NULL) {
        at = mp_put_sized(at, '\x8c', kind, (size_t)n);
        at = put_bytes(at, PyBytes_AsString(extra), (size_t)PyBytes_Size(extra));
    }
    mp_put(at, kind != NULL ? "tR" : "\x86R", 2);
    return 1;
}

static PyObject *use_codec(PyObject *module, PyObject *args)
{
    PyObject *type, *reducer;

    if (!PyArg_ParseTuple(args, "O!O:use_codec", &PyType_Type, &type, &reducer) ||
        mp_make_names() < 0)
        return NULL;
    mp_codec codec = {.type = (PyTypeObject *)Py_NewRef(type),
                      .reducer = reducer,
                      .prefix = mp_names_rebuild.bytes,
                      .prefix_nbytes = mp_names_rebuild.nbytes,
                      .survey = survey_array,
                      .write = write_array,
                      .read = mp_read_array,
                      .is_out_of_band = 1};
    mp_core.register_codec(&codec);
    Py_RETURN_NONE;
}

/* ---- an array alone ---- */

/* Take back the references of a message that is not sent. */
static void take_all_back(PyObject *offers)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(offers); i++) {
        PyObject *joined = PyTuple_GetItem(offers, i), *one;
        while ((one = mp_receive_reference(joined, 0, mp_nonce, 0)) != NULL)
            Py_DECREF(one);
        PyErr_Clear();
    }
}

static PyObject *take_back(PyObject *module, PyObject *offers)
{
    if (!PyTuple_Check(offers))
        return PyErr_Format(PyExc_TypeError, "offers are a tuple, not %R", offers);
    take_all_back(offers);
    Py_RETURN_NONE;
}

/* export_alone(array, receivers, fallback) -> (offers, table or None, layout) */
static PyObject *export_alone(PyObject *module, PyObject *args)
{
    PyObject *array, *fallback, *offers = NULL, *bytes = NULL, *made = NULL;
    unsigned receivers;
    mp_described d;
    place at;

    if (!PyArg_ParseTuple(args, "OIO:export_alone", &array, &receivers, &fallback))
        return NULL;
    if (!mp_is_array(array))
        return PyErr_Format(PyExc_TypeError, "%R is no DeviceArray", array);
    if (mp_describe_array((mp_array *)array, &d) < 0 ||
        find_place(array, &d, NULL, receivers, fallback, &at) < 0)
        return NULL;
    set_place(&d, at.of, at.row, at.offset);
    if (at.in == NULL)
        made = Py_BuildValue("(()Oy#)", Py_None, &d, (Py_ssize_t)d.nbytes);
    else if (take_events(at.in) == 0)
        offers = offers_of(at.in);
    if (offers != NULL)
        bytes = bytes_of(at.in);
    if (bytes != NULL && finish(&at.in->shared) == 0)
        made = Py_BuildValue("(OOy#)", offers, bytes, &d, (Py_ssize_t)d.nbytes);
    if (made == NULL && offers != NULL) {
        mp_error error = mp_set_aside();
        take_all_back(offers);
        mp_put_back(&error);
    }
    Py_XDECREF(offers);
    Py_XDECREF(bytes);
    if (at.in != NULL)
        drop(&at.in->shared);
    Py_XDECREF((PyObject *)at.of);
    return made;
}

static PyMethodDef functions[] = {
    MP_FUNCTION(use_codec, METH_VARARGS, "(type, reducer, /)",
                "Write and read objects of a type as long as they have this reducer."),
    MP_FUNCTION(take_back, METH_O, "(offers, /)",
                "Take back the references of a message that is not sent."),
    MP_FUNCTION(export_alone, METH_VARARGS, "(array, receivers, fallback, /)",
                "Return the offers, table and layout of an array for a message of its own."),
    {NULL, NULL, 0, NULL},
};

int mp_add_outgoing(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
