/* Messages that are received: the references, the open memory and the events of a table, and
 * arrays.
 *
 * What is open already is found in C, and memory is opened; the Python modules open events and the
 * memory of pools. */
#include "native.h"

mp_global mp_names_table, mp_names_rebuild;

int mp_make_names(void)
{
    if (mp_names_table.nbytes > 0)
        return 0;
    return mp_core.make_global(&mp_names_table, mp_hook.receive_table) < 0
               ? -1
               : mp_core.make_global(&mp_names_rebuild, mp_hook.rebuild);
}

/* ---- the table ---- */

typedef struct {
    PyObject *owner; /* a Received, or what the sender, which is this process, keeps */
    uint64_t base, nbytes;
    int device;
    char is_own;
} memory_row;

typedef struct {
    PyObject_HEAD
    memory_row *rows;
    size_t count;
    uint64_t began, nbytes; /* for the timeline; 0 without one */
} table;

static PyObject *table_type;

static void table_dealloc(PyObject *op)
{
    table *self = (table *)op;

    mp_core.device_memory(self->began, self->nbytes, 0); /* the message has been read */
    for (size_t i = 0; i < self->count; i++)
        Py_XDECREF(self->rows[i].owner);
    PyMem_Free(self->rows);
    mp_free(op);
}

/* A table that is being received. */
typedef struct {
    const char *at, *end;
    mp_table_head head;
    PyObject *leases; /* a list of References */
} reading;

static int take(reading *from, void *to, size_t nbytes)
{
    if ((size_t)(from->end - from->at) < nbytes) {
        mp_damaged("its table ends in its middle");
        return -1;
    }
    memcpy(to, from->at, nbytes);
    from->at += nbytes;
    return 0;
}

static PyObject *receive_lease(reading *from, PyObject *offers)
{
    PyObject *sent = NULL;
    mp_table_lease row;

    if (take(from, &row, sizeof(row)) < 0)
        return NULL;
    /* Retain what was sent before the reference is received: the export drops it with the last. */
    if (mp_is_me(row.pid, row.nonce) && (sent = mp_own_sent(row.serial)) == NULL)
        return NULL;
    PyObject *lease = mp_receive_reference(offers, row.pid, row.nonce, row.serial);
    if (lease != NULL && sent == Py_None) {
        Py_XDECREF(PyObject_CallNoArgs(mp_hook.own_is_gone));
        Py_CLEAR(lease);
    }
    if (lease != NULL)
        ((mp_reference *)lease)->sent = sent;
    else
        Py_XDECREF(sent);
    return lease;
}

/* Find memory of this process. */
static int find_own(memory_row *to, const mp_reference *lease, PyObject *key)
{
    PyObject *sources = PyTuple_GetItem(lease->sent, 1);

    for (Py_ssize_t i = 0; i < PyList_Size(sources); i++) {
        const mp_source *source = (mp_source *)PyList_GetItem(sources, i);
        if (source->key == NULL || PyObject_RichCompareBool(source->key, key, Py_EQ) != 1)
            continue;
        to->base = source->base;
        to->nbytes = source->nbytes;
        to->device = source->device;
        to->is_own = 1;
        to->owner = Py_NewRef(PyTuple_GetItem(lease->sent, 0));
        return 0;
    }
    Py_XDECREF(PyObject_CallNoArgs(mp_hook.own_is_gone));
    return -1;
}

static int receive_memory(reading *from, memory_row *to)
{
    mp_table_memory row;

    if (take(from, &row, sizeof(row)) < 0)
        return -1;
    if ((size_t)(from->end - from->at) < (size_t)row.key_nbytes + row.extra_nbytes ||
        row.key_nbytes < sizeof(mp_key_head) || row.leases == 0 ||
        row.lease + row.leases > from->head.leases) {
        mp_damaged("a row of its table is out of order");
        return -1;
    }
    PyObject *key = PyBytes_FromStringAndSize(from->at, row.key_nbytes);
    PyObject *extra = row.extra_nbytes == 0
                          ? Py_NewRef(Py_None)
                          : PyBytes_FromStringAndSize(from->at + row.key_nbytes, row.extra_nbytes);
    PyObject *list = PyList_GetSlice(from->leases, row.lease, row.lease + row.leases);
    PyObject *leases = list == NULL ? NULL : PyList_AsTuple(list);
    int rc = key == NULL || extra == NULL || leases == NULL ? -1 : 0;

    Py_XDECREF(list);
    from->at += row.key_nbytes + row.extra_nbytes;
    mp_reference *lease = rc == 0 ? (mp_reference *)PyTuple_GetItem(leases, 0) : NULL;
    if (lease != NULL && lease->sent != NULL) {
        rc = find_own(to, lease, key);
    } else if (lease != NULL) {
        to->owner = mp_map(leases, key, extra);
        rc = to->owner == NULL ? -1 : 0;
        if (rc == 0) {
            const mp_mapping *memory = mp_mapping_of((mp_received *)to->owner);
            to->base = memory->ptr;
            to->nbytes = memory->nbytes;
            to->device = memory->device;
        }
    }
    Py_XDECREF(key);
    Py_XDECREF(extra);
    Py_XDECREF(leases);
    return rc;
}

/* The event, a new reference; None if its process has ended, and its work with it. */
static PyObject *find_event(mp_reference *home, const mp_table_event *row, int device)
{
    if (home->sent != NULL) { /* one of ours */
        PyObject *handle = PyBytes_FromStringAndSize((const char *)row->handle, MP_CUDA_HANDLE);
        PyObject *own = handle ? PyDict_GetItemWithError(mp_hook.made, handle) : NULL;
        Py_XDECREF(handle);
        return Py_XNewRef(own);
    }
    char key[4 + MP_NONCE + MP_CUDA_HANDLE];
    memcpy(key, &home->pid, 4);
    memcpy(key + 4, home->nonce, MP_NONCE);
    memcpy(key + 4 + MP_NONCE, row->handle, MP_CUDA_HANDLE);
    PyObject *name = PyBytes_FromStringAndSize(key, sizeof(key));
    PyObject *known = name ? PyDict_GetItemWithError(mp_hook.events, name) : NULL;
    Py_XDECREF(name);
    if (known != NULL || PyErr_Occurred())
        return Py_XNewRef(known);
    return PyObject_CallFunction(mp_hook.open_event, "iOy#", device, home, row->handle,
                                 (Py_ssize_t)MP_CUDA_HANDLE);
}

/* Let the legacy default stream wait for an event, and its sender use it again. */
static int receive_event(reading *from, const table *self)
{
    mp_table_event row;

    if (take(from, &row, sizeof(row)) < 0)
        return -1;
    if (row.lease >= from->head.leases || row.memory >= from->head.memories ||
        row.slot >= MP_FLAGS) {
        mp_damaged("an event of its table is out of order");
        return -1;
    }
    mp_reference *home = (mp_reference *)PyList_GetItem(from->leases, row.lease);
    int device = self->rows[row.memory].device;
    PyObject *event = find_event(home, &row, device);
    if (event == NULL) {
        if (!PyErr_Occurred())
            mp_damaged("this process has no such event");
        return -1;
    }
    int rc = 0;
    if ((PyObject *)Py_TYPE(event) == mp_event_type) {
        mp_context context;
        rc = mp_driver_begin(device, &context);
        if (rc == 0) {
            rc = mp_wait(((mp_event *)event)->event, MP_LEGACY);
            mp_driver_end(&context);
        }
    }
    Py_DECREF(event);
    if (rc == 0 && row.slot != MP_NO_SLOT)
        mp_flags(home)[row.slot] = 0;
    return rc;
}

static PyObject *received_table(PyObject *offers, const char *bytes, size_t nbytes)
{
    reading from = {.at = bytes, .end = bytes + nbytes};

    if (take(&from, &from.head, sizeof(from.head)) < 0)
        return NULL;
    if (from.head.version != MP_TABLE_VERSION)
        return PyErr_Format(PyExc_ValueError,
                            "the message of a device array is damaged: version %u instead of %d; "
                            "both processes need the same mp-cuda",
                            from.head.version, MP_TABLE_VERSION);
    if (!PyTuple_Check(offers) || PyTuple_Size(offers) != from.head.leases)
        return mp_damaged("it has not one offer for each lease");
    table *self = mp_new(table_type);
    from.leases = self == NULL ? NULL : PyList_New(0);
    int rc = from.leases == NULL ? -1 : 0;
    if (rc == 0)
        self->began = mp_core.copy_begins();
    for (uint16_t i = 0; rc == 0 && i < from.head.leases; i++) {
        PyObject *lease = receive_lease(&from, PyTuple_GetItem(offers, i));
        rc = lease == NULL ? -1 : PyList_Append(from.leases, lease);
        Py_XDECREF(lease);
    }
    if (rc == 0) {
        self->rows = PyMem_Calloc(from.head.memories + 1u, sizeof(*self->rows));
        rc = self->rows == NULL ? -1 : 0;
        self->count = rc == 0 ? from.head.memories : 0;
        if (rc < 0)
            PyErr_NoMemory();
    }
    for (uint16_t i = 0; rc == 0 && i < from.head.memories; i++)
        rc = receive_memory(&from, &self->rows[i]);
    for (uint16_t i = 0; rc == 0 && i < from.head.events; i++)
        rc = receive_event(&from, self);
    if (rc < 0)
        Py_CLEAR(self);
    Py_XDECREF(from.leases);
    if (rc == 0)
        mp_wake_if_recalled();
    return (PyObject *)self;
}

static PyObject *receive_table(PyObject *module, PyObject *args)
{
    PyObject *offers;
    const char *bytes;
    Py_ssize_t nbytes;

    if (!PyArg_ParseTuple(args, "Oy#:receive_table", &offers, &bytes, &nbytes))
        return NULL;
    return received_table(offers, bytes, (size_t)nbytes);
}

/* ---- arrays ---- */

/* The array of a layout; dtype is NULL unless the layout does not say it. */
static PyObject *array_in(PyObject *in, const void *layout, size_t nbytes, PyObject *dtype)
{
    mp_layout head;

    if (mp_read_layout(layout, nbytes, &head) < 0)
        return NULL;
    if (head.row == MP_NO_ROW)
        return mp_array_of(&head, layout, 0, 0, 0, NULL, dtype);
    if ((PyObject *)Py_TYPE(in) != table_type || head.row >= ((table *)in)->count)
        return mp_damaged("an array is in no memory of it");
    const memory_row *row = &((table *)in)->rows[head.row];
    PyObject *owner = row->owner;
    if (row->is_own && head.number != MP_ALL) {
        owner = PyList_Check(owner) && head.number < (size_t)PyList_Size(owner)
                    ? PyList_GetItem(owner, (Py_ssize_t)head.number)
                    : NULL;
        if (owner == NULL)
            return mp_damaged("this process keeps no such object for it");
    }
    PyObject *array = mp_array_of(&head, layout, row->base, row->nbytes, row->device, owner, dtype);
    mp_described d;
    if (array != NULL && ((table *)in)->began != 0 && mp_describe_array((mp_array *)array, &d) == 0)
        ((table *)in)->nbytes += (uint64_t)(d.high - d.low);
    return array;
}

static PyObject *rebuilt(PyObject *array, PyObject *kind, PyObject *extra)
{
    if (array == NULL || kind == NULL)
        return array;
    PyObject *object = PyObject_CallFunctionObjArgs(mp_hook.rebuild_kind, kind, extra, array, NULL);
    Py_DECREF(array);
    return object;
}

static PyObject *rebuild(PyObject *module, PyObject *args)
{
    PyObject *in, *kind = Py_None, *extra = NULL, *dtype = Py_None;
    const char *layout;
    Py_ssize_t nbytes;

    if (!PyArg_ParseTuple(args, "Oy#|OOO:rebuild", &in, &layout, &nbytes, &kind, &extra, &dtype))
        return NULL;
    return rebuilt(array_in(in, layout, (size_t)nbytes, dtype == Py_None ? NULL : dtype),
                   kind == Py_None ? NULL : kind, extra);
}

/* ---- reading a message ---- */

/* The bytes after SHORT_BINBYTES or BINBYTES; NULL without them. */
static const unsigned char *take_bytes(mp_reader *from, size_t *nbytes)
{
    const unsigned char *opcode = mp_take(from, 1);
    int width = opcode == NULL ? 0 : *opcode == 'C' ? 1 : *opcode == 'B' ? 4 : 0;
    const unsigned char *length = width == 0 ? NULL : mp_take(from, (size_t)width);

    if (length == NULL)
        return NULL;
    *nbytes = (size_t)mp_little_endian(length, width);
    return mp_take(from, *nbytes);
}

/* MARK, offers, TUPLE, as a tuple; NULL, perhaps with an exception. */
static PyObject *take_offers(mp_reader *from)
{
    const unsigned char *handle;

    if (!mp_take_these(from, "(", 1))
        return NULL;
    PyObject *list = PyList_New(0);
    while (list != NULL && (handle = mp_take_handle(from)) != NULL) {
        PyObject *offer = PyBytes_FromStringAndSize((const char *)handle, MP_OFFER);
        if (offer == NULL || PyList_Append(list, offer) < 0)
            Py_CLEAR(list);
        Py_XDECREF(offer);
    }
    PyObject *offers = list != NULL && mp_take_these(from, "t", 1) ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return offers;
}

/* The table, borrowed from the memo; NULL, perhaps with an exception. */
static PyObject *take_table(mp_reader *from)
{
    size_t nbytes;

    if (!mp_take_these(from, mp_names_table.bytes, mp_names_table.nbytes))
        return mp_core.memo_take(from);
    PyObject *offers = take_offers(from);
    const unsigned char *bytes = offers == NULL ? NULL : take_bytes(from, &nbytes);
    PyObject *made = NULL;
    if (bytes != NULL && mp_take_these(from, "\x86R\x94", 3)) {
        from->received = 1;
        made = mp_core.memo_add(from, received_table(offers, (const char *)bytes, nbytes));
    }
    Py_XDECREF(offers);
    return made;
}

static PyObject *read_rest(mp_reader *from, PyObject *in, int is_other)
{
    size_t nbytes, more = 0;
    const unsigned char *layout = take_bytes(from, &nbytes), *name = NULL, *extra = NULL;

    if (layout == NULL)
        return NULL;
    if (!is_other)
        return mp_take_these(from, "\x86R", 2) ? array_in(in, layout, nbytes, NULL) : NULL;
    const unsigned char *head = mp_take(from, 2);
    if (head != NULL && head[0] == 0x8c)
        name = mp_take(from, head[1]);
    extra = name == NULL ? NULL : take_bytes(from, &more);
    if (extra == NULL || !mp_take_these(from, "tR", 2))
        return NULL;
    PyObject *kind = PyUnicode_FromStringAndSize((const char *)name, head[1]);
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)extra, (Py_ssize_t)more);
    PyObject *object = NULL;
    if (kind != NULL && bytes != NULL)
        object = rebuilt(array_in(in, layout, nbytes, NULL), kind, bytes);
    Py_XDECREF(kind);
    Py_XDECREF(bytes);
    return object;
}

/* A damaged one is left to the unpickler, which says so, unless something was received. */
PyObject *mp_read_array(mp_reader *from)
{
    mp_reader rest = *from;

    if (!mp_take_these(&rest, mp_names_rebuild.bytes, mp_names_rebuild.nbytes))
        return NULL;
    int is_other = mp_take_these(&rest, "(", 1);
    PyObject *in = mp_take_these(&rest, "N", 1) ? Py_None : take_table(&rest);
    PyObject *object = in == NULL ? NULL : read_rest(&rest, in, is_other);
    if (object == NULL && rest.received && !PyErr_Occurred())
        mp_damaged("it ends in its middle");
    if (object == NULL && PyErr_Occurred())
        rest.received = 1; /* Python code may have run */
    if (object != NULL)
        *from = rest;
    else
        from->received = rest.received;
    return object;
}

static PyMethodDef functions[] = {
    MP_FUNCTION(receive_table, METH_VARARGS, "(offers, table, /)", "Receive what arrays share."),
    MP_FUNCTION(rebuild, METH_VARARGS, "(table, layout, kind=None, extra=b'', dtype=None, /)",
                "Make an array of a message. Raises `ValueError` if it is damaged."),
    {NULL, NULL, 0, NULL},
};

int mp_add_incoming(PyObject *module)
{
    PyType_Slot slots[] = {{Py_tp_dealloc, table_dealloc}, {0, NULL}};

    table_type = mp_add_type(module, "mp_cuda._native.Table", sizeof(table), MP_ONLY_HERE, slots);
    return table_type == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
