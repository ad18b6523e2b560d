/* The messages that are still in a ring when no process can read them any more, because the last
 * reading end is closed, or its process was killed.
 *
 * mp_core/channels/unread.py does the same for ordinary pipes; its Note [The last reading end] says
 * what a death at each step leaves. Here the kernel counts the reading ends of the channel's pipe,
 * and the messages are in the ring, which this process maps until the end is released:
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
 * broken. To discard a handle releases the GIL, so that comes last.
 *
 * A reader that is killed closes its end and takes nothing. So a writer that closes, or hears that
 * the pipe is broken, takes the messages through a reading end over the same memory. A socket tells
 * a writer that its peer has gone, so this is for both kinds of pipes. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "channels/channel.h"

static void begin_no_wait(void *of)
{
}

static int end_no_wait(void *of)
{
    return -ECANCELED;
}

#define NO_WAITER(call)                                                                            \
    (&(mpshm_waiter){(call), mp_channel_call_allocate, begin_no_wait, end_no_wait, NULL, NULL, 0,  \
                     NULL, NULL})

/* Another descriptor of the same pipe; -1 without /proc or descriptors. */
static int reopen(int fd, int mode)
{
    char path[32];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, mode | O_NONBLOCK | O_CLOEXEC);
}

/* A pipe without readers is in error, a socket without a peer has hung up. */
static int has_no_reader(int writer)
{
    struct pollfd poll_for = {.fd = writer, .events = 0};

    return poll(&poll_for, 1, 0) == 1 && (poll_for.revents & (POLLERR | POLLHUP)) != 0;
}

/* Take all messages into the list. */
static void take_messages(mpshm_channel *reader, int writer, PyObject *messages)
{
    for (;;) {
        struct call call = {.self = NULL};
        if (mpshm_channel_receive(reader, writer, 0, NO_WAITER(&call)) != 1) {
            Py_XDECREF(call.bytes);
            PyErr_Clear(); /* out of memory: the rest stays in flight */
            return;
        }
        if (PyList_Append(messages, call.bytes) < 0)
            PyErr_Clear(); /* it stays in flight */
        Py_DECREF(call.bytes);
    }
}

void mp_channel_drop_unread(Channel *self)
{
    mpshm_channel *reader;

    if (self->fd < 0 || self->end == NULL || !self->writable || !has_no_reader(self->fd))
        return;
    mp_error error = mp_set_aside();
    PyObject *messages = PyList_New(0);
    if (messages != NULL && mpshm_channel_open_other(self->end, &reader) == 0) {
        take_messages(reader, self->fd, messages);
        mpshm_channel_close(reader);
        mp_discard_messages(messages);
    } else {
        Py_XDECREF(messages);
    }
    mp_put_back(&error);
}

int mp_channel_close_last_reader(Channel *self)
{
    struct call call = {.self = self};

    /* The kernel says nothing about the other holders of a socket. */
    mp_channel_drop_unread(self);
    if (self->end == NULL || self->writable || !self->readable || self->users != 0)
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
        take_messages(self->end, writer, messages);
    close(writer);
    mp_channel_leave(self);
    mp_discard_messages(messages);
    return 1;
}
