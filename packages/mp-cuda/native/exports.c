/* Exports: the memory and events of this process that other processes still use or may still
 * receive.
 *
 * Note [Lifetime of sent memory]
 *
 *     sender      export --> Sources: what was sent, and so its memory; the events of the message
 *                    |
 *                  lease   (a count in shared memory, exact even if processes are killed)
 *                    ^
 *     message     an offer: an in-flight reference to the lease
 *     receiver    Reference <-- Received <-- arrays; released after the memory is closed
 *
 *   When the last reference is gone, the lease has ended, and the sender drops what it has sent. It
 *   looks with each new export, and every 50 ms. A message that no process receives keeps its
 *   memory until ipc_collect(in_flight_older_than=...) revokes it.
 *
 * Note [Memory that is given back on request]
 *   A receiver that has dropped its last array may keep the memory open for the next message
 *   (mappings.c, Note [Lingering]). It says so in the lease's memory (LINGERS, reference.c). The
 *   memory is the sender's no less: if nobody but its exports has it there, the sender sets the
 *   byte RECALLED, and the receiver closes the memory and releases the lease:
 *
 *     the sender's program has dropped it           looked at with each new export, for the two asked
 *                                                   longest ago, and every 50 ms
 *     ipc_collect(), wait_released(), exit          at once, for all exports
 *     there is no memory for a new allocation       likewise */
#include "native.h"

#include <errno.h>

enum { ASKED = 2, LOOKS = 8, MANY = 8 };

static PyObject *memory_type, *source_type;
static PyObject *latest; /* {id of an object: its last Source} */
/* All that have not ended, that were looked at longest ago first. It has a reference to those that
 * were sent. */
static mp_link exports = {&exports, &exports};
static unsigned released; /* of those that were looked at since some were ended */

/* ---- what exports keep ---- */

static void memory_dealloc(PyObject *op)
{
    Py_XDECREF(((mp_memory *)op)->key);
    mp_free(op);
}

mp_memory *mp_new_memory(PyObject *key, uint64_t base, uint64_t nbytes, int device)
{
    mp_memory *self = mp_new(memory_type);

    if (self == NULL)
        return NULL;
    self->key = Py_NewRef(key);
    self->base = base;
    self->nbytes = nbytes;
    self->device = device;
    return self;
}

static void source_dealloc(PyObject *op)
{
    mp_source *self = (mp_source *)op;

    Py_XDECREF(self->leases);
    Py_XDECREF((PyObject *)self->older);
    Py_XDECREF((PyObject *)self->memory);
    Py_XDECREF(self->key);
    Py_XDECREF(self->extra);
    Py_XDECREF(self->owner); /* last: to free it may run any code */
    mp_free(op);
}

mp_source *mp_new_source(PyObject *leases, PyObject *key, uint64_t base, uint64_t nbytes,
                         int device)
{
    mp_source *self = mp_new(source_type);

    if (self == NULL)
        return NULL;
    self->leases = Py_NewRef(leases);
    self->key = Py_XNewRef(key);
    self->base = base;
    self->nbytes = nbytes;
    self->number = MP_ALL;
    self->device = device;
    return self;
}

mp_source *mp_latest_source(PyObject *owner)
{
    PyObject *id = PyLong_FromVoidPtr(owner);
    PyObject *known = id == NULL ? NULL : PyDict_GetItemWithError(latest, id);

    Py_XDECREF(id);
    return (mp_source *)known;
}

static int set_latest(PyObject *owner, mp_source *source)
{
    PyObject *id = PyLong_FromVoidPtr(owner);
    int rc = id == NULL       ? -1
             : source != NULL ? PyDict_SetItem(latest, id, (PyObject *)source)
                              : PyDict_DelItem(latest, id);

    Py_XDECREF(id);
    return rc;
}

mp_source *mp_keep(mp_reference *export, PyObject *owner, mp_memory *memory, PyObject *extra)
{
    PyObject *leases = PyTuple_Pack(1, (PyObject *)export);
    mp_source *self = leases == NULL   ? NULL
                      : memory != NULL ? mp_new_source(leases, memory->key, memory->base,
                                                       memory->nbytes, memory->device)
                                       : mp_new_source(leases, NULL, 0, 0, 0);
    mp_source *older = self == NULL ? NULL : mp_latest_source(owner);

    Py_XDECREF(leases);
    if (self == NULL)
        return NULL;
    self->older = (mp_source *)Py_XNewRef((PyObject *)older);
    self->number = export->keeps == NULL ? 0 : (uint32_t)PyList_Size(export->keeps);
    self->extra = Py_XNewRef(extra);
    if (export->keeps == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "the lease has ended and cannot be sent");
    if (PyErr_Occurred() || PyList_Append(export->keeps, (PyObject *)self) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->owner = Py_NewRef(owner);
    if (memory != NULL) {
        self->memory = (mp_memory *)Py_NewRef((PyObject *)memory);
        if (memory->exports++ == 0)
            mp_count(memory->device, memory->key, 1, 1);
    }
    if (set_latest(owner, self) < 0) { /* it is kept, and not found */
        Py_DECREF(self);
        return NULL;
    }
    Py_XDECREF((PyObject *)export->last);
    export->last = extra == NULL ? (mp_memory *)Py_XNewRef((PyObject *)memory) : NULL;
    return self;
}

/* Take a source out of the list of those of its owner. */
static void take_off(mp_source *source)
{
    mp_source *at = mp_latest_source(source->owner), *older = source->older;

    if (at == source) {
        Py_INCREF((PyObject *)source);
        if (set_latest(source->owner, older) < 0)
            PyErr_Clear();
        Py_DECREF(source);
        return;
    }
    while (at != NULL && at->older != source)
        at = at->older;
    if (at != NULL) {
        at->older = (mp_source *)Py_XNewRef((PyObject *)older);
        Py_DECREF(source);
    }
}

/* ---- exports ---- */

/* With the GIL, so that no other thread forks before the block is in the list; or else with a lock
 * that keeps them out. */
static int allocate(mpshm_block *block, int *is_locked)
{
    const uint64_t nbytes = MP_SIGNATURE + MP_FLAGS;
    int strategy = *mp_core.strategy;
    int rc = mp_core.block_allocate(strategy, nbytes, MPSHM_ZEROED | MPSHM_NOWAIT, block);

    if (rc == -EAGAIN) {
        PyObject *done = PyObject_CallMethod(mp_hook.no_fork, "acquire", NULL);
        if (done == NULL)
            return -1;
        Py_DECREF(done);
        *is_locked = 1;
        Py_BEGIN_ALLOW_THREADS
        rc = mp_core.block_allocate(strategy, nbytes, MPSHM_ZEROED, block);
        Py_END_ALLOW_THREADS
    }
    if (rc == -ENOMEM) {
        PyErr_NoMemory();
    } else if (rc < 0) {
        errno = -rc;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    return rc < 0 ? -1 : 0;
}

/* Whether this process uses the memory for more than its exports; -1 with an exception. To ask may
 * end the export. */
static int is_in_use(const mp_reference *export)
{
    PyObject *keeps = Py_NewRef(export->keeps);
    int is_used =
        PyList_Size(keeps) == 0; /* its message is just being made, or it keeps only events */

    for (Py_ssize_t i = 0; !is_used && i < PyList_Size(keeps); i++) {
        PyObject *owner = ((mp_source *)PyList_GetItem(keeps, i))->owner;
        Py_ssize_t kept = 0;
        for (const mp_source *at = mp_latest_source(owner); at != NULL; at = at->older)
            kept++;
        is_used = Py_REFCNT(owner) > kept;
        PyObject *ask =
            is_used ? NULL : PyDict_GetItemWithError(mp_hook.in_use, (PyObject *)Py_TYPE(owner));
        PyObject *said = ask == NULL ? NULL : mp_call(ask, owner);
        if (said != NULL)
            is_used = PyObject_IsTrue(said);
        else if (PyErr_Occurred())
            is_used = -1;
        Py_XDECREF(said);
    }
    Py_DECREF(keeps);
    return is_used;
}

void mp_end_export(mp_reference *self)
{
    PyObject *keeps = self->keeps;
    int was_sent = self->is_sent && self->link.next != NULL;

    mp_error error = mp_set_aside();
    mp_take_out(&self->link);
    self->keeps = NULL;
    for (Py_ssize_t i = 0; keeps != NULL && i < PyList_Size(keeps); i++) {
        mp_source *source = (mp_source *)PyList_GetItem(keeps, i);
        mp_memory *memory = source->memory;
        take_off(source);
        if (memory != NULL && --memory->exports == 0)
            mp_count(memory->device, memory->key, 1, -1);
    }
    mp_return_events(self);
    Py_CLEAR(self->last);
    mp_release(self);
    Py_XDECREF(keeps); /* last: to free what it has may run any code */
    if (was_sent)
        Py_DECREF(self);
    mp_put_back(&error);
}

/* End those that no other process has. */
static void end_released(void)
{
    mp_link over = {&over, &over};

    released = 0;
    for (mp_link *at = exports.next, *next; at != &exports; at = next) {
        mp_reference *export = MP_OF(mp_reference, link, at);
        next = at->next;
        if (export->is_sent && mp_core.lease_end(&export->block)) {
            mp_take_out(at);
            mp_append(&over, at);
        }
    }
    while (over.next != &over)
        mp_end_export(MP_OF(mp_reference, link, over.next));
}

/* End a few exports that were released, and recall the memory of those that the program has
 * dropped: a program that sends new arrays all the time keeps few of them. Each export is looked at
 * twice, before it is recalled and after it is released. So what is recalled does not count as
 * asked: as many looks would be needed as are made, and the exports would grow. -1 with an
 * exception. */
static int look_at_oldest(void)
{
    int asked = 0;

    for (int i = 0; i < LOOKS && asked < ASKED && exports.next != &exports; i++) {
        mp_reference *export = MP_OF(mp_reference, link, exports.next);
        mp_take_out(&export->link);
        mp_append(&exports, &export->link);
        if (!export->is_sent)
            continue;
        released += mp_core.block_others(&export->block) == 0;
        if (mp_is_recalled(export))
            continue;
        Py_INCREF((PyObject *)export);
        int is_used = is_in_use(export);
        if (!is_used && export->block.data != NULL)
            mp_flags(export)[MP_RECALLED] = 1;
        Py_DECREF(export);
        if (is_used < 0)
            return -1;
        asked++;
    }
    if (released >= MANY) /* each time it looks at all leases */
        end_released();
    return 0;
}

mp_reference *mp_new_export(void)
{
    static uint64_t serial;
    int is_locked = 0;
    mpshm_block block;
    PyObject *keeps = PyList_New(0);
    mp_reference *self = NULL;

    if (keeps == NULL || look_at_oldest() < 0) {
        Py_XDECREF(keeps);
        return NULL;
    }
    if (allocate(&block, &is_locked) == 0) {
        mp_core.lease_sign(&block);
        self = (mp_reference *)mp_new_reference(&block, mp_pid, mp_nonce, ++serial);
    }
    if (self != NULL) {
        self->is_sent = 0;
        self->keeps = keeps;
        mp_take_out(&self->link);
        mp_append(&exports, &self->link);
    } else {
        Py_DECREF(keeps);
    }
    if (is_locked) {
        mp_error error = mp_set_aside();
        Py_XDECREF(PyObject_CallMethod(mp_hook.no_fork, "release", NULL));
        mp_put_back(&error);
    }
    return self;
}

PyObject *mp_offer(mp_reference *self)
{
    if (mp_has_ended(self))
        return PyErr_Format(PyExc_ValueError, "the lease has ended and cannot be sent");
    PyObject *handle = mp_core.make_handle(&self->block, MPSHM_LASTING);
    if (handle == NULL)
        return NULL;
    self->sent_at = mp_now();
    if (!self->is_sent) {
        self->is_sent = 1;
        Py_INCREF((PyObject *)self); /* for the list */
        mp_leave_to(mp_hook.wake_watch, NULL);
    }
    return handle;
}

/* ---- own messages ---- */

PyObject *mp_own_sent(uint64_t serial)
{
    mp_reference *found = NULL;

    for (mp_link *at = exports.next; at != &exports && found == NULL; at = at->next)
        if (MP_OF(mp_reference, link, at)->serial == serial)
            found = MP_OF(mp_reference, link, at);
    if (found == NULL)
        return Py_NewRef(Py_None);
    PyObject *keeps = Py_NewRef(found->keeps); /* new objects may collect garbage, and so end it */
    PyObject *owners = PyList_New(0), *sources = PyList_GetSlice(keeps, 0, PY_SSIZE_T_MAX);
    int rc = owners == NULL || sources == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; rc == 0 && i < PyList_Size(sources); i++)
        rc = PyList_Append(owners, ((mp_source *)PyList_GetItem(sources, i))->owner);
    PyObject *both = rc == 0 ? PyTuple_Pack(2, owners, sources) : NULL;
    Py_XDECREF(owners);
    Py_XDECREF(sources);
    Py_DECREF(keeps);
    return both;
}

static PyObject *own_sent(PyObject *module, PyObject *serial)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(serial);

    PyObject *both = PyErr_Occurred() ? NULL : mp_own_sent(number);
    if (both == NULL || both == Py_None)
        return both;
    PyObject *owners = Py_NewRef(PyTuple_GetItem(both, 0));
    Py_DECREF(both);
    return owners;
}

static PyObject *export_object(PyObject *module, PyObject *object)
{
    mp_reference *export = mp_new_export();
    mp_source *source = export == NULL ? NULL : mp_keep(export, object, NULL, NULL);
    PyObject *offer = source == NULL ? NULL : mp_offer(export), *both = NULL;

    if (offer != NULL)
        both = Py_BuildValue("(KN)", (unsigned long long)export->serial, offer);
    if (export != NULL && !export->is_sent)
        mp_end_export(export);
    Py_XDECREF((PyObject *)source);
    Py_XDECREF((PyObject *)export);
    return both;
}

/* ---- all of them ---- */

/* Those that were sent, a list. */
static PyObject *all(void)
{
    PyObject *list = PyList_New(0);

    for (mp_link *at = exports.next; list != NULL && at != &exports; at = at->next)
        if (MP_OF(mp_reference, link, at)->is_sent &&
            PyList_Append(list, (PyObject *)MP_OF(mp_reference, link, at)) < 0)
            Py_CLEAR(list);
    return list;
}

static PyObject *look_at_exports(PyObject *module, PyObject *args)
{
    double before;
    int recall;

    if (!PyArg_ParseTuple(args, "pd:look_at_exports", &recall, &before))
        return NULL;
    PyObject *list = all();
    int rc = list == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; rc == 0 && i < PyList_Size(list); i++) {
        mp_reference *export = (mp_reference *)PyList_GetItem(list, i);
        if (export->keeps == NULL)
            continue; /* it has ended meanwhile */
        int is_used = !recall && !mp_is_recalled(export) ? is_in_use(export) : 0;
        rc = is_used < 0 ? -1 : 0;
        if (is_used == 0 && export->block.data != NULL)
            mp_flags(export)[MP_RECALLED] = 1;
        if (export->sent_at <= before && export->block.data != NULL)
            mp_core.block_revoke(&export->block);
    }
    Py_XDECREF(list);
    if (rc < 0)
        return NULL;
    end_released();
    rc = 0;
    for (mp_link *at = exports.next; at != &exports; at = at->next)
        rc += MP_OF(mp_reference, link, at)->is_sent;
    return PyBool_FromLong(rc);
}

static PyObject *live_exports(PyObject *module, PyObject *unused)
{
    PyObject *sent = all(), *list = sent == NULL ? NULL : PyList_New(0);

    for (Py_ssize_t at = 0; list != NULL && at < PyList_Size(sent); at++) {
        const mp_reference *export = (mp_reference *)PyList_GetItem(sent, at);
        unsigned long long nbytes = 0;
        if (export->keeps == NULL)
            continue; /* a new row may collect garbage, and so end it */
        for (Py_ssize_t i = 0; i < PyList_Size(export->keeps); i++) {
            const mp_source *source = (mp_source *)PyList_GetItem(export->keeps, i);
            int is_first = source->memory != NULL;
            for (Py_ssize_t k = 0; is_first && k < i; k++)
                is_first =
                    ((mp_source *)PyList_GetItem(export->keeps, k))->memory != source->memory;
            nbytes += is_first ? source->nbytes : 0;
        }
        PyObject *row = Py_BuildValue("(KiN)", nbytes, mp_core.block_others(&export->block),
                                      PyBool_FromLong(mp_flags(export)[MP_LINGERS]));
        if (row == NULL || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    Py_XDECREF(sent);
    return list;
}

/* In a forked child: its parent's objects stay, and are not used, because the driver cannot free
 * them here; and it has no reference to the leases. */
void mp_forget_exports(void)
{
    while (exports.next != &exports) {
        mp_reference *export = MP_OF(mp_reference, link, exports.next);
        mp_take_out(&export->link);
        Py_XINCREF(export->keeps);
        mp_release(export);
    }
    PyDict_Clear(latest);
}

static PyMethodDef functions[] = {
    MP_FUNCTION(own_sent, METH_O, "(serial, /)",
                "List what an export of this process keeps; None if it has ended."),
    MP_FUNCTION(export_object, METH_O, "(object, /)",
                "Keep it for a message; return (serial, offer)."),
    MP_FUNCTION(
        look_at_exports, METH_VARARGS, "(recall, revoke_before, /)",
        "Recall the memory that the program has dropped, or all; end what no other process has."),
    MP_FUNCTION(live_exports, METH_NOARGS, "()",
                "List bytes, references and whether it lingers of each export."),
    {NULL, NULL, 0, NULL},
};

int mp_add_exports(PyObject *module)
{
    PyType_Slot of_memory[] = {{Py_tp_dealloc, memory_dealloc}, {0, NULL}};
    PyType_Slot of_source[] = {{Py_tp_dealloc, source_dealloc}, {0, NULL}};

    memory_type =
        mp_add_type(module, "mp_cuda._native.Memory", sizeof(mp_memory), MP_ONLY_HERE, of_memory);
    source_type =
        mp_add_type(module, "mp_cuda._native.Source", sizeof(mp_source), MP_ONLY_HERE, of_source);
    latest = PyDict_New();
    return memory_type == NULL || source_type == NULL || latest == NULL
               ? -1
               : PyModule_AddFunctions(module, functions);
}
