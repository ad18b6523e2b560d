/* The messages that are still in a ring when the last end that could read them is closed.
 *
 * mp_core/_unread.py does the same for ordinary pipes; its Note [The last reading end] says what a
 * death at each step leaves. Here the kernel counts the reading ends of the channel's pipe, and the
 * messages are in the ring, which this process maps until the end is released:
 *
 *    open a writing end, W           through /proc/self/fd
 *    close the reading end
 *    mpshm_channel_stop_reading      writers hear that the pipe is broken, or have sent already
 *    W has no reader (POLLERR)?      no: another process reads on
 *    take all messages, close W, discard the handles
 *
 * If two processes close the last ends at once, both take messages, each message once. The GIL is
 * held while there are descriptors, so no thread of Python forks meanwhile, and nothing waits: a
 * message whose parts have not all arrived is left to its writer, who hears that the pipe is
 * broken. To discard a handle releases the GIL, so that comes last. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "channel.h"

static void begin_no_wait(void *of)
{
    (void)of;
}

static int end_no_wait(void *of)
{
    (void)of;
    return -ECANCELED;
}

#define NO_WAITER(call)                                                                            \
    (&(mpshm_waiter){(call), mp_channel_call_allocate, begin_no_wait, end_no_wait, NULL})

/* Another descriptor of the same pipe; -1 without /proc or descriptors. */
static int reopen(int fd, int mode)
{
    char path[32];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, mode | O_NONBLOCK | O_CLOEXEC);
}

static int has_no_reader(int writer)
{
    struct pollfd poll_for = {.fd = writer, .events = 0};

    return poll(&poll_for, 1, 0) == 1 && (poll_for.revents & POLLERR) != 0;
}

/* Take all messages into the list. */
static void take_messages(Channel *self, int writer, PyObject *messages)
{
    for (;;) {
        struct call call = {.self = self};
        if (mpshm_channel_receive(self->end, writer, 0, NO_WAITER(&call)) != 1) {
            Py_XDECREF(call.bytes);
            PyErr_Clear(); /* out of memory: the rest stays in flight */
            return;
        }
        if (PyList_Append(messages, call.bytes) < 0)
            PyErr_Clear(); /* it stays in flight */
        Py_DECREF(call.bytes);
    }
}

int mp_channel_close_last_reader(Channel *self)
{
    struct call call = {.self = self};

    /* The kernel says nothing about the other holders of a socket. */
    if (self->writable || !self->readable || self->users != 0)
        return 0;
    int writer = reopen(self->fd, O_WRONLY);
    if (writer < 0)
        return 0;
    PyObject *messages = PyList_New(0);
    if (messages == NULL) {
        PyErr_Clear();
        close(writer);
        return 0;
    }
    self->users++; /* another thread that closes it leaves the mapping to this one */
    close(self->fd);
    self->fd = -1;
    mpshm_channel_stop_reading(self->end, writer, NO_WAITER(&call));
    if (has_no_reader(writer))
        take_messages(self, writer, messages);
    close(writer);
    mp_channel_leave(self);
    for (Py_ssize_t i = 0; i < PyList_Size(messages); i++) {
        PyObject *done = mp_py_discard_unread(NULL, PyList_GetItem(messages, i));
        Py_XDECREF(done);
    }
    Py_DECREF(messages);
    return 1;
}
