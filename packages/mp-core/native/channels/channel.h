/* The type Channel: its fields and its methods. */
#ifndef MP_CHANNEL_H
#define MP_CHANNEL_H
#include <stdatomic.h>

#include "messages/messages.h"
#include "timeline/timeline.h"

struct lazy_pair;

typedef struct {
    PyObject_HEAD
    mpshm_channel *end;               /* NULL: no ring yet, or none at all */
    _Atomic(struct lazy_pair *) lazy; /* not NULL: no ring yet */
    int fd;                           /* -1: closed */
    int side;
    int users; /* threads inside a call */
    char readable, writable;
    char alone;  /* the other end was closed before there was a ring: no byte is in the pipe */
    char shares; /* whether messages may share memory: 1, 0, or -1 when it is not known yet */
    char warned; /* of bytes that no channel has written */
    char counts; /* a queue: its messages are also counted after it is closed */
    /* Messages that a thread has taken for a waiter, which may have left: the next receiver in this
     * process gets them. A list or NULL; a child of a fork has no claim on them. */
    PyObject *kept;
    pid_t kept_by;
} Channel;

/* One call. */
struct call {
    Channel *self;
    PyThreadState *state;
    PyObject *bytes;
    PyObject *stop; /* a list, or NULL: the call gives up once it has an element */
    int to_count;   /* the call goes on when the end is closed */
    int for_next;   /* the call gives up once a message is kept for it */
    int waited;
    PyObject *handles; /* of the message that is sent, a list, or NULL */
    uint64_t position; /* the number of the message, for the timeline */
    uint64_t taken;    /* the number of its notes, for the reaper */
};

/* ---- channel_call.c ---- */

/* Raise the exception of an error number, unless there is an exception. */
PyObject *mp_channel_fail(int rc);
/* The functions of a call for libshm. */
void *mp_channel_call_allocate(void *of, uint64_t nbytes);
void mp_channel_call_begin_wait(void *of);
int mp_channel_call_end_wait(void *of);
int mp_channel_call_resume(void *of);
void mp_channel_call_leave(void *of);
#define WAITER_WITH(call, carries, log)                                                            \
    (&(mpshm_waiter){(call), mp_channel_call_allocate, mp_channel_call_begin_wait,                 \
                     mp_channel_call_end_wait, mp_channel_call_resume, &(call)->position,          \
                     (carries), (log), &(call)->taken, mp_channel_call_leave})
#define WAITER(call) WAITER_WITH(call, 0, NULL)

/* Begin a call in this thread: 0; -1 with an exception if the connection is closed, or has not this
 * direction; MP_NO_RING, and no call is begun, if it is an ordinary connection. */
enum { MP_NO_RING = 1 };
int mp_channel_enter(Channel *self, int may, const char *direction);
void mp_channel_leave(Channel *self);
/* Close the end, unless a thread is inside a call or the descriptor is open. */
void mp_channel_release(Channel *self);

/* ---- channel.c ---- */

/* Whether the interpreter is ending. */
int mp_channel_is_finalizing(void);
/* Wait for a place in the queue: 0, -ENOSPC after the timeout, or another error. */
int mp_channel_wait_for_place(Channel *self, int64_t timeout, PyObject *stop);
/* The same: 1 if it is full for that time, otherwise 0, also without a ring;
 * -1 with an exception. What is left of the timeout is in it. */
int mp_channel_is_full(Channel *self, int64_t *timeout);

PyObject *mp_channel_send(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *mp_channel_send_bytes(PyObject *op, PyObject *data);
PyObject *mp_channel_offer_message(PyObject *op, PyObject *message);
PyObject *mp_channel_offer(PyObject *op, PyObject *const *args, Py_ssize_t nargs);
PyObject *mp_channel_send_reserved(PyObject *op, PyObject *message);
PyObject *mp_channel_recv(PyObject *op, PyObject *unused);
PyObject *mp_channel_recv_within(PyObject *op, PyObject *const *args, Py_ssize_t nargs);
PyObject *mp_channel_recv_bytes(PyObject *op, PyObject *args, PyObject *names);
PyObject *mp_channel_poll(PyObject *op, PyObject *args, PyObject *names);
PyObject *mp_channel_pickle(PyObject *op, PyObject *object);
PyObject *mp_channel_send_unless(PyObject *op, PyObject *const *args, Py_ssize_t nargs);
PyObject *mp_channel_wake_senders(PyObject *op, PyObject *unused);
PyObject *mp_channel_take(PyObject *op, PyObject *const *args, Py_ssize_t nargs);
PyObject *mp_channel_keep_next(PyObject *op, PyObject *unused);

/* ---- queue_methods.c ---- */

PyObject *mp_queue_set_bound(PyObject *op, PyObject *bound);
PyObject *mp_queue_begin_reservations(PyObject *op, PyObject *unused);
PyObject *mp_queue_end_reservations(PyObject *op, PyObject *unused);
PyObject *mp_queue_reserve(PyObject *op, PyObject *const *args, Py_ssize_t nargs);
PyObject *mp_queue_unreserve(PyObject *op, PyObject *unused);
PyObject *mp_queue_wait_for_place(PyObject *op, PyObject *const *args, Py_ssize_t nargs);
PyObject *mp_queue_messages(PyObject *op, PyObject *unused);
PyObject *mp_channel_has_rest(PyObject *op, PyObject *unused);
PyObject *mp_queue_task_done(PyObject *op, PyObject *unused);
PyObject *mp_queue_tasks(PyObject *op, PyObject *unused);
PyObject *mp_queue_join(PyObject *op, PyObject *unused);
PyObject *mp_queue_acquire(PyObject *op, PyObject *const *args, Py_ssize_t nargs);
PyObject *mp_queue_release(PyObject *op, PyObject *which);

/* The method of multiprocessing's Connection, for a connection without a ring; argument may be
 * NULL.
 */
PyObject *mp_channel_standard(PyObject *op, const char *name, PyObject *argument);

/* ---- lazy_ring.c ---- */

/* Let two new connections, which write and read by their sides, get their ring when they need it:
 * 0, or -1. */
int mp_lazy_pair(Channel *first, Channel *second, int duplex);
/* Make the ring if it is not made yet: 1, or 0 if there is none. */
int mp_has_ring(Channel *self);
/* Before a connection is closed: if it has no ring yet, neither end ever gets one. */
void mp_lazy_leave(Channel *self);
/* Count the two ends of a channel that could not get a ring. */
void mp_count_refused_ring(void);

/* ---- kept.c ---- */

/* The oldest of the kept messages, or NULL; whether there is one. */
PyObject *mp_channel_kept(Channel *self);
int mp_channel_has_kept(Channel *self);
/* Free the kept messages and their memory. */
void mp_channel_drop_kept(Channel *self);
/* Free the memory of the messages, and the list. */
void mp_discard_messages(PyObject *messages);

/* ---- unread.c ---- */

/* Close a reading end with a ring and, if it is the last one, free the memory of what no process
 * can read. Return 0, with nothing done, if it is no reading end of a pipe, or without
 * descriptors. Before a writing end is closed: the same for what has no reader. */
int mp_channel_close_last_reader(Channel *self);
/* Free the memory of what was sent if no process has an end that could read it. An exception that
 * is set stays. */
void mp_channel_drop_unread(Channel *self);

#endif
