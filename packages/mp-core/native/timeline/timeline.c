/* The recorder of a timeline: events of this process in a ring of fixed size, in a file.
 *
 *   file   | header, 4096 | strings | events: a power of two of them, 56 bytes each |
 *
 * The file is mapped, so what was written is there after any end of the process, also SIGKILL; and
 * its blocks were reserved when it was made, so a full disk cannot end a process in the middle of
 * an event. mp_core/timeline/events.py reads it.
 *
 * Note [An event at each step]
 *   A writer has the GIL. It fills the slot of event number `written`, and then counts it. So a
 *   process that is killed leaves whole events, but for the slot that it was filling: a reader of a
 *   full ring drops the oldest event, whose slot that is. A process that is stopped anywhere keeps
 *   nobody waiting: nobody else writes its file.
 *
 *   A child of a fork forgets the ring of its parent at once, in C, and opens a file of its own.
 *   The owner of the timeline may delete the file while this process runs: the events go with it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "timeline/timeline.h"

enum { HEADER = 4096, FIRST_STRING = 8 };

struct mp_timeline {
    char magic[8];
    uint32_t pid, parent;
    uint32_t capacity, strings; /* events; bytes */
    uint64_t began, ended;      /* `ended` is 0 until the process says so */
    int64_t offset;             /* of this clock from that of the timeline's owner */
    _Atomic uint64_t written;
    uint32_t used, name; /* of the strings; which of them is the process's name, 0: none */
    uint64_t idle;       /* since when its worker waits for a task; 0: it does not */
    uint32_t node;       /* 0: the owner's machine */
};

struct mp_timeline *mp_timeline;
uint64_t mp_timeline_blocks[2][2];
static _Thread_local uint32_t thread; /* 0: not known yet */

static char *strings(void)
{
    return (char *)mp_timeline + HEADER;
}

static size_t nbytes_of(const struct mp_timeline *header, uint64_t events)
{
    return HEADER + header->strings + events * sizeof(struct mp_event);
}

uint64_t mp_timeline_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void mp_timeline_write(const struct mp_event *event)
{
    if (mp_timeline == NULL)
        return;
    if (thread == 0)
        thread = (uint32_t)syscall(SYS_gettid);
    uint64_t n = atomic_load_explicit(&mp_timeline->written, memory_order_relaxed);
    struct mp_event *slot = (struct mp_event *)(strings() + mp_timeline->strings);

    slot += n & (mp_timeline->capacity - 1);
    *slot = *event;
    slot->thread = thread;
    atomic_store_explicit(&mp_timeline->written, n + 1, memory_order_release);
}

void mp_timeline_idle(uint64_t since)
{
    if (mp_timeline != NULL)
        mp_timeline->idle = since;
}

void mp_timeline_span(uint64_t began, uint64_t least, int kind, int flags, uint64_t a, uint64_t b)
{
    uint64_t duration = began == 0 ? 0 : mp_timeline_now() - began;

    if (began != 0 && duration >= least)
        mp_timeline_write(&(struct mp_event){.start = began,
                                             .duration = duration,
                                             .a = a,
                                             .b = b,
                                             .kind = (uint16_t)kind,
                                             .flags = (uint16_t)flags});
}

void mp_timeline_copied(uint64_t began, const void *from, const void *copy, uint64_t nbytes)
{
    enum { SAMPLES = 64 };
    uint64_t mark = (uint64_t)(uintptr_t)from, word;

    for (uint64_t at = 0; began != 0 && at + sizeof(word) <= nbytes; at += nbytes / SAMPLES + 1) {
        memcpy(&word, (const char *)copy + at, sizeof(word));
        mark = (mark ^ word) * 0x9E3779B97F4A7C15u;
    }
    mp_timeline_span(began, MP_LEAST_NS, MP_COPY, MP_INTO, nbytes, mark);
}

void mp_timeline_message(uint64_t began, int kind, int waited, uint64_t ring, uint64_t number,
                         uint64_t nbytes)
{
    if (began == 0 || (!waited && number == 0))
        return;
    int flags = (waited ? MP_WAITED : 0) | (number != 0 ? MP_MESSAGE : 0);
    mp_timeline_write(&(struct mp_event){.start = began,
                                         .duration = waited ? mp_timeline_now() - began : 0,
                                         .a = ring,
                                         .b = number,
                                         .c = nbytes,
                                         .kind = (uint16_t)kind,
                                         .flags = (uint16_t)flags});
}

void mp_timeline_task(uint64_t when, int kind, uint64_t ring, uint64_t number, uint64_t nbytes)
{
    if (when != 0)
        mp_timeline_write(&(struct mp_event){.start = when,
                                             .a = ring,
                                             .b = number,
                                             .c = nbytes,
                                             .kind = (uint16_t)kind,
                                             .flags = MP_MESSAGE | MP_OF_POOL});
}

/* ---- functions of the module ---- */

static void forget(void)
{
    if (mp_timeline != NULL)
        munmap(mp_timeline, nbytes_of(mp_timeline, mp_timeline->capacity));
    mp_timeline = NULL;
    thread = 0;
}

/* timeline_open(fd, events, bytes of strings, parent): record into that file, which is as long as
 * that needs. The caller keeps the descriptor. */
PyObject *mp_py_timeline_open(PyObject *module, PyObject *args)
{
    static int watches_forks;
    struct mp_timeline header = {
        .magic = "mptline1", .used = FIRST_STRING, .pid = (uint32_t)getpid()};
    int fd;

    if (!PyArg_ParseTuple(args, "iIII:timeline_open", &fd, &header.capacity, &header.strings,
                          &header.parent))
        return NULL;
    if (header.capacity == 0 || (header.capacity & (header.capacity - 1)) != 0 ||
        mp_timeline != NULL)
        return PyErr_Format(PyExc_ValueError,
                            "a ring has a power of two of events, and a process one");
    void *at =
        mmap(NULL, nbytes_of(&header, header.capacity), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return PyErr_SetFromErrno(PyExc_OSError);
    if (!watches_forks && (errno = pthread_atfork(NULL, NULL, forget)) != 0) {
        munmap(at, nbytes_of(&header, header.capacity));
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    watches_forks = 1;
    header.began = mp_timeline_now();
    memcpy(at, &header, sizeof(header));
    mp_timeline = at;
    Py_RETURN_NONE;
}

/* timeline_close() -> how many bytes of the file are in use */
PyObject *mp_py_timeline_close(PyObject *module, PyObject *unused)
{
    if (mp_timeline == NULL)
        return PyLong_FromLong(0);
    uint64_t written = mp_timeline->written, capacity = mp_timeline->capacity;
    size_t nbytes = nbytes_of(mp_timeline, written < capacity ? written : capacity);
    mp_timeline->ended = mp_timeline_now();
    forget();
    return PyLong_FromSize_t(nbytes);
}

/* timeline_name(text, is the process's) -> the number of a text, which is written once; 0 when
 * there is no room for it */
PyObject *mp_py_timeline_name(PyObject *module, PyObject *args)
{
    const char *text;
    Py_ssize_t nbytes;
    int is_own;

    if (!PyArg_ParseTuple(args, "s#p:timeline_name", &text, &nbytes, &is_own))
        return NULL;
    uint32_t at = mp_timeline == NULL ? 0 : mp_timeline->used, length = (uint32_t)nbytes;
    if (mp_timeline == NULL || (size_t)nbytes > mp_timeline->strings ||
        at + sizeof(length) + (size_t)nbytes > mp_timeline->strings)
        return PyLong_FromLong(0);
    memcpy(strings() + at, &length, sizeof(length));
    memcpy(strings() + at + sizeof(length), text, (size_t)nbytes);
    mp_timeline->used = at + (uint32_t)sizeof(length) + length;
    if (is_own)
        mp_timeline->name = at;
    return PyLong_FromUnsignedLong(at);
}

/* timeline_now() -> ns of the clock of events */
PyObject *mp_py_timeline_now(PyObject *module, PyObject *unused)
{
    return PyLong_FromUnsignedLongLong(mp_timeline_now());
}

/* timeline_blocks() -> bytes in blocks of messages since the last call: shared and copied that came,
 * shared and copied that went */
PyObject *mp_py_timeline_blocks(PyObject *module, PyObject *unused)
{
    uint64_t n[2][2];

    memcpy(n, mp_timeline_blocks, sizeof(n));
    memset(mp_timeline_blocks, 0, sizeof(n));
    return Py_BuildValue("(KKKK)", (unsigned long long)n[0][0], (unsigned long long)n[0][1],
                         (unsigned long long)n[1][0], (unsigned long long)n[1][1]);
}

/* timeline_write(kind, flags, began, a, b, c, count, name): a span from `began` until now, or, if
 * that is 0, an event of now */
PyObject *mp_py_timeline_write(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    uint64_t v[8], now = mp_timeline_now();

    if (nargs != 8)
        return PyErr_Format(PyExc_TypeError, "timeline_write takes 8 numbers, not %zd", nargs);
    for (int i = 0; i < 8; i++)
        v[i] = PyLong_AsUnsignedLongLongMask(args[i]);
    if (PyErr_Occurred())
        return NULL;
    mp_timeline_write(&(struct mp_event){.kind = (uint16_t)v[0],
                                         .flags = (uint16_t)v[1],
                                         .start = v[2] != 0 ? v[2] : now,
                                         .duration = v[2] != 0 ? now - v[2] : 0,
                                         .a = v[3],
                                         .b = v[4],
                                         .c = v[5],
                                         .count = (uint32_t)v[6],
                                         .name = (uint32_t)v[7]});
    Py_RETURN_NONE;
}
