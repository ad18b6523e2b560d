/* An honest client beside a fuzzed manager: a process that checks, when asked, that everything
 * still works.
 *
 * It has blocks from the beginning and reads every byte of them. It forks a child, which takes a
 * slot, registers a segment of its own and sends from it; the client attaches that segment. */
#ifndef NEIGHBOUR_H
#define NEIGHBOUR_H

#include <sys/socket.h>

#include "fuzz.h"

enum { HELD_BYTES = 100000, SENT_BYTES = 5000 };

static void neighbours_child(mpshm_block *held, int strategy, int pipe_fd)
{
    unsigned char handle[MPSHM_HANDLE_SIZE];
    mpshm_block own;

    for (int i = 0; i < HELD_BYTES; i++)
        CHECK_EQ(((unsigned char *)held->data)[i], 0x5a);
    CHECK_EQ(mpshm_block_allocate(strategy, SENT_BYTES, 0, &own), 0);
    memset(own.data, 0xa5, SENT_BYTES);
    CHECK_EQ(mpshm_block_send(&own, 0, handle), 0);
    put_all(pipe_fd, handle, sizeof(handle));
    _exit(0); /* its message outlives it */
}

static void show_that_all_works(mpshm_block *held, int strategy)
{
    unsigned char handle[MPSHM_HANDLE_SIZE];
    mpshm_block got;
    int p[2];

    CHECK(pipe(p) == 0);
    pid_t pid = forked();
    if (pid == 0)
        neighbours_child(held, strategy, p[1]);
    close(p[1]);
    get_all(p[0], handle, sizeof(handle));
    close(p[0]);
    CHECK_EQ(reap(pid), 0);
    CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &got), 0);
    CHECK_EQ(got.nbytes, SENT_BYTES);
    for (int i = 0; i < SENT_BYTES; i++)
        CHECK_EQ(((unsigned char *)got.data)[i], 0xa5);
    mpshm_block_release(&got);
    for (int i = 0; i < HELD_BYTES; i++)
        CHECK_EQ(((unsigned char *)held->data)[i], 0x5a);
}

/* Answer each byte from `sock` with a byte, until the other end has gone. Then the fuzzed
 * manager has gone too, and the next one has to understand what it left. */
static void neighbour(int sock)
{
    mpshm_block held[2];
    char byte;

    signal(SIGPIPE, SIG_IGN);
    if (read(sock, &byte, 1) != 1)
        _exit(0);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(mpshm_block_allocate(STRATEGIES[i], HELD_BYTES, 0, &held[i]), 0);
        memset(held[i].data, 0x5a, HELD_BYTES);
    }
    do {
        for (int i = 0; i < 2; i++)
            show_that_all_works(&held[i], STRATEGIES[i]);
    } while (write(sock, &byte, 1) == 1 && read(sock, &byte, 1) == 1);
    for (int i = 0; i < 2; i++)
        show_that_all_works(&held[i], STRATEGIES[i]);
    _exit(0);
}

static int start_neighbour(void)
{
    int s[2];

    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        close(s[0]);
        neighbour(s[1]);
    }
    close(s[1]);
    return s[0];
}

static void ask_neighbour(int sock)
{
    char byte = 'n';

    put_all(sock, &byte, 1);
    get_all(sock, &byte, 1); /* fails after 30 s, and when the neighbour has died of a CHECK */
}

#endif
