/* The functions by which the other C files record events: see timeline.c. */
#ifndef MP_TIMELINE_H
#define MP_TIMELINE_H
#include "mp_core.h"

/* As mp_core/timeline/events.py has them. */
enum mp_event_kind {
    MP_GET = 2,
    MP_PUT,
    MP_LOCK,
    MP_COPY = 6,
    MP_PICKLE,
    MP_IDLE,
};
/* Flags of events. */
enum { MP_WAITED = 1, MP_INTO = 2, MP_MESSAGE = 4, MP_OF_POOL = 32 };

/* Spans of copies and of pickling that are shorter leave no event. */
enum { MP_LEAST_NS = 100000 };

struct mp_event {
    uint64_t start, duration; /* ns of CLOCK_MONOTONIC */
    uint64_t a, b, c;
    uint32_t name, thread, count;
    uint16_t kind, flags;
};

/* NULL while no timeline is recorded: the one test of a hot path. Read and written with the GIL. */
extern struct mp_timeline *mp_timeline;

/* Bytes in blocks, of the messages that came and of those that went while a timeline is recorded:
 * shared, and copied for the message. */
extern uint64_t mp_timeline_blocks[2][2];

uint64_t mp_timeline_now(void);

/* Count a block of a message. */
static inline void mp_timeline_block(int is_sent, int is_copy, uint64_t nbytes)
{
    if (__builtin_expect(mp_timeline != NULL, 0))
        mp_timeline_blocks[is_sent][is_copy] += nbytes;
}

/* The time, if a timeline is recorded; otherwise 0. */
static inline uint64_t mp_timeline_begin(void)
{
    return __builtin_expect(mp_timeline != NULL, 0) ? mp_timeline_now() : 0;
}

/* Record an event; the thread is filled in. Nothing happens if the timeline has ended meanwhile. */
void mp_timeline_write(const struct mp_event *event);
/* Note since when this worker waits for a task, 0 at its end: a wait is an event only when it is
 * over, and workers are ended in one. */
void mp_timeline_idle(uint64_t since);
/* Record a span from `began` until now, if that is not 0 and took `least` ns. */
void mp_timeline_span(uint64_t began, uint64_t least, int kind, int flags, uint64_t a, uint64_t b);
/* The same for a copy into a block, from `from`: that and a sample of the bytes tell a later copy
 * of the same. */
void mp_timeline_copied(uint64_t began, const void *from, const void *copy, uint64_t nbytes);
/* The same for a message: its ring, its number, 0 if none came or went, and its bytes. */
void mp_timeline_message(uint64_t began, int kind, int waited, uint64_t ring, uint64_t number,
                         uint64_t nbytes);
/* The same for a task or a result, when it came or went. */
void mp_timeline_task(uint64_t when, int kind, uint64_t ring, uint64_t number, uint64_t nbytes);

/* ---- functions of the module _block ---- */

/* timeline.c */
PyObject *mp_py_timeline_open(PyObject *, PyObject *);
PyObject *mp_py_timeline_close(PyObject *, PyObject *);
PyObject *mp_py_timeline_name(PyObject *, PyObject *);
PyObject *mp_py_timeline_now(PyObject *, PyObject *);
PyObject *mp_py_timeline_blocks(PyObject *, PyObject *);
PyObject *mp_py_timeline_write(PyObject *, PyObject *const *, Py_ssize_t);

#endif
