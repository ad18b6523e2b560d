/* A journal: the tasks of a batch that a worker has begun, and the results of those it has done, in
 * memory that it shares with the process that sends it batches, and that outlives it.
 *
 *   claim     number of the batch, "recalled", tasks begun: one word, changed by
 * compare-and-exchange halves    the results of a batch: done (number of the batch, results), then
 * a length and bytes for each. Two batches are at a worker at one time, one in each half; the
 * lowest bit of its number tells which
 *
 * Note [What if it dies here]
 *
 *   the worker, after begin()       the task was running: the batch's results are one fewer
 *   the worker, inside done()       the bytes come before the count, so half a result is none
 *   the worker, stopped anywhere    recall() takes back the tasks that it has not begun; its next
 *                                   begin() of this batch fails
 *   the sender                      its end of the socket closes, and the worker ends
 *   a fork                          the child never uses the mapping that it inherits
 *   no memory, no descriptor        nothing can be made, and tasks are sent one by one
 *
 *   A damaged length or count gives no results: the tasks behind it count as not done. */
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "native.h"

enum { HALVES = 2, HEADER = 64, ENTRY = sizeof(uint32_t) };
#define RECALLED ((uint64_t)1 << 31)
#define ELSEWHERE UINT32_MAX /* the length of a result that was sent in another way */

struct memory {
    _Atomic uint64_t claim;
    _Atomic uint64_t done[HALVES];
};

typedef struct {
    PyObject ob_base;
    Py_buffer memory;
    Py_ssize_t half; /* bytes */
    uint32_t batch;  /* the worker's */
    uint32_t count[HALVES], last[HALVES];
    Py_ssize_t at[HALVES]; /* where the next result is written, or read */
} journal;

static struct memory *shared(journal *self)
{
    return self->memory.buf;
}

static char *half_of(journal *self, uint32_t batch)
{
    return (char *)self->memory.buf + HEADER + (batch % HALVES) * (size_t)self->half;
}

static void start(journal *self, uint32_t batch)
{
    uint32_t i = batch % HALVES;

    self->last[i] = batch;
    self->count[i] = 0;
    self->at[i] = 0;
}

static int read_number(PyObject *given, uint32_t *number)
{
    unsigned long value = PyLong_AsUnsignedLong(given);

    if (value == (unsigned long)-1 && PyErr_Occurred())
        return 0;
    *number = (uint32_t)value;
    return 1;
}

/* begin(batch, index) -> whether the worker may run this task */
static PyObject *journal_begin(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    journal *self = (journal *)op;
    uint32_t batch, index;
    uint64_t was;

    if (nargs != 2)
        return PyErr_Format(PyExc_TypeError, "begin() takes 2 arguments (%zd given)", nargs);
    if (!read_number(args[0], &batch) || !read_number(args[1], &index))
        return NULL;
    if (index == 0) {
        self->batch = batch;
        start(self, batch);
        /* A recalled batch leaves this as it is. */
        atomic_store_explicit(&shared(self)->done[batch % HALVES], (uint64_t)batch << 32,
                              memory_order_release);
    }
    was = atomic_load(&shared(self)->claim);
    do
        if (was >> 32 == batch && (was & RECALLED))
            Py_RETURN_FALSE;
    while (!atomic_compare_exchange_weak(&shared(self)->claim, &was,
                                         (uint64_t)batch << 32 | (index + 1)));
    Py_RETURN_TRUE;
}

/* done(result) -> whether there was room for it; done(None) notes one that was sent elsewhere */
static PyObject *journal_done(PyObject *op, PyObject *result)
{
    journal *self = (journal *)op;
    uint32_t i = self->batch % HALVES, length = ELSEWHERE;
    char *data = NULL;
    Py_ssize_t size = 0, at = self->at[i];

    if (result != Py_None && PyBytes_AsStringAndSize(result, &data, &size) < 0)
        return NULL;
    /* Each result leaves room for the marks of those that follow. */
    if (result != Py_None) {
        if (at + ENTRY + size > self->half - self->half / 4)
            Py_RETURN_FALSE;
        length = (uint32_t)size;
    } else if (at + ENTRY > self->half) {
        return PyErr_Format(PyExc_ValueError, "the batch has too many tasks");
    }
    memcpy(half_of(self, self->batch) + at, &length, ENTRY);
    if (size > 0)
        memcpy(half_of(self, self->batch) + at + ENTRY, data, (size_t)size);
    self->at[i] = at + ENTRY + size;
    self->count[i]++;
    atomic_store_explicit(&shared(self)->done[i], (uint64_t)self->batch << 32 | self->count[i],
                          memory_order_release);
    Py_RETURN_TRUE;
}

/* recall(batch) -> how many of its tasks the worker has begun; it begins no more */
static PyObject *journal_recall(PyObject *op, PyObject *given)
{
    journal *self = (journal *)op;
    uint32_t batch;
    uint64_t was, begun;

    if (!read_number(given, &batch))
        return NULL;
    was = atomic_load(&shared(self)->claim);
    do
        begun = was >> 32 == batch ? was & (RECALLED - 1) : 0;
    while (!atomic_compare_exchange_weak(&shared(self)->claim, &was,
                                         (uint64_t)batch << 32 | RECALLED | begun));
    return PyLong_FromUnsignedLongLong(begun);
}

/* results(batch) -> a list of those that are new: bytes, or None for one that was sent elsewhere */
static PyObject *journal_results(PyObject *op, PyObject *given)
{
    journal *self = (journal *)op;
    uint32_t batch, i;
    uint64_t done;
    PyObject *list;

    if (!read_number(given, &batch) || (list = PyList_New(0)) == NULL)
        return NULL;
    i = batch % HALVES;
    if (self->last[i] != batch)
        start(self, batch);
    done = atomic_load_explicit(&shared(self)->done[i], memory_order_acquire);
    if (done >> 32 != batch)
        return list;
    while (self->count[i] < (uint32_t)done) {
        char *at = half_of(self, batch) + self->at[i];
        Py_ssize_t room = self->half - self->at[i] - ENTRY;
        uint32_t length = 0;
        PyObject *result;
        int rc;
        if (room < 0)
            break;
        memcpy(&length, at, ENTRY);
        if (length != ELSEWHERE && length > room)
            break;
        result = length == ELSEWHERE ? Py_NewRef(Py_None)
                                     : PyBytes_FromStringAndSize(at + ENTRY, (Py_ssize_t)length);
        rc = result == NULL ? -1 : PyList_Append(list, result);
        Py_XDECREF(result);
        if (rc < 0) {
            Py_DECREF(list);
            return NULL;
        }
        self->at[i] += ENTRY + (length == ELSEWHERE ? 0 : (Py_ssize_t)length);
        self->count[i]++;
    }
    return list;
}

/* Journal(memory): over a writable buffer that is shared and begins with zeros */
static PyObject *journal_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *memory;
    (void)names;

    if (!PyArg_ParseTuple(args, "O:Journal", &memory))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    journal *self = (journal *)alloc(type, 0);
    if (self == NULL)
        return NULL;
    if (PyObject_GetBuffer(memory, &self->memory, PyBUF_WRITABLE) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    if (self->memory.len < 4096 || (uintptr_t)self->memory.buf % sizeof(uint64_t) != 0) {
        Py_DECREF(self);
        return PyErr_Format(PyExc_ValueError, "a journal needs 4096 bytes or more, aligned");
    }
    self->half = (self->memory.len - HEADER) / HALVES;
    return (PyObject *)self;
}

static void journal_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    if (((journal *)op)->memory.obj != NULL)
        PyBuffer_Release(&((journal *)op)->memory);
    release(op);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"begin", (PyCFunction)(void (*)(void))journal_begin, METH_FASTCALL,
     "Worker: claim a task; False if it was recalled."},
    {"done", journal_done, METH_O, "Worker: append a result; False if there is no room for it."},
    {"recall", journal_recall, METH_O, "Sender: how many tasks have begun; no other will."},
    {"results", journal_results, METH_O, "Sender: the new results of a batch."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "What a worker process has begun and done, in memory that outlives it."},
    {Py_tp_new, journal_new},
    {Py_tp_dealloc, journal_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "mp_core._block.Journal",
    .basicsize = sizeof(journal),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

int mp_add_journal_type(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    int rc = type == NULL ? -1 : PyModule_AddObjectRef(module, "Journal", type);

    Py_XDECREF(type);
    return rc;
}
