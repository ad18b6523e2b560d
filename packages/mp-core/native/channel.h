/* The type Channel: its fields and its methods. */
#ifndef MP_CHANNEL_H
#define MP_CHANNEL_H
#include "native.h"

typedef struct {
    PyObject_HEAD mpshm_channel *end;
    int fd; /* -1: closed */
    int side;
    int users; /* threads inside a call */
    char readable, writable;
    char shares; /* whether messages may share memory: 1, 0, or -1 when it is not known yet */
} Channel;

/* One call. */
struct call {
    Channel *self;
    PyThreadState *state;
    PyObject *bytes;
};

/* ---- channel.c ---- */

/* Intern the names that it looks up. */
int mp_channel_setup_names(void);

/* The functions of a call for libshm. */
void *mp_channel_call_allocate(void *of, uint64_t nbytes);
void mp_channel_call_begin_wait(void *of);
int mp_channel_call_end_wait(void *of);
int mp_channel_call_resume(void *of);
#define WAITER(call)                                                                               \
    (&(mpshm_waiter){(call), mp_channel_call_allocate, mp_channel_call_begin_wait,                 \
                     mp_channel_call_end_wait, mp_channel_call_resume})

/* Begin a call in this thread: -1 with an exception if the connection is closed, or has not this
 * direction. */
int mp_channel_enter(Channel *self, int may, const char *direction);
void mp_channel_leave(Channel *self);
/* Close the end, unless a thread is inside a call or the descriptor is open. */
void mp_channel_release(Channel *self);
/* Raise the exception of an error number, unless there is an exception. */
PyObject *mp_channel_fail(int rc);

PyObject *mp_channel_send(PyObject *op, PyObject *object);
PyObject *mp_channel_send_bytes(PyObject *op, PyObject *data);
PyObject *mp_channel_try_send_bytes(PyObject *op, PyObject *data);
PyObject *mp_channel_try_send(PyObject *op, PyObject *object);
PyObject *mp_channel_recv(PyObject *op, PyObject *unused);
PyObject *mp_channel_recv_and(PyObject *op, PyObject *function);
PyObject *mp_channel_recv_bytes(PyObject *op, PyObject *args, PyObject *names);
PyObject *mp_channel_receive_within(PyObject *op, PyObject *seconds);
PyObject *mp_channel_poll(PyObject *op, PyObject *args, PyObject *names);

/* unread.c: close the last reading end and free the memory of what no process can read. */
PyObject *mp_channel_close_last_reader(PyObject *op, PyObject *unused);

#endif
