/* Mappings: allocations of other processes, each opened once here, and closed after the last array
 * on it is gone.
 *
 * Note [What keeps open memory]
 *
 *     array --> Received --> mapping, with the number of its users
 *                      +---> References to the leases of its message
 *
 *   The driver demands this order: wait for this process's work on the device, close the memory,
 *   and only then release the references. A finalizer may run anywhere and does none of it: when
 *   the last array of a message is gone, its Received leaves its rest to a list, and a thread does
 *   the three steps (close_dropped).
 *
 *   A message finds a mapping among the open ones and counts itself as its user in one step, under
 *   the GIL; and a mapping without users is taken out of them before it is closed. So a message
 *   either finds it open, and it is not closed, or does not find it, and opens it again after the
 *   other has closed it: whoever opens or closes memory has the lock `changing`. The driver closes
 *   memory without the GIL; meanwhile the mapping is in the list `closing`, and still counted. A
 *   child that is forked by another thread in the middle of this releases all references that its
 *   parent had (reference.c).
 *
 *   The driver opens the memory of a process that has ended. So the owner is asked before that, to
 *   save the two calls, and again afterwards, since it may end meanwhile.
 *
 * Note [Lingering]
 *   Opening an allocation and closing it takes 70 us, and a queue of messages with the same array
 *   would pay it for each. So an allocation without arrays stays open for a while, with the leases
 *   of its last message: the sender keeps the memory.
 *
 *                         message                            array dropped, work on the device done
 *        closed ------------------------> in use <-------------------------------------> lingers
 *           ^                               |               message                         |
 *           |    recalled, or no room       |                                               |
 *           +-------------------------------+-----------------------------------------------+
 *                                                 recalled; not used for a second; its sender
 *                                                 has ended; ipc_collect(); exit; fork
 *
 *   Recalled: the sender's program has dropped the memory too, or needs it (exports.c, Note [Memory
 *   that is given back on request]). Room: all that lingers on a device is at most an eighth of its
 *   memory.
 *
 *   A receiver that is killed in any of these states: the kernel closes its memory, and the reaper
 *   of mp-core releases its references. A sender that is killed: its memory has ended with it, and
 *   the receiver closes what lingers when it looks the next time. No state waits for an answer of
 *   the other process. */
#include "native.h"

#include <pthread.h>

enum { SHARE_OF_DEVICE = 8, MOST_AT_ONCE = 64 };

/* What is left to do when the arrays of a Received are gone. */
struct mp_dropped {
    mp_link link;
    uint64_t number; /* in the order in which they were dropped */
    mp_mapping *mapping;
    PyObject *leases;
};

PyObject *mp_received_type;
static PyObject *mapping_type;
static PyObject *open_by_key; /* {key: mapping} */
static struct {
    mp_mapping **at; /* the same, by their addresses */
    size_t count, room;
} sorted;
/* In the order in which they lost their arrays; and those that are being closed, which are not
 * among the open ones, and may be again. */
static mp_link lingering = {&lingering, &lingering}, closing = {&closing, &closing};
static uint64_t lingering_bytes[MP_DEVICES];
static mp_link dropped = {&dropped, &dropped};
static uint64_t dropped_count; /* so far */
static pthread_mutex_t changing;
static double linger_s = 1;
static char is_closing; /* at exit */

static void begin_change(void)
{
    if (pthread_mutex_trylock(&changing) == 0)
        return;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&changing);
    Py_END_ALLOW_THREADS
}

static void end_change(void)
{
    pthread_mutex_unlock(&changing);
}

/* A thread may open memory while it does: a signal handler runs in the Python code of a pool. */
static void make_lock(void)
{
    pthread_mutexattr_t how;

    pthread_mutexattr_init(&how);
    pthread_mutexattr_settype(&how, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&changing, &how);
    pthread_mutexattr_destroy(&how);
}

static mp_reference *first_of(PyObject *leases)
{
    return (mp_reference *)PyTuple_GetItem(leases, 0);
}

/* ---- the open ones ---- */

static void mapping_dealloc(PyObject *op)
{
    mp_mapping *self = (mp_mapping *)op;

    Py_XDECREF(self->key);
    Py_XDECREF(self->leases);
    Py_XDECREF(self->state);
    mp_free(op);
}

static mp_mapping *find(PyObject *key)
{
    return (mp_mapping *)PyDict_GetItemWithError(open_by_key, key);
}

/* The leases keep the memory meanwhile. */
static void begin_lingering(mp_mapping *self, PyObject *leases)
{
    PyObject *before = self->leases;

    self->leases = Py_NewRef(leases);
    mp_append(&lingering, &self->link);
    lingering_bytes[self->device] += self->nbytes;
    Py_XDECREF(before);
}

static void end_lingering(mp_mapping *self)
{
    if (self->link.next == NULL)
        return;
    mp_take_out(&self->link);
    lingering_bytes[self->device] -= self->nbytes;
}

/* The number of open ones that begin at most there. */
static size_t place_of(uint64_t pointer)
{
    size_t low = 0, high = sorted.count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (sorted.at[middle]->ptr <= pointer)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

mp_mapping *mp_mapping_at(int device, uint64_t pointer)
{
    size_t at = place_of(pointer);
    mp_mapping *found = at == 0 ? NULL : sorted.at[at - 1];

    return found != NULL && found->device == device && pointer < found->ptr + found->nbytes ? found
                                                                                            : NULL;
}

/* 0, or -1 with an exception. */
static int put_in(mp_mapping *self)
{
    if (sorted.count == sorted.room) {
        size_t room = sorted.room == 0 ? 64 : 2 * sorted.room;
        mp_mapping **more = PyMem_Realloc(sorted.at, room * sizeof(*more));
        if (more == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        sorted.at = more;
        sorted.room = room;
    }
    if (PyDict_SetItem(open_by_key, self->key, (PyObject *)self) < 0)
        return -1;
    size_t at = place_of(self->ptr);
    memmove(sorted.at + at + 1, sorted.at + at, (sorted.count++ - at) * sizeof(*sorted.at));
    sorted.at[at] = self;
    return 0;
}

/* Take one without users out, to close it: 0 if it has users again, or another thread has done
 * it. */
static int take_out(mp_mapping *self)
{
    if (self->users > 0 || find(self->key) != self || PyDict_DelItem(open_by_key, self->key) < 0) {
        PyErr_Clear();
        return 0;
    }
    end_lingering(self);
    mp_append(&closing, &self->link);
    for (size_t at = place_of(self->ptr); at-- > 0;)
        if (sorted.at[at] == self) {
            memmove(sorted.at + at, sorted.at + at + 1, (--sorted.count - at) * sizeof(*sorted.at));
            break;
        }
    return 1;
}

PyObject *mp_all_leases(const mp_mapping *mapping)
{
    PyObject *list = PyList_New(0);

    for (const mp_link *at = mapping->received.next; list != NULL && at != &mapping->received;
         at = at->next) {
        PyObject *leases = mp_leases_of(MP_OF(mp_received, link, at));
        for (Py_ssize_t i = 0; list != NULL && i < PyTuple_Size(leases); i++) {
            PyObject *lease = PyTuple_GetItem(leases, i);
            int is_there = PySequence_Contains(list, lease);
            if (is_there < 0 || (!is_there && PyList_Append(list, lease) < 0))
                Py_CLEAR(list);
        }
    }
    PyObject *tuple = list == NULL ? NULL : PyList_AsTuple(list);
    Py_XDECREF(list);
    return tuple;
}

/* ---- received ---- */

mp_mapping *mp_mapping_of(const mp_received *self)
{
    return self->rest == NULL ? NULL : self->rest->mapping;
}

PyObject *mp_leases_of(const mp_received *self)
{
    return self->rest->leases;
}

/* Count one more user; NULL with an exception. */
static PyObject *new_received(mp_mapping *of, PyObject *leases)
{
    mp_received *self = mp_new(mp_received_type);

    if (self == NULL || (self->rest = PyMem_Malloc(sizeof(*self->rest))) == NULL) {
        Py_XDECREF((PyObject *)self);
        return self == NULL ? NULL : PyErr_NoMemory();
    }
    *self->rest = (struct mp_dropped){.mapping = (mp_mapping *)Py_NewRef((PyObject *)of),
                                      .leases = Py_NewRef(leases)};
    mp_append(&of->received, &self->link);
    if (of->users++ == 0)
        mp_count(of->device, of->key, 0, 1);
    end_lingering(of);
    of->must_close = 0;
    Py_CLEAR(of->leases); /* it has those of this message from now on */
    if (first_of(leases)->block.data != NULL)
        mp_flags(first_of(leases))[MP_LINGERS] = 0;
    return (PyObject *)self;
}

static void leave(mp_received *self)
{
    struct mp_dropped *rest = self->rest;

    self->rest = NULL;
    mp_take_out(&self->link);
    rest->number = dropped_count++;
    mp_append(&dropped, &rest->link);
}

/* Memory that its owner still uses may wait until the thread looks the next time: that wakes nobody
 * for each message. */
static void received_dealloc(PyObject *op)
{
    mp_received *self = (mp_received *)op;

    if (self->rest != NULL) {
        const mp_reference *lease = first_of(self->rest->leases);
        if (lease->block.data != NULL)
            mp_flags(lease)[MP_LINGERS] = 1;
        leave(self);
        if (mp_is_recalled(lease))
            mp_leave_to(mp_hook.wake, NULL);
    }
    mp_free(op);
}

static PyObject *get_owner_alive(PyObject *op, void *unused)
{
    const mp_received *self = (mp_received *)op;
    int lives = self->rest != NULL;

    for (Py_ssize_t i = 0; lives && i < PyTuple_Size(self->rest->leases); i++)
        lives = mp_owner_lives((mp_reference *)PyTuple_GetItem(self->rest->leases, i));
    return PyBool_FromLong(lives);
}

/* ---- closing ---- */

/* The code of the driver. */
static uint64_t close_pool(const mp_mapping *mapping)
{
    PyObject *said = PyObject_CallFunction(mp_hook.close_pool, "iKO", mapping->device,
                                           (unsigned long long)mapping->ptr, mapping->state);
    uint64_t code = said == NULL ? 1 : PyLong_AsUnsignedLongLong(said);

    if (PyErr_Occurred())
        PyErr_WriteUnraisable(mp_hook.close_pool);
    Py_XDECREF(said);
    return code;
}

/* Close memory of one device, with the lock, and drop it. What the driver refuses to close stays
 * open, with its leases, because the owner must not free it. An exception that is set stays. */
static void close_these(mp_mapping **all, size_t n)
{
    uint64_t codes[MOST_AT_ONCE];

    mp_error error = mp_set_aside();
    for (size_t i = 0; i < n; i++)
        codes[i] = all[i]->ptr;
    if (all[0]->state != NULL) {
        codes[0] = close_pool(all[0]);
    } else if (mp_close_handles(all[0]->device, codes, n) < 0) {
        PyErr_WriteUnraisable(NULL);
        for (size_t i = 0; i < n; i++)
            codes[i] = 1;
    }
    for (size_t i = 0; i < n; i++) {
        if (codes[i] != 0 && !all[i]->is_refused) {
            all[i]->is_refused = 1;
            Py_XDECREF(PyObject_CallFunction(mp_hook.stays_open, "i", (int)codes[i]));
        }
        mp_take_out(&all[i]->link);
        if (codes[i] != 0 && put_in(all[i]) == 0)
            begin_lingering(all[i], all[i]->leases);
        else if (codes[i] != 0)
            Py_INCREF((PyObject *)all[i]); /* without memory it stays for ever */
        PyErr_Clear();
        Py_DECREF(all[i]); /* and with it its leases */
    }
    mp_put_back(&error);
}

/* ---- opening ---- */

static void raise_by(PyObject *hook, PyObject *key, int code)
{
    Py_XDECREF(PyObject_CallFunction(hook, code != 0 ? "Oi" : "O", key, code));
}

static int open_pool(mp_mapping *self, const char *handle, PyObject *extra)
{
    PyObject *state = NULL,
             *both = PyObject_CallFunction(mp_hook.open_pool, "iy#O", self->device, handle,
                                           (Py_ssize_t)MP_CUDA_HANDLE, extra);
    unsigned long long pointer = 0;
    int ok = both != NULL && PyArg_ParseTuple(both, "KO", &pointer, &state);

    self->ptr = pointer;
    self->state = ok ? Py_NewRef(state) : NULL;
    Py_XDECREF(both);
    return ok ? 0 : -1;
}

/* Open it, with the lock: a new reference; NULL with an exception. */
static mp_mapping *opened(PyObject *leases, PyObject *key, PyObject *extra)
{
    const char *bytes = PyBytes_AsString(key);
    size_t nbytes = (size_t)PyBytes_Size(key) - sizeof(mp_key_head);
    mp_key_head head;

    memcpy(&head, bytes, sizeof(head));
    if (head.transport > MP_BY_POOL || nbytes != MP_CUDA_HANDLE)
        return (mp_mapping *)mp_damaged("no handle opens its memory");
    int device = mp_ordinal_of(head.uuid);
    mp_mapping *self = device < 0 ? NULL : mp_new(mapping_type);
    if (self == NULL)
        return NULL;
    self->key = Py_NewRef(key);
    self->leases = Py_NewRef(leases);
    self->nbytes = head.nbytes;
    self->device = device;
    self->received = (mp_link){&self->received, &self->received};
    int rc = head.transport == MP_BY_POOL
                 ? open_pool(self, bytes + sizeof(head), extra)
                 : mp_open_handle(device, bytes + sizeof(head), &self->ptr);
    if (rc > 0)
        raise_by(mp_hook.not_opened, key, rc);
    if (rc == 0 && put_in(self) < 0) {
        close_these(&self, 1);
        return NULL;
    }
    if (rc != 0)
        Py_CLEAR(self);
    return self;
}

/* Take it and, if it was open before, discard what opens it. */
static PyObject *taken(mp_mapping *known, PyObject *leases, PyObject *extra)
{
    PyObject *made = new_received(known, leases);

    if (made != NULL && extra != Py_None) {
        PyObject *done = mp_call(mp_hook.skip_pool, extra);
        if (done == NULL)
            Py_CLEAR(made);
        Py_XDECREF(done);
    }
    return made;
}

PyObject *mp_map(PyObject *leases, PyObject *key, PyObject *extra)
{
    const mp_reference *lease = first_of(leases);
    mp_mapping *known = find(key);
    PyObject *made = NULL;
    int lives = 1;

    /* At once: what follows may release the GIL, and the memory may be closed meanwhile. */
    if (known != NULL) {
        made = taken(known, leases, extra);
    } else if (!PyErr_Occurred()) {
        begin_change();
        known = find(key); /* another thread may have opened it */
        if (known != NULL) {
            made = taken(known, leases, extra);
        } else if (!PyErr_Occurred() && (lives = mp_owner_lives(lease))) {
            known = opened(leases, key, extra);
            if (known != NULL && (made = new_received(known, leases)) == NULL) {
                known->must_close = 1;
                begin_lingering(known, leases); /* it is closed first, as always */
                mp_leave_to(mp_hook.wake, NULL);
            }
            Py_XDECREF((PyObject *)known);
        }
        end_change();
        mp_leave_to(mp_hook.wake_watch, NULL);
    }
    if (!lives || !mp_owner_lives(lease)) {
        Py_CLEAR(made);
        PyErr_Clear();
        raise_by(mp_hook.owner_is_gone, key, 0);
    }
    return made;
}

/* Whether nobody needs memory that lingers; the answer may release the GIL. Not all owners are
 * asked with each message: that is two system calls. */
static int is_unused(const mp_mapping *mapping, double at)
{
    const double ASK_S = 0.05;
    PyObject *leases = Py_XNewRef(mapping->leases);
    int is = leases != NULL &&
             (mapping->must_close || mapping->is_refused || mapping->last_used + linger_s <= at ||
              mp_is_recalled(first_of(leases)) ||
              (mapping->last_used + ASK_S <= at && !mp_owner_lives(first_of(leases))));

    Py_XDECREF(leases);
    return is;
}

/* Close what nobody needs any more, on devices that have been idle since; or all that lingers. */
static void close_unused(int all)
{
    double at_once = mp_now();
    size_t n = 0, found = 0;

    for (const mp_link *at = lingering.next; at != &lingering; at = at->next)
        n++;
    mp_mapping **those = PyMem_Malloc((n + 1) * sizeof(*those)), *group[MOST_AT_ONCE];
    if (those == NULL)
        return;
    for (mp_link *at = lingering.next; at != &lingering; at = at->next)
        those[found++] = (mp_mapping *)Py_NewRef((PyObject *)MP_OF(mp_mapping, link, at));
    begin_change();
    n = 0;
    for (size_t i = 0; i < found; i++)
        if ((all || is_unused(those[i], at_once)) && take_out(those[i]))
            those[n++] = those[i];
        else
            Py_DECREF(those[i]);
    for (size_t i = 0; i < n; i++) {
        size_t many = 0;
        for (size_t k = i; those[i] != NULL && k < n && many < MOST_AT_ONCE; k++)
            if (k == i || (those[k] != NULL && those[k]->device == group[0]->device &&
                           those[k]->state == NULL && group[0]->state == NULL)) {
                group[many++] = those[k];
                if (k > i)
                    those[k] = NULL;
            }
        if (many > 0)
            close_these(group, many);
    }
    end_change();
    PyMem_Free(those);
}

/* Whether memory that lost its last array stays open for the next message. */
static int may_linger(const mp_mapping *mapping, PyObject *leases)
{
    static uint64_t room[MP_DEVICES];

    if (is_closing || linger_s <= 0 || mp_is_recalled(first_of(leases)))
        return 0;
    if (room[mapping->device] == 0) {
        PyObject *size = PyObject_CallFunction(mp_hook.memory_of, "i", mapping->device);
        room[mapping->device] =
            size == NULL ? 0 : PyLong_AsUnsignedLongLong(size) / SHARE_OF_DEVICE;
        Py_XDECREF(size);
        if (PyErr_Occurred()) {
            PyErr_Clear();
            return 0;
        }
    }
    return lingering_bytes[mapping->device] + mapping->nbytes <= room[mapping->device];
}

/* The arrays of a message are gone, and the device has done its work. */
static void drop_user(struct mp_dropped *rest)
{
    mp_mapping *mapping = rest->mapping;
    int may = mapping->users == 1 && may_linger(mapping, rest->leases);

    if (--mapping->users == 0) { /* no message has taken it meanwhile */
        mapping->must_close = !may;
        mapping->last_used = mp_now();
        begin_lingering(mapping, rest->leases);
        mp_count(mapping->device, mapping->key, 0, -1);
    }
    Py_DECREF(mapping);
    Py_DECREF(rest->leases);
    PyMem_Free(rest);
}

/* Take out the first that was dropped before then, on a device that has been idle since; NULL
 * without one. */
static struct mp_dropped *take_dropped(uint64_t before, const char *is_idle)
{
    for (mp_link *at = dropped.next; at != &dropped; at = at->next) {
        struct mp_dropped *rest = MP_OF(struct mp_dropped, link, at);
        if (rest->number >= before)
            return NULL;
        if (is_idle[rest->mapping->device]) {
            mp_take_out(at);
            return rest;
        }
    }
    return NULL;
}

static PyObject *close_dropped(PyObject *module, PyObject *args)
{
    const uint64_t before = dropped_count; /* one wait covers all that was dropped before it */
    char is_idle[MP_DEVICES] = {0};
    struct mp_dropped *rest;
    int wait, all;

    if (!PyArg_ParseTuple(args, "pp:close_dropped", &wait, &all))
        return NULL;
    for (const mp_link *at = dropped.next; wait && at != &dropped; at = at->next)
        is_idle[MP_OF(struct mp_dropped, link, at)->mapping->device] = 1;
    for (int i = 0; i < MP_DEVICES; i++)
        if (is_idle[i]) {
            int is = mp_device_is_idle(i);
            if (is < 0)
                PyErr_WriteUnraisable(NULL);
            is_idle[i] = is != 0;
        }
    while ((rest = take_dropped(before, is_idle)) != NULL)
        drop_user(rest);
    if (all || lingering.next != &lingering)
        close_unused(all);
    Py_RETURN_NONE;
}

static PyObject *close_all(PyObject *module, PyObject *unused)
{
    is_closing = 1;
    for (size_t i = 0; i < sorted.count; i++)
        while (sorted.at[i]->received.next != &sorted.at[i]->received)
            leave(MP_OF(mp_received, link, sorted.at[i]->received.next));
    PyObject *args = Py_BuildValue("(ii)", 1, 1);
    PyObject *done = args == NULL ? NULL : close_dropped(module, args);
    Py_XDECREF(args);
    return done;
}

static Py_ssize_t length(const mp_link *list)
{
    Py_ssize_t n = 0;

    for (const mp_link *at = list->next; at != list; at = at->next)
        n++;
    return n;
}

static PyObject *count_mappings(PyObject *module, PyObject *unused)
{
    return Py_BuildValue("(nnn)", PyDict_Size(open_by_key) + length(&closing), length(&lingering),
                         length(&dropped));
}

static PyObject *set_linger(PyObject *module, PyObject *seconds)
{
    double given = PyFloat_AsDouble(seconds);

    if (PyErr_Occurred())
        return NULL;
    linger_s = given;
    Py_RETURN_NONE;
}

void mp_wake_if_recalled(void)
{
    const mp_link *first = dropped.next, *longest = lingering.next;

    if ((first != &dropped &&
         mp_is_recalled(first_of(MP_OF(struct mp_dropped, link, first)->leases))) ||
        (longest != &lingering &&
         mp_is_recalled(first_of(MP_OF(mp_mapping, link, longest)->leases))))
        mp_leave_to(mp_hook.wake, NULL);
}

/* What other threads were opening or closing has no owner here any more. */
void mp_forget_mappings(void)
{
    make_lock(); /* another thread may have had it */
    for (size_t i = 0; i < sorted.count; i++) {
        mp_link *received = &sorted.at[i]->received;
        while (received->next != received) {
            mp_received *self = MP_OF(mp_received, link, received->next);
            mp_take_out(&self->link);
            self->rest = NULL;
        }
        Py_INCREF((PyObject *)sorted.at[i]); /* the driver cannot close it here */
    }
    sorted.count = 0;
    dropped = (mp_link){&dropped, &dropped};
    lingering = (mp_link){&lingering, &lingering};
    closing = (mp_link){&closing, &closing};
    memset(lingering_bytes, 0, sizeof(lingering_bytes));
    PyDict_Clear(open_by_key);
}

/* ---- the module ---- */

static PyGetSetDef received_getset[] = {
    {"owner_alive", get_owner_alive, NULL, "Whether the owner of the memory is still running.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef functions[] = {
    MP_FUNCTION(close_dropped, METH_VARARGS, "(wait, lingering, /)",
                "Close memory without arrays, or let it linger."),
    MP_FUNCTION(close_all, METH_NOARGS, "()", "Close all memory of other processes, at exit."),
    MP_FUNCTION(count_mappings, METH_NOARGS, "()",
                "Count what is open, what lingers, and what was dropped and is not done."),
    MP_FUNCTION(set_linger, METH_O, "(seconds, /)",
                "Set how long memory stays open without arrays."),
    {NULL, NULL, 0, NULL},
};

int mp_add_mappings(PyObject *module)
{
    PyType_Slot of_mapping[] = {{Py_tp_dealloc, mapping_dealloc}, {0, NULL}};
    PyType_Slot of_received[] = {
        {Py_tp_dealloc, received_dealloc}, {Py_tp_getset, received_getset}, {0, NULL}};

    make_lock();
    mapping_type = mp_add_type(module, "mp_cuda._native.Mapping", sizeof(mp_mapping), MP_ONLY_HERE,
                               of_mapping);
    mp_received_type = mp_add_type(module, "mp_cuda._native.Received", sizeof(mp_received),
                                   MP_ONLY_HERE, of_received);
    open_by_key = PyDict_New();
    return mapping_type == NULL || mp_received_type == NULL || open_by_key == NULL
               ? -1
               : PyModule_AddFunctions(module, functions);
}
