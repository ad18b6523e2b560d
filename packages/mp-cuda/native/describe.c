/* The memory of an array, for a message.
 *
 * Note [What is known]
 *   An object that owns memory is described once: a Source. Its export lives as long as a receiver
 *   has a reference, or may still get one, and so long the object's next message needs nothing but
 *   another offer of the same lease and an event. What the driver says about an allocation is asked
 *   once too, and known by the allocation's number afterwards: addresses are used again, these
 *   numbers are not. The Python modules describe what no handle opens: memory of pools, copies,
 *   errors. */
#include "native.h"

enum { MOST_KNOWN = 4096 };

static PyObject *known; /* {number of an allocation: mp_memory} */

int mp_make_known(void)
{
    known = PyDict_New();
    return known == NULL ? -1 : 0;
}

void mp_forget_known(void)
{
    PyDict_Clear(known);
}

/* Forget those that no export has. */
static int forget_unused(void)
{
    PyObject *kept = PyDict_New(), *number, *memory;
    Py_ssize_t at = 0;
    int rc = kept == NULL ? -1 : 0;

    while (rc == 0 && PyDict_Next(known, &at, &number, &memory))
        if (((mp_memory *)memory)->exports > 0)
            rc = PyDict_SetItem(kept, number, memory);
    if (rc < 0) {
        Py_XDECREF(kept);
        return -1;
    }
    Py_DECREF(known);
    known = kept;
    return 0;
}

static PyObject *key_of(const mp_pointer *of, int transport, const void *handle)
{
    mp_key_head head = {.pid = mp_pid,
                        .buffer_id = of->buffer_id,
                        .nbytes = of->nbytes,
                        .transport = (uint8_t)transport};
    char key[sizeof(head) + MP_CUDA_HANDLE];

    memcpy(head.nonce, mp_nonce, MP_NONCE);
    if (mp_uuid_of((int)of->device, head.uuid) < 0)
        return NULL;
    memcpy(key, &head, sizeof(head));
    memcpy(key + sizeof(head), handle, MP_CUDA_HANDLE);
    return PyBytes_FromStringAndSize(key, sizeof(key));
}

/* Learn an allocation: a new reference. If its key is known already, it is the same. */
static mp_memory *learned(const mp_pointer *of, int transport, const void *handle)
{
    PyObject *key = key_of(of, transport, handle),
             *number = PyLong_FromUnsignedLongLong(of->buffer_id);
    PyObject *before =
        number == NULL || key == NULL ? NULL : PyDict_GetItemWithError(known, number);
    mp_memory *memory = NULL;

    if (before != NULL && PyObject_RichCompareBool(((mp_memory *)before)->key, key, Py_EQ) == 1) {
        memory = (mp_memory *)Py_NewRef(before);
    } else if (key != NULL && number != NULL && !PyErr_Occurred() &&
               (PyDict_Size(known) < MOST_KNOWN || forget_unused() == 0)) {
        memory = mp_new_memory(key, of->base, of->nbytes, (int)of->device);
        if (memory != NULL && PyDict_SetItem(known, number, (PyObject *)memory) < 0)
            Py_CLEAR(memory);
    }
    Py_XDECREF(key);
    Py_XDECREF(number);
    return memory;
}

static int is_in(uint64_t low, uint64_t high, uint64_t base, uint64_t nbytes)
{
    return base <= low && low <= high && high <= base + nbytes;
}

/* The known allocation with these bytes, a new reference; NULL, perhaps with an exception. */
static mp_memory *known_memory(int device, uint64_t low, uint64_t high)
{
    uint64_t id;

    if (mp_buffer_id(device, low, &id) < 0 || id == 0)
        return NULL;
    PyObject *number = PyLong_FromUnsignedLongLong(id);
    mp_memory *memory = number == NULL ? NULL : (mp_memory *)PyDict_GetItemWithError(known, number);
    Py_XDECREF(number);
    return memory != NULL && is_in(low, high, memory->base, memory->nbytes) &&
                   PyBytes_AsString(memory->key)[offsetof(mp_key_head, transport)] == MP_BY_HANDLE
               ? (mp_memory *)Py_NewRef((PyObject *)memory)
               : NULL;
}

/* Memory of another process is sent on: with references to its owner's leases, and an event after
 * our own work. */
static mp_source *forwarded(const mp_array *array, mp_mapping *of, PyObject *leases)
{
    if (leases == NULL)
        return NULL;
    /* The legacy default stream waits for the sender's work. */
    if (array->stream != 0 && array->stream != MP_LEGACY) {
        PyObject *done = PyObject_CallFunction(mp_hook.order, "iiK", array->device, MP_LEGACY,
                                               (unsigned long long)array->stream);
        if (done == NULL)
            return NULL;
        Py_DECREF(done);
    }
    return mp_new_source(leases, of->key, of->ptr, of->nbytes, of->device);
}

/* Keep it in the export, unless this is NULL or was revoked meanwhile, or else in a new one. */
static mp_source *kept(mp_reference *export, PyObject *owner, mp_memory *memory, PyObject *extra)
{
    mp_reference *in = export != NULL && !mp_has_ended(export)
                           ? (mp_reference *)Py_NewRef((PyObject *)export)
                           : mp_new_export();
    mp_source *source = in == NULL ? NULL : mp_keep(in, owner, memory, extra);

    if (source == NULL && in != NULL && in != export)
        mp_end_export(in);
    Py_XDECREF((PyObject *)in);
    return source;
}

/* Ask the Python modules, who say it of a pool, copy the array, or raise. */
static mp_source *unusual(PyObject *array, int64_t low, int64_t high, const mp_pointer *of,
                          mp_reference *export, unsigned receivers, PyObject *fallback,
                          uint64_t *address)
{
    mp_array *self = (mp_array *)array;
    PyObject *facts = of == NULL ? Py_NewRef(Py_None)
                                 : Py_BuildValue("(KKKKKKKKK)", of->base, of->nbytes, of->device,
                                                 of->buffer_id, of->is_legacy, of->pool,
                                                 of->handle_types, of->is_managed, of->type);
    PyObject *said =
        facts == NULL
            ? NULL
            : PyObject_CallFunction(mp_hook.describe, "OKKNIO", array, self->ptr + (uint64_t)low,
                                    self->ptr + (uint64_t)high, facts, receivers, fallback);
    mp_source *source = NULL;
    const char *handle;
    Py_ssize_t nbytes;
    PyObject *extra;

    if (said != NULL && mp_is_array(said)) {
        PyObject *error = PyUnicode_FromString("error"); /* the copy is sent, or nothing */
        *address = ((mp_array *)said)->ptr;
        if (error != NULL)
            source = mp_find_source(said, low, high, export, receivers, error, address);
        Py_XDECREF(error);
    } else if (said != NULL && of != NULL &&
               PyArg_ParseTuple(said, "y#S", &handle, &nbytes, &extra)) {
        if (nbytes != MP_CUDA_HANDLE)
            PyErr_Format(PyExc_ValueError, "a handle of a pool's memory has %zd bytes", nbytes);
        mp_memory *memory = PyErr_Occurred() ? NULL : learned(of, MP_BY_POOL, handle);
        if (memory != NULL)
            source = kept(export, self->owner != NULL ? self->owner : array, memory, extra);
        Py_XDECREF((PyObject *)memory);
    }
    Py_XDECREF(said);
    return source;
}

mp_source *mp_find_source(PyObject *array, int64_t low, int64_t high, mp_reference *export,
                          unsigned receivers, PyObject *fallback, uint64_t *address)
{
    mp_array *self = (mp_array *)array;
    PyObject *owner = self->owner != NULL ? self->owner : array;
    uint64_t first = self->ptr + (uint64_t)low, end = self->ptr + (uint64_t)high;
    mp_received *own = (PyObject *)Py_TYPE(owner) == mp_received_type ? (mp_received *)owner : NULL;
    mp_mapping *of = own != NULL ? mp_mapping_of(own) : NULL;

    if (of == NULL) {
        own = NULL;
        of = mp_mapping_at(self->device, first);
    }
    if (of != NULL && (own != NULL || of->users > 0)) {
        if (of->state != NULL)
            return unusual(array, low, high, NULL, export, receivers, fallback, address);
        /* An array of another library does not tell which message has brought it, so all are sent
         * on. */
        PyObject *leases = own != NULL ? Py_NewRef(mp_leases_of(own)) : mp_all_leases(of);
        mp_source *source = forwarded(self, of, leases);
        Py_XDECREF(leases);
        return source;
    }
    mp_memory *memory =
        export != NULL ? export->last : NULL; /* it is kept, so its address is not reused */
    memory = memory != NULL && memory->device == self->device &&
                     is_in(first, end, memory->base, memory->nbytes)
                 ? (mp_memory *)Py_NewRef((PyObject *)memory)
                 : known_memory(self->device, first, end);
    if (memory == NULL) {
        mp_pointer asked;
        if (PyErr_Occurred() || mp_ask_pointer(self->device, first, &asked) < 0)
            return NULL;
        if (asked.type == MP_HOST || !asked.is_legacy || asked.is_managed || asked.buffer_id == 0 ||
            !is_in(first, end, asked.base, asked.nbytes))
            return unusual(array, low, high, &asked, export, receivers, fallback, address);
        memory = learned(&asked, MP_BY_HANDLE, asked.handle);
    }
    mp_source *source = memory == NULL ? NULL : kept(export, owner, memory, NULL);
    Py_XDECREF((PyObject *)memory);
    return source;
}
