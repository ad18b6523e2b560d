/* Events of messages: those of this process, in a pool for each device, and those of others.
 *
 * An event is recorded when the message has been pickled, and returns to the pool when no stream
 * waits for it any more. The GIL protects the pool. */
#include <string.h>

#include "native.h"

PyObject *mp_event_type;

static struct {
    mp_event **free;
    size_t count, room;
} pools[MP_DEVICES];

mp_event *mp_take_event(int device)
{
    if (device < 0 || device >= MP_DEVICES)
        return NULL;
    if (pools[device].count > 0) /* the one that was used last: receivers have it open */
        return pools[device].free[--pools[device].count];
    PyObject *made = PyObject_CallFunction(mp_hook.make_event, "i", device);
    if (made == NULL || (PyObject *)Py_TYPE(made) == mp_event_type)
        return (mp_event *)made;
    Py_DECREF(made);
    /* To make one may have returned others. */
    return pools[device].count > 0 ? pools[device].free[--pools[device].count] : NULL;
}

void mp_return_event(mp_event *event)
{
    size_t room = pools[event->device].room;

    if (pools[event->device].count == room) {
        room = room == 0 ? 64 : 2 * room;
        mp_event **more = PyMem_Realloc(pools[event->device].free, room * sizeof(*more));
        if (more == NULL)
            return; /* without memory it is one less */
        pools[event->device].free = more;
        pools[event->device].room = room;
    }
    pools[event->device].free[pools[event->device].count++] = event;
}

void mp_forget_events(void)
{
    for (int i = 0; i < MP_DEVICES; i++)
        pools[i].count = 0; /* the driver has them no more */
}

static PyObject *free_events(PyObject *module, PyObject *unused)
{
    size_t count = 0;

    for (int i = 0; i < MP_DEVICES; i++)
        count += pools[i].count;
    return PyLong_FromSize_t(count);
}

/* ---- the type ---- */

/* Event(device, number, handle, task=None) */
static PyObject *event_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    unsigned long long number;
    const char *handle;
    PyObject *task = Py_None;
    Py_ssize_t nbytes;
    int device;

    if (!PyArg_ParseTuple(args, "iKy#|O:Event", &device, &number, &handle, &nbytes, &task))
        return NULL;
    if (device < 0 || device >= MP_DEVICES || nbytes != MP_CUDA_HANDLE)
        return PyErr_Format(PyExc_ValueError, "device %d, a handle of %zd bytes", device, nbytes);
    mp_event *self = mp_new((PyObject *)type);
    if (self == NULL)
        return NULL;
    self->event = (void *)(uintptr_t)number;
    self->device = device;
    self->task = task == Py_None ? NULL : Py_NewRef(task);
    memcpy(self->handle, handle, sizeof(self->handle));
    return (PyObject *)self;
}

static void event_dealloc(PyObject *op)
{
    PyObject *task = ((mp_event *)op)->task;

    if (task != NULL) {
        mp_leave_to(mp_hook.tasks, task);
        mp_leave_to(mp_hook.wake, NULL);
        Py_DECREF(task);
    }
    mp_free(op);
}

static PyObject *event_forget(PyObject *op, PyObject *unused)
{
    Py_CLEAR(((mp_event *)op)->task);
    Py_RETURN_NONE;
}

static PyMethodDef event_methods[] = {
    {"forget", event_forget, METH_NOARGS, "Leave no task: the driver has it no more."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot event_slots[] = {
    {Py_tp_doc, "Event(device, number, handle, task=None, /)\n--\n\nAn event of messages."},
    {Py_tp_new, event_new},
    {Py_tp_dealloc, event_dealloc},
    {Py_tp_methods, event_methods},
    {0, NULL},
};

static PyMethodDef functions[] = {
    MP_FUNCTION(free_events, METH_NOARGS, "()", "Count the events in the pool."),
    {NULL, NULL, 0, NULL},
};

int mp_add_events(PyObject *module)
{
    mp_event_type = mp_add_type(module, "mp_cuda._native.Event", sizeof(mp_event), 0, event_slots);
    return mp_event_type == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
