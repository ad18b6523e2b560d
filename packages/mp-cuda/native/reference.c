/* References to leases: what keeps the memory and the events of a message.
 *
 * A lease is a block of mp-core's, whose memory all who have a reference share: two flags, then a slot
 * for each event that a message's receiver has not met yet.
 *
 *   RECALLED     set by the owner: close the memory, unless arrays use it
 *   LINGERS      set by a receiver: the memory is open only for the next message
 *   slots        set by the sender of a message, cleared when its receiver waits for the event
 *
 * mp-core takes the owner's name out of the block when the lease ends, which is when its last
 * reference is gone. Until then the owner may make offers; the GIL keeps that in one step with the
 * look at the name. */
#include "native.h"

#include <structmember.h>
#include <time.h>

enum { SIGNATURE = 8 }; /* before the memory, see lease.py of mp-core */

PyObject *mp_reference_type;
uint32_t mp_pid;
unsigned char mp_nonce[MP_NONCE];

/* set_process(pid, nonce): which process this is */
PyObject *mp_py_set_process(PyObject *module, PyObject *args)
{
    const char *nonce;
    Py_ssize_t nbytes;
    unsigned pid;
    (void)module;

    if (!PyArg_ParseTuple(args, "Iy#:set_process", &pid, &nonce, &nbytes))
        return NULL;
    if (nbytes != MP_NONCE)
        return PyErr_Format(PyExc_ValueError, "%zd random bytes instead of %d", nbytes, MP_NONCE);
    mp_pid = pid;
    memcpy(mp_nonce, nonce, MP_NONCE);
    Py_RETURN_NONE;
}

int mp_is_reference(PyObject *object)
{
    return PyObject_TypeCheck(object, (PyTypeObject *)mp_reference_type);
}

PyObject *mp_new_reference(mpshm_block *block, uint32_t pid, const void *nonce, uint64_t serial)
{
    PyTypeObject *type = (PyTypeObject *)mp_reference_type;
    mp_reference *self = (mp_reference *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);

    if (self == NULL) {
        mp_core.block_release(block);
        return NULL;
    }
    self->block = *block;
    self->pid = pid;
    self->serial = serial;
    self->is_sent = 1;
    memcpy(self->nonce, nonce, MP_NONCE);
    return (PyObject *)self;
}

volatile unsigned char *mp_flags(const mp_reference *reference)
{
    return (volatile unsigned char *)reference->block.data + SIGNATURE;
}

static int has_ended(const mp_reference *self)
{
    return *(volatile uint32_t *)self->block.data == 0;
}

int mp_may_send(const mp_reference *self)
{
    return self->block.data != NULL && !has_ended(self) && !mp_flags(self)[MP_RECALLED];
}

PyObject *mp_offer(mp_reference *self)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    self->sent_at = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    if (!self->is_sent) {
        PyObject *handle = PyObject_CallMethod((PyObject *)self, "first_offer", NULL);
        if (handle != NULL)
            self->is_sent = 1;
        return handle;
    }
    if (self->block.data == NULL || has_ended(self))
        return PyErr_Format(PyExc_ValueError, "the lease has ended and cannot be sent");
    return mp_core.make_handle(&self->block, MPSHM_LASTING);
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

/* return_events(): the lease has ended, so no stream waits for its events */
static PyObject *return_events(PyObject *op, PyObject *unused)
{
    mp_reference *self = (mp_reference *)op;
    PyObject *held = self->held;
    (void)unused;

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
    Py_RETURN_NONE;
}

/* ---- the type ---- */

static void released(mp_reference *self)
{
    mpshm_block block = self->block;

    self->block = (mpshm_block){.data = NULL};
    if (block.data != NULL)
        mp_core.block_release(&block);
}

static void reference_dealloc(PyObject *op)
{
    mp_reference *self = (mp_reference *)op;
    PyTypeObject *type = Py_TYPE(op);

    released(self);
    for (int i = 0; i < MP_SLOTS; i++)
        Py_XDECREF((PyObject *)self->slots[i]);
    Py_XDECREF(self->held);
    Py_XDECREF(self->sent);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(op);
    Py_DECREF(type);
}

/* _begin(memory, serial): make it the owner's reference to the lease with that memory */
static PyObject *begin(PyObject *op, PyObject *args)
{
    mp_reference *self = (mp_reference *)op;
    unsigned long long serial;
    Py_buffer memory;

    if (!PyArg_ParseTuple(args, "y*K:_begin", &memory, &serial))
        return NULL;
    int rc = memory.len < MP_FLAGS || self->block.data != NULL
                 ? -1
                 : mp_core.block_find((char *)memory.buf - SIGNATURE, &self->block);
    PyBuffer_Release(&memory);
    if (rc < 0)
        return PyErr_Format(PyExc_ValueError, "that is not the memory of a new lease");
    self->pid = mp_pid;
    memcpy(self->nonce, mp_nonce, MP_NONCE);
    self->serial = serial;
    Py_RETURN_NONE;
}

/* offer() -> a handle in flight */
static PyObject *offer(PyObject *op, PyObject *unused)
{
    (void)unused;
    return mp_offer((mp_reference *)op);
}

/* release() */
static PyObject *release(PyObject *op, PyObject *unused)
{
    (void)unused;
    released((mp_reference *)op);
    Py_RETURN_NONE;
}

static PyObject *get_released(PyObject *op, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((mp_reference *)op)->block.data == NULL);
}

static PyObject *get_owner_alive(PyObject *op, void *unused)
{
    const mp_reference *self = (mp_reference *)op;
    (void)unused;

    return PyBool_FromLong(self->block.data != NULL &&
                           mp_core.lease_owner_lives(&self->block) == 1);
}

static PyObject *get_owner(PyObject *op, void *unused)
{
    const mp_reference *self = (mp_reference *)op;
    (void)unused;
    return Py_BuildValue("(Iy#)", self->pid, self->nonce, (Py_ssize_t)MP_NONCE);
}

static PyObject *get_serial(PyObject *op, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((mp_reference *)op)->serial);
}

static PyObject *get_is_sent(PyObject *op, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((mp_reference *)op)->is_sent);
}

static PyObject *get_sent(PyObject *op, void *unused)
{
    PyObject *sent = ((mp_reference *)op)->sent;
    (void)unused;
    return Py_NewRef(sent != NULL ? sent : Py_None);
}

static PyObject *get_flag(PyObject *op, void *which)
{
    const mp_reference *self = (mp_reference *)op;
    return PyBool_FromLong(self->block.data != NULL && mp_flags(self)[(size_t)which] != 0);
}

static int set_flag(PyObject *op, PyObject *value, void *which)
{
    const mp_reference *self = (mp_reference *)op;

    if (self->block.data != NULL)
        mp_flags(self)[(size_t)which] = value == Py_True;
    return 0;
}

static PyMethodDef methods[] = {
    {"_begin", begin, METH_VARARGS, "Make it the owner's."},
    {"offer", offer, METH_NOARGS, "Make a handle in flight, for one receiver."},
    {"release", release, METH_NOARGS, "Release it. A second call does nothing."},
    {"return_events", return_events, METH_NOARGS, "Return all events to the pool."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"sent_at", T_DOUBLE, offsetof(mp_reference, sent_at), READONLY, "When it was offered last."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"released", get_released, NULL, "Whether it was released.", NULL},
    {"owner_alive", get_owner_alive, NULL, "Whether the owner is still running.", NULL},
    {"owner", get_owner, NULL, "The pid of the owner, and its random number.", NULL},
    {"serial", get_serial, NULL, "The owner's number of the lease.", NULL},
    {"is_sent", get_is_sent, NULL, "Whether the owner has sent it.", NULL},
    {"sent", get_sent, NULL, "In the owner that receives its own message: what it has sent.", NULL},
    {"recalled", get_flag, set_flag, "Whether the owner wants the memory back.",
     (void *)MP_RECALLED},
    {"lingers", get_flag, set_flag, "Whether the memory is open only for the next message.",
     (void *)MP_LINGERS},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A reference of this process to the lease of a message."},
    {Py_tp_dealloc, reference_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, getset},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "mp_cuda._native.Reference",
    .basicsize = sizeof(mp_reference),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

int mp_add_reference_type(PyObject *module)
{
    mp_reference_type = PyType_FromModuleAndSpec(module, &spec, NULL);
    return mp_reference_type == NULL
               ? -1
               : PyModule_AddObjectRef(module, "Reference", mp_reference_type);
}
