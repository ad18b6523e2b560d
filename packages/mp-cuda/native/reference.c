/* References to leases: what keeps the memory and the events of a message.
 *
 * A lease is a block of mp-core's, whose memory all who have a reference share: two flags, then a
 * slot for each event that a message's receiver has not met yet.
 *
 *   RECALLED     set by the owner: close the memory, unless arrays use it
 *   LINGERS      set by a receiver: the memory is open only for the next message
 *   slots        set by the sender of a message, cleared when its receiver waits for the event
 *
 * mp-core takes the owner's name out of the block when the lease ends, which is when its last
 * reference is gone. Until then the owner may make offers; the GIL keeps that in one step with the
 * look at the name. */
#include "native.h"

#include <errno.h>
#include <sys/random.h>
#include <unistd.h>

PyObject *mp_reference_type;
static mp_link received = {&received, &received};
uint32_t mp_pid;
unsigned char mp_nonce[MP_NONCE];

int mp_renew_process(void)
{
    mp_pid = (uint32_t)getpid();
    if (getrandom(mp_nonce, MP_NONCE, 0) == MP_NONCE)
        return 0;
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

int mp_is_me(uint32_t pid, const void *nonce)
{
    return pid == mp_pid && memcmp(nonce, mp_nonce, MP_NONCE) == 0;
}

static PyObject *process(PyObject *module, PyObject *unused)
{
    return Py_BuildValue("(Iy#)", mp_pid, mp_nonce, (Py_ssize_t)MP_NONCE);
}

PyObject *mp_new_reference(mpshm_block *block, uint32_t pid, const void *nonce, uint64_t serial)
{
    mp_reference *self = mp_new(mp_reference_type);

    if (self == NULL) {
        mp_core.block_release(block);
        return NULL;
    }
    self->block = *block;
    self->pid = pid;
    self->serial = serial;
    self->is_sent = 1;
    memcpy(self->nonce, nonce, MP_NONCE);
    mp_append(&received, &self->link);
    return (PyObject *)self;
}

PyObject *mp_receive_reference(PyObject *offers, uint32_t pid, const void *nonce, uint64_t serial)
{
    Py_ssize_t nbytes = PyBytes_Check(offers) ? PyBytes_Size(offers) : 0;
    const char *bytes = nbytes > 0 ? PyBytes_AsString(offers) : NULL;
    mpshm_block block;

    if (nbytes == 0 || nbytes % MP_OFFER != 0)
        return mp_damaged("its offers have the wrong size");
    int rc = -ESTALE;
    for (Py_ssize_t at = 0; at < nbytes && rc == -ESTALE; at += MP_OFFER)
        rc = mp_core.receive(bytes + at, MP_OFFER, &block);
    if (rc == 0 && block.nbytes >= MP_SIGNATURE + MP_FLAGS)
        return mp_new_reference(&block, pid, nonce, serial);
    if (rc == 0) {
        mp_core.block_release(&block);
        return mp_damaged("its lease has the wrong size");
    }
    if (rc == -ESTALE) {
        Py_XDECREF(PyObject_CallFunction(mp_hook.not_received, "n", nbytes / MP_OFFER));
        return NULL;
    }
    PyObject *offer = PyBytes_FromStringAndSize(bytes, MP_OFFER);
    if (offer != NULL)
        mp_core.refuse(offer, rc);
    Py_XDECREF(offer);
    return NULL;
}

static PyObject *receive_reference(PyObject *module, PyObject *args)
{
    const char *nonce;
    Py_ssize_t nbytes;
    PyObject *offers;
    unsigned pid;

    if (!PyArg_ParseTuple(args, "OIy#:receive_reference", &offers, &pid, &nonce, &nbytes))
        return NULL;
    if (nbytes != MP_NONCE)
        return mp_damaged("its sender has no name");
    return mp_receive_reference(offers, pid, nonce, 0);
}

volatile unsigned char *mp_flags(const mp_reference *reference)
{
    return (volatile unsigned char *)reference->block.data + MP_SIGNATURE;
}

int mp_is_recalled(const mp_reference *self)
{
    return self->block.data != NULL && mp_flags(self)[MP_RECALLED];
}

int mp_owner_lives(const mp_reference *self)
{
    return self->block.data != NULL && mp_core.lease_owner_lives(&self->block) == 1;
}

int mp_has_ended(const mp_reference *self)
{
    return self->block.data == NULL || *(volatile uint32_t *)self->block.data == 0;
}

int mp_may_send(const mp_reference *self)
{
    return !mp_has_ended(self) && !mp_flags(self)[MP_RECALLED];
}

/* ---- events ---- */

/* Return the events that receivers wait for to the pool. */
static void free_slots(mp_reference *self)
{
    for (int i = 0; i < MP_SLOTS; i++)
        if (self->slots[i] != NULL && !mp_flags(self)[MP_FIRST_SLOT + i]) {
            mp_event *event = self->slots[i];
            self->slots[i] = NULL;
            mp_return_event(event);
        }
}

int mp_keep_event(mp_reference *self, mp_event *event)
{
    if (self->block.data == NULL)
        return MP_NO_SLOT;
    for (int i = 0; i < MP_SLOTS; i++) {
        if (i == 0)
            free_slots(self);
        if (self->slots[i] == NULL) {
            self->slots[i] = event;
            mp_flags(self)[MP_FIRST_SLOT + i] = 1;
            return MP_FIRST_SLOT + i;
        }
    }
    return MP_NO_SLOT;
}

int mp_hold_event(mp_reference *self, mp_event *event)
{
    if (self->held == NULL)
        self->held = PyList_New(0);
    int rc = self->held == NULL ? -1 : PyList_Append(self->held, (PyObject *)event);
    if (rc == 0)
        Py_DECREF(event);
    return rc;
}

void mp_return_events(mp_reference *self)
{
    PyObject *held = self->held;

    self->held = NULL;
    for (Py_ssize_t i = 0; held != NULL && i < PyList_Size(held); i++)
        mp_return_event((mp_event *)Py_NewRef(PyList_GetItem(held, i)));
    Py_XDECREF(held);
    for (int i = 0; i < MP_SLOTS; i++)
        if (self->slots[i] != NULL) {
            mp_event *event = self->slots[i];
            self->slots[i] = NULL;
            mp_return_event(event);
        }
}

/* ---- the type ---- */

void mp_release(mp_reference *self)
{
    mpshm_block block = self->block;

    self->block = (mpshm_block){.data = NULL};
    if (block.data != NULL)
        mp_core.block_release(&block);
}

/* In a forked child, which has none, whatever its parent's other threads were doing with theirs. */
void mp_forget_references(void)
{
    while (received.next != &received) {
        mp_reference *self = MP_OF(mp_reference, link, received.next);
        mp_take_out(&self->link);
        mp_release(self);
    }
}

static void reference_dealloc(PyObject *op)
{
    mp_reference *self = (mp_reference *)op;

    mp_release(self);
    for (int i = 0; i < MP_SLOTS; i++)
        Py_XDECREF((PyObject *)self->slots[i]);
    Py_XDECREF(self->held);
    Py_XDECREF(self->sent);
    Py_XDECREF(self->keeps);
    Py_XDECREF((PyObject *)self->last);
    mp_take_out(&self->link);
    mp_free(op);
}

/* release() */
static PyObject *release(PyObject *op, PyObject *unused)
{
    mp_release((mp_reference *)op);
    Py_RETURN_NONE;
}

static PyObject *get_owner_alive(PyObject *op, void *unused)
{
    return PyBool_FromLong(mp_owner_lives((mp_reference *)op));
}

static PyObject *get_owner(PyObject *op, void *unused)
{
    const mp_reference *self = (mp_reference *)op;
    return Py_BuildValue("(Iy#)", self->pid, self->nonce, (Py_ssize_t)MP_NONCE);
}

static PyMethodDef methods[] = {
    {"release", release, METH_NOARGS, "Release it. A second call does nothing."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"owner_alive", get_owner_alive, NULL, "Whether the owner is still running.", NULL},
    {"owner", get_owner, NULL, "The pid of the owner, and its random number.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, reference_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0, NULL},
};

static PyMethodDef functions[] = {
    MP_FUNCTION(process, METH_NOARGS, "()",
                "Return the pid of this process and its random number."),
    MP_FUNCTION(receive_reference, METH_VARARGS, "(offers, pid, nonce, /)",
                "Receive one of the offers of a lease."),
    {NULL, NULL, 0, NULL},
};

int mp_add_references(PyObject *module)
{
    mp_reference_type =
        mp_add_type(module, "mp_cuda._native.Reference", sizeof(mp_reference), MP_ONLY_HERE, slots);
    return mp_reference_type == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
