/* A channel and its pipe, as the tests of channels use them. */
#ifndef TESTS_CHANNEL_H
#define TESTS_CHANNEL_H

#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/socket.h>

#include "check.h"
#include "mpshm.h"

struct line {
    mpshm_channel *writer, *reader;
    int to, from; /* descriptors of the pipe */
};

/* The memory that a receive has allocated. */
struct received {
    char *data;
    uint64_t nbytes;
};

__attribute__((unused)) static void *received_allocate(void *self, uint64_t nbytes)
{
    struct received *received = self;

    free(received->data);
    received->data = malloc(nbytes + 1);
    received->nbytes = nbytes;
    return received->data;
}

__attribute__((unused)) static void received_begin(void *self)
{
    (void)self;
}

__attribute__((unused)) static int received_end(void *self)
{
    (void)self;
    return 0;
}

#define WAITER(received)                                                                           \
    (&(mpshm_waiter){(received), received_allocate, received_begin, received_end, NULL, NULL, 0,   \
                     NULL, NULL, NULL})

__attribute__((unused)) static struct line line_open(int duplex)
{
    struct line line;
    mpshm_channel *ends[2];
    int fds[2];

    CHECK_EQ(mpshm_channel_create(duplex, ends), 0);
    CHECK_EQ(duplex ? socketpair(AF_UNIX, SOCK_STREAM, 0, fds) : pipe(fds), 0);
    line.writer = ends[0];
    line.reader = ends[1];
    line.from = duplex ? fds[1] : fds[0];
    line.to = duplex ? fds[0] : fds[1];
    return line;
}

__attribute__((unused)) static void line_close_writer(struct line *line)
{
    close(line->to);
    mpshm_channel_close(line->writer);
    line->writer = NULL;
}

__attribute__((unused)) static void line_close_reader(struct line *line)
{
    close(line->from);
    mpshm_channel_close(line->reader);
    line->reader = NULL;
}

__attribute__((unused)) static void line_close(struct line *line)
{
    if (line->writer != NULL)
        line_close_writer(line);
    if (line->reader != NULL)
        line_close_reader(line);
}

/* Message `number` of `nbytes` (8 or more), which tells when a byte of it is wrong. */
__attribute__((unused)) static char *message(uint64_t number, uint64_t nbytes)
{
    char *data = malloc(nbytes);

    memcpy(data, &number, sizeof(number));
    for (uint64_t i = sizeof(number); i < nbytes; i++)
        data[i] = (char)(number * 31 + i * 7);
    return data;
}

__attribute__((unused)) static uint64_t message_number(const struct received *received)
{
    uint64_t number;

    CHECK(received->nbytes >= sizeof(number));
    memcpy(&number, received->data, sizeof(number));
    for (uint64_t i = sizeof(number); i < received->nbytes; i++)
        CHECK_EQ(received->data[i], (char)(number * 31 + i * 7));
    return number;
}

__attribute__((unused)) static int send_number(struct line *line, uint64_t number, uint64_t nbytes,
                                               int64_t timeout)
{
    char *data = message(number, nbytes);
    int rc = mpshm_channel_send(line->writer, line->to, data, nbytes, timeout, WAITER(NULL));

    free(data);
    return rc;
}

/* The number of the next message; -1 at the end of the file, other errors as they are. */
__attribute__((unused)) static int64_t receive_number(struct line *line, int64_t timeout)
{
    struct received received = {0};
    int rc = mpshm_channel_receive(line->reader, line->from, timeout, WAITER(&received));
    int64_t number = rc == 0 ? -1 : rc;

    if (rc == 1)
        number = (int64_t)message_number(&received);
    free(received.data);
    return number;
}

__attribute__((unused)) static int readable(int fd)
{
    struct pollfd poll_for = {.fd = fd, .events = POLLIN};

    return poll(&poll_for, 1, 0) == 1 && (poll_for.revents & POLLIN);
}

#endif
