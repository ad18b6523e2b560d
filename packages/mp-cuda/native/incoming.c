/* Messages that are received: the references, the open memory and the events of a table, and arrays.
 *
 * What is open already is found here. To open memory or an event is left to the Python modules.
 *
 * Note [What keeps open memory]
 *
 *     array --> Received --> Mapping, with the number of its users
 *                      +---> References to the leases of its message
 *
 *   When the last array of a message is gone, its Received puts a Link to the last two into the queue
 *   of tasks, and a thread, once the device is idle, counts one user less, closes the memory or lets
 *   it linger, and only then drops the references.
 *
 *     closed <---- no users, taken out of `mappings` ---- lingers <--- no users --- in use
 *                                                              \--- message --->
 *
 *   A message finds a mapping in `mappings` and counts itself as its user in one step, under the GIL,
 *   and so is a mapping without users taken out before it is closed. So a message either finds it
 *   open, and it is not closed, or does not find it, and opens it again after the other has closed it
 *   (the lock of imports.py).
 *
 *   Killed at any of these steps: the kernel closes what the process had open, and the reaper of
 *   mp-core takes its references back. An offer that was not received yet is in flight, as before. */
#include <errno.h>
#include <string.h>

#include "native.h"

mp_global mp_names_table, mp_names_rebuild;
PyObject *mp_received_type;

int mp_make_names(void)
{
    if (mp_names_table.nbytes > 0)
        return 0;
    return mp_core.make_global(&mp_names_table, mp_hook.receive_table) < 0
               ? -1
               : mp_core.make_global(&mp_names_rebuild, mp_hook.rebuild);
}

/* ---- mappings ---- */

typedef struct received received;

typedef struct {
    PyObject_HEAD PyObject *key;
    uint64_t ptr, nbytes;
    received *first; /* of those that have arrays */
    Py_ssize_t users;
    int device;
} mapping;

/* What finalizers leave for a thread: a user of the mapping less, then the references. */
typedef struct {
    PyObject_HEAD PyObject *mapping, *leases;
} link_task;

struct received {
    PyObject_HEAD link_task *link; /* NULL when it was taken */
    received *next, **at;
};

static PyObject *mapping_type, *link_type;

static mapping *mapping_of(const received *self)
{
    return (mapping *)self->link->mapping;
}

static mp_reference *lease_of(const link_task *link)
{
    return (mp_reference *)PyTuple_GetItem(link->leases, 0);
}

/* Mapping(key, ptr, nbytes, device) */
static PyObject *mapping_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    unsigned long long ptr, nbytes;
    PyObject *key;
    int device;
    (void)names;

    if (!PyArg_ParseTuple(args, "SKKi:Mapping", &key, &ptr, &nbytes, &device))
        return NULL;
    mapping *self = (mapping *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    self->key = Py_NewRef(key);
    self->ptr = ptr;
    self->nbytes = nbytes;
    self->device = device;
    return (PyObject *)self;
}

static void mapping_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);

    Py_XDECREF(((mapping *)op)->key);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(op);
    Py_DECREF(type);
}

static PyObject *mapping_get(PyObject *op, void *which)
{
    const mapping *self = (mapping *)op;

    switch (*(const char *)which) {
    case 'k':
        return Py_NewRef(self->key);
    case 'p':
        return PyLong_FromUnsignedLongLong(self->ptr);
    case 'n':
        return PyLong_FromUnsignedLongLong(self->nbytes);
    case 'u':
        return PyLong_FromSsize_t(self->users);
    default:
        return PyLong_FromLong(self->device);
    }
}

/* received() -> those that have arrays, a list */
static PyObject *mapping_received(PyObject *op, PyObject *unused)
{
    PyObject *list = PyList_New(0);
    (void)unused;

    for (received *r = ((mapping *)op)->first; list != NULL && r != NULL; r = r->next)
        if (Py_REFCNT((PyObject *)r) > 0 && PyList_Append(list, (PyObject *)r) < 0)
            Py_CLEAR(list);
    return list;
}

/* drop_user(leases) -> how many are left; without any it lingers, with these leases */
static PyObject *mapping_drop_user(PyObject *op, PyObject *leases)
{
    Py_ssize_t left = --((mapping *)op)->users;

    if (left == 0)
        mp_count_held(((mapping *)op)->device, ((mapping *)op)->key, -1);
    if (left == 0 && PyDict_SetItem(mp_hook.lingering, op, leases) < 0)
        return NULL;
    return PyLong_FromSsize_t(left);
}

/* take_out() -> whether it had no users and was in `mappings`, where it is no more */
static PyObject *mapping_take_out(PyObject *op, PyObject *unused)
{
    mapping *self = (mapping *)op;
    (void)unused;

    if (self->users > 0 || PyDict_GetItemWithError(mp_hook.mappings, self->key) != op)
        return PyErr_Occurred() ? NULL : PyBool_FromLong(0);
    if (PyDict_DelItem(mp_hook.mappings, self->key) < 0)
        return NULL;
    if (PyDict_Contains(mp_hook.lingering, op) == 1 && PyDict_DelItem(mp_hook.lingering, op) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

static PyMethodDef mapping_methods[] = {
    {"received", mapping_received, METH_NOARGS, "List those that have arrays."},
    {"drop_user", mapping_drop_user, METH_O, "Count one user less; return how many are left."},
    {"take_out", mapping_take_out, METH_NOARGS, "Take one without users out of the mappings."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef mapping_getset[] = {
    {"key", mapping_get, NULL, "What tells it from every other.", "k"},
    {"ptr", mapping_get, NULL, "Its address here.", "p"},
    {"nbytes", mapping_get, NULL, "Its size.", "n"},
    {"users", mapping_get, NULL, "How many messages use it.", "u"},
    {"device", mapping_get, NULL, "The ordinal of its device.", "d"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot mapping_slots[] = {
    {Py_tp_doc, "Mapping(key, ptr, nbytes, device, /)\n--\n\nOpen memory of another process."},
    {Py_tp_new, mapping_new},
    {Py_tp_dealloc, mapping_dealloc},
    {Py_tp_methods, mapping_methods},
    {Py_tp_getset, mapping_getset},
    {0, NULL},
};

static PyType_Spec mapping_spec = {
    .name = "mp_cuda._native.Mapping",
    .basicsize = sizeof(mapping),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = mapping_slots,
};

/* ---- links ---- */

static void link_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);

    Py_XDECREF(((link_task *)op)->leases);
    Py_XDECREF(((link_task *)op)->mapping);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(op);
    Py_DECREF(type);
}

static PyObject *link_get(PyObject *op, void *which)
{
    const link_task *self = (link_task *)op;

    if (*(const char *)which == 'm')
        return Py_NewRef(self->mapping);
    if (*(const char *)which == 'l')
        return Py_NewRef(self->leases);
    return PyLong_FromLong(((mapping *)self->mapping)->device);
}

static PyGetSetDef link_getset[] = {
    {"mapping", link_get, NULL, "The open memory.", "m"},
    {"leases", link_get, NULL, "The references for it.", "l"},
    {"device", link_get, NULL, "The ordinal of its device.", "d"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot link_slots[] = {
    {Py_tp_doc, "What a finalizer leaves for a thread: one user of open memory less."},
    {Py_tp_dealloc, link_dealloc},
    {Py_tp_getset, link_getset},
    {0, NULL},
};

static PyType_Spec link_spec = {
    .name = "mp_cuda._native.Link",
    .basicsize = sizeof(link_task),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = link_slots,
};

/* ---- received ---- */

/* A message that was received has one for each allocation; NULL with an exception. */
static PyObject *new_received(PyObject *of, PyObject *leases)
{
    static allocfunc alloc, alloc_link;
    PyTypeObject *type = (PyTypeObject *)mp_received_type,
                 *kind = (PyTypeObject *)mp_hook.close_type;
    mapping *memory = (mapping *)of;

    if (alloc == NULL) {
        alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
        alloc_link = (allocfunc)PyType_GetSlot(kind, Py_tp_alloc);
    }
    link_task *link = (link_task *)alloc_link(kind, 0);
    received *self = link == NULL ? NULL : (received *)alloc(type, 0);
    if (self == NULL) {
        Py_XDECREF((PyObject *)link);
        return NULL;
    }
    if (PyDict_Contains(mp_hook.lingering, of) == 1 && PyDict_DelItem(mp_hook.lingering, of) < 0) {
        Py_DECREF(link);
        Py_DECREF(self);
        return NULL;
    }
    link->mapping = Py_NewRef(of);
    link->leases = Py_NewRef(leases);
    self->link = link;
    self->next = memory->first;
    self->at = &memory->first;
    if (self->next != NULL)
        self->next->at = &self->next;
    memory->first = self;
    if (memory->users++ == 0)
        mp_count_held(memory->device, memory->key, 1);
    if (lease_of(link)->block.data != NULL)
        mp_flags(lease_of(link))[MP_LINGERS] = 0;
    return (PyObject *)self;
}

static void take_off(received *self)
{
    if (self->at == NULL)
        return;
    *self->at = self->next;
    if (self->next != NULL)
        self->next->at = self->at;
    self->at = NULL;
}

/* Memory that its owner still uses may wait until the thread looks the next time: that wakes nobody
 * for each message. */
static void received_dealloc(PyObject *op)
{
    received *self = (received *)op;
    PyTypeObject *type = Py_TYPE(op);
    link_task *link = self->link;

    take_off(self);
    self->link = NULL;
    if (link != NULL) {
        int is_recalled = 0;
        if (lease_of(link)->block.data != NULL) {
            mp_flags(lease_of(link))[MP_LINGERS] = 1;
            is_recalled = mp_flags(lease_of(link))[MP_RECALLED];
        }
        mp_leave_to(mp_hook.tasks, (PyObject *)link);
        if (is_recalled)
            mp_leave_to(mp_hook.wake, NULL);
        Py_DECREF(link);
    }
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(op);
    Py_DECREF(type);
}

/* Received(mapping, leases) */
static PyObject *received_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *of, *leases;
    (void)type, (void)names;

    if (!PyArg_ParseTuple(args, "O!O!:Received", mapping_type, &of, &PyTuple_Type, &leases))
        return NULL;
    return new_received(of, leases);
}

/* take() -> its task, which is done by the caller; None if it was taken before */
static PyObject *received_take(PyObject *op, PyObject *unused)
{
    received *self = (received *)op;
    link_task *link = self->link;
    (void)unused;

    take_off(self);
    self->link = NULL;
    return link != NULL ? (PyObject *)link : Py_NewRef(Py_None);
}

static PyObject *received_get(PyObject *op, void *which)
{
    const received *self = (received *)op;

    return self->link == NULL ? Py_NewRef(Py_None) : link_get((PyObject *)self->link, which);
}

static PyMethodDef received_methods[] = {
    {"take", received_take, METH_NOARGS, "Return its task, which the caller does; or None."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef received_getset[] = {
    {"mapping", received_get, NULL, "The open memory, or None if its task was taken.", "m"},
    {"leases", received_get, NULL, "The references for it, likewise.", "l"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot received_slots[] = {
    {Py_tp_doc, "Received(mapping, leases, /)\n--\n\n"
                "What the arrays of one message on one allocation share."},
    {Py_tp_new, received_new},
    {Py_tp_dealloc, received_dealloc},
    {Py_tp_methods, received_methods},
    {Py_tp_getset, received_getset},
    {0, NULL},
};

static PyType_Spec received_spec = {
    .name = "mp_cuda._native.Received",
    .basicsize = sizeof(received),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = received_slots,
};

/* ---- the table ---- */

typedef struct {
    PyObject *owner; /* a Received, or what the sender, which is this process, keeps */
    uint64_t base, nbytes;
    int device;
    char is_own;
} memory_row;

typedef struct {
    PyObject_HEAD memory_row *rows;
    size_t count;
    uint64_t began, nbytes; /* for the timeline; 0 without one */
} table;

static PyObject *table_type;

static void table_dealloc(PyObject *op)
{
    table *self = (table *)op;
    PyTypeObject *type = Py_TYPE(op);

    mp_core.device_memory(self->began, self->nbytes, 0); /* the message has been read */
    for (size_t i = 0; i < self->count; i++)
        Py_XDECREF(self->rows[i].owner);
    PyMem_Free(self->rows);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(op);
    Py_DECREF(type);
}

static PyType_Slot table_slots[] = {
    {Py_tp_doc, "What the arrays of a message share, received."},
    {Py_tp_dealloc, table_dealloc},
    {0, NULL},
};

static PyType_Spec table_spec = {
    .name = "mp_cuda._native.Table",
    .basicsize = sizeof(table),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = table_slots,
};

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

static int is_me(const mp_table_lease *row)
{
    return row->pid == mp_pid && memcmp(row->nonce, mp_nonce, MP_NONCE) == 0;
}

/* Receive one of the offers, whose number the bytes have. */
static int receive_offer(PyObject *offers, mpshm_block *block)
{
    Py_ssize_t nbytes = PyBytes_Check(offers) ? PyBytes_Size(offers) : 0;
    const char *bytes = nbytes > 0 ? PyBytes_AsString(offers) : NULL;

    if (nbytes == 0 || nbytes % MP_OFFER != 0) {
        mp_damaged("its offers have the wrong size");
        return -1;
    }
    for (Py_ssize_t at = 0; at < nbytes; at += MP_OFFER)
        if (mp_core.receive(bytes + at, MP_OFFER, block) == 0) {
            if (block->nbytes >= 8 + MP_FLAGS)
                return 0;
            mp_core.block_release(block);
            mp_damaged("its lease has the wrong size");
            return -1;
        }
    PyObject *raised = mp_call(mp_hook.receive_reference, offers);
    if (raised != NULL)
        mp_damaged("its offer cannot be received");
    Py_XDECREF(raised);
    return -1;
}

static PyObject *receive_lease(reading *from, PyObject *offers)
{
    PyObject *sent = NULL;
    mp_table_lease row;
    mpshm_block block;

    if (take(from, &row, sizeof(row)) < 0)
        return NULL;
    /* Retain what was sent before the reference is received: the export drops it with the last. */
    if (is_me(&row)) {
        sent = PyObject_CallFunction(mp_hook.own_sent, "K", (unsigned long long)row.serial);
        if (sent == NULL)
            return NULL;
    }
    PyObject *lease = receive_offer(offers, &block) < 0
                          ? NULL
                          : mp_new_reference(&block, row.pid, row.nonce, row.serial);
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
static int find_own(memory_row *to, mp_reference *lease, PyObject *key)
{
    PyObject *keeps, *places, *place = NULL;
    unsigned long long base, nbytes;

    if (!PyArg_ParseTuple(lease->sent, "O!O!", &PyList_Type, &keeps, &PyDict_Type, &places))
        return -1;
    place = PyDict_GetItemWithError(places, key);
    if (place == NULL) {
        if (!PyErr_Occurred())
            Py_XDECREF(PyObject_CallNoArgs(mp_hook.own_is_gone));
        return -1;
    }
    if (!PyArg_ParseTuple(place, "KKi", &base, &nbytes, &to->device))
        return -1;
    to->base = base;
    to->nbytes = nbytes;
    to->is_own = 1;
    to->owner = Py_NewRef(keeps);
    return 0;
}

/* Find memory of another process, or let it be opened: a new reference to a Received. */
static PyObject *find_memory(PyObject *leases, PyObject *key, PyObject *extra)
{
    PyObject *known = PyDict_GetItemWithError(mp_hook.mappings, key);
    const mp_reference *lease = (mp_reference *)PyTuple_GetItem(leases, 0);

    if (known == NULL)
        return PyErr_Occurred()
                   ? NULL
                   : PyObject_CallFunctionObjArgs(mp_hook.open_memory, leases, key, extra, NULL);
    /* First: what follows may release the GIL, and the memory may be closed meanwhile. */
    PyObject *made = new_received(known, leases);
    if (made != NULL && extra != Py_None) {
        PyObject *done = PyObject_CallFunctionObjArgs(mp_hook.skip_memory, key, extra, NULL);
        if (done == NULL)
            Py_CLEAR(made);
        Py_XDECREF(done);
    }
    if (made == NULL || mp_core.lease_owner_lives(&lease->block) == 1)
        return made;
    Py_DECREF(made);
    PyObject *raised = mp_call(mp_hook.owner_is_gone, key);
    Py_XDECREF(raised);
    return NULL;
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
        to->owner = find_memory(leases, key, extra);
        if (to->owner != NULL && (PyObject *)Py_TYPE(to->owner) != mp_received_type)
            Py_CLEAR(to->owner);
        rc = to->owner == NULL ? -1 : 0;
        if (rc == 0) {
            const mapping *memory = mapping_of((received *)to->owner);
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

/* With each message: of a stream of new arrays, which their sender drops at once, few stay open for
 * long. Look whether the memory that has waited longest is wanted back. */
static void wake_if_recalled(void)
{
    PyObject *memory, *leases, *oldest = NULL;
    Py_ssize_t at = 0;
    int is_recalled = 0;

    if (PyObject_Size(mp_hook.tasks) > 0)
        oldest = PySequence_GetItem(mp_hook.tasks, 0);
    PyErr_Clear(); /* another thread may have done it */
    if (oldest != NULL && (PyObject *)Py_TYPE(oldest) == mp_hook.close_type) {
        const mp_reference *first = lease_of((link_task *)oldest);
        is_recalled = first->block.data != NULL && mp_flags(first)[MP_RECALLED];
    }
    Py_XDECREF(oldest);
    if (!is_recalled && PyDict_Next(mp_hook.lingering, &at, &memory, &leases)) {
        const mp_reference *first = (mp_reference *)PyTuple_GetItem(leases, 0);
        is_recalled = first->block.data != NULL && mp_flags(first)[MP_RECALLED];
    }
    if (is_recalled)
        mp_leave_to(mp_hook.wake, NULL);
}

static PyObject *received_table(PyObject *offers, const char *bytes, size_t nbytes)
{
    PyTypeObject *type = (PyTypeObject *)table_type;
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
    table *self = (table *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
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
        wake_if_recalled();
    return (PyObject *)self;
}

/* receive_table(offers, table) -> Table */
PyObject *mp_py_receive_table(PyObject *module, PyObject *args)
{
    PyObject *offers;
    const char *bytes;
    Py_ssize_t nbytes;
    (void)module;

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
        return mp_array_of(layout, nbytes, 0, 0, 0, NULL, dtype);
    if ((PyObject *)Py_TYPE(in) != table_type || head.row >= ((table *)in)->count)
        return mp_damaged("an array is in no memory of it");
    const memory_row *row = &((table *)in)->rows[head.row];
    PyObject *owner = row->owner;
    if (row->is_own && head.number != UINT32_MAX) {
        owner = PyList_Check(owner) && head.number < (size_t)PyList_Size(owner)
                    ? PyList_GetItem(owner, (Py_ssize_t)head.number)
                    : NULL;
        if (owner == NULL)
            return mp_damaged("this process keeps no such object for it");
    }
    PyObject *array =
        mp_array_of(layout, nbytes, row->base, row->nbytes, row->device, owner, dtype);
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

/* rebuild(table, layout, kind=None, extra=b"", dtype=None) -> DeviceArray, or array of that kind */
PyObject *mp_py_rebuild(PyObject *module, PyObject *args)
{
    PyObject *in, *kind = Py_None, *extra = NULL, *dtype = Py_None;
    const char *layout;
    Py_ssize_t nbytes;
    (void)module;

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

/* ---- the types ---- */

static int add(PyObject *module, PyType_Spec *spec, const char *name, PyObject **type)
{
    *type = PyType_FromModuleAndSpec(module, spec, NULL);
    return *type == NULL ? -1 : PyModule_AddObjectRef(module, name, *type);
}

int mp_add_incoming_types(PyObject *module)
{
    return add(module, &mapping_spec, "Mapping", &mapping_type) < 0 ||
                   add(module, &link_spec, "Link", &link_type) < 0 ||
                   add(module, &received_spec, "Received", &mp_received_type) < 0
               ? -1
               : add(module, &table_spec, "Table", &table_type);
}
