/* The wake-up byte: one byte in the pipe, which makes the reader's descriptor readable.
 *
 * Note [When the wake-up byte is written]
 *
 *              a writer, before it publishes
 *            +------- writes one byte -------+
 *            |                               v
 *        ARMED: no byte                   WRITTEN: one byte
 *            ^                               |
 *            +------- takes it back ---------+
 *              a reader, with an empty ring
 *
 *   The state changes under write_lock only. A reader arms it before it sleeps: it holds write_lock
 *   while it sees the ring empty, so each later writer sees ARMED. Readers that find their messages
 *   in time do not touch it, it stays WRITTEN, and no message costs a system call.
 *
 *   A program that selects has asked for the descriptor. From then on (`selectable`) a reader arms
 *   it as soon as it has emptied the ring, so the descriptor is readable while there are
 *   messages and not otherwise. The switch is safe at any time: without it, too, the byte is there
 *   whenever the ring is not empty.
 *
 *   The byte is written before the message is published. If the writer dies in between, its reader
 *   wakes for nothing; in the other order a message could lie in front of a reader that sleeps for
 *   ever. There is never more than one byte, and the pipe is never full.
 *
 *   The end of the file is the pipe's own hang-up: the kernel counts who has its ends. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "channel/channel.h"
#include "platform/platform.h"

#ifndef RWF_NOWAIT
#define RWF_NOWAIT 0x00000008 /* of the kernel's interface; not in musl before 1.2.5 */
#endif

static int is_duplex(const mpshm_channel *end)
{
    return (int)end->mapping->header->duplex;
}

int mpshm__wakeup_write(mpshm_channel *end, int fd)
{
    struct mpshm__ring *ring = end->out.ring;
    long rc;

    if (atomic_load_explicit(&ring->wakeup, memory_order_relaxed) == MPSHM__WRITTEN)
        return 0;
    atomic_store(&ring->wakeup, MPSHM__WRITTEN);
    if (is_duplex(end))
        rc = MPSHM__RETRY(send(fd, "", 1, MSG_NOSIGNAL));
    else
        rc = MPSHM__RETRY(write(fd, "", 1));
    if (rc == 1)
        return 0;
    atomic_store(&ring->wakeup, MPSHM__ARMED);
    return errno == ECONNRESET ? -EPIPE : -errno;
}

/* Take one byte if there is one, without waiting: the program may have read it. */
static void take_byte(mpshm_channel *end, int fd)
{
    char byte;

    if (is_duplex(end)) {
        (void)!MPSHM__RETRY(recv(fd, &byte, 1, MSG_DONTWAIT));
        return;
    }
    struct iovec to = {.iov_base = &byte, .iov_len = 1};
    /* preadv2, which musl has from 1.2.5 on only; both halves of the offset -1: as read. */
    if (MPSHM__RETRY(syscall(SYS_preadv2, fd, &to, 1, -1L, -1L, RWF_NOWAIT)) >= 0 ||
        errno == EAGAIN)
        return;
    struct pollfd poll_for = {.fd = fd, .events = POLLIN}; /* older kernels */
    if (MPSHM__RETRY(poll(&poll_for, 1, 0)) == 1 && (poll_for.revents & POLLIN))
        (void)!MPSHM__RETRY(read(fd, &byte, 1));
}

void mpshm__wakeup_arm(mpshm_channel *end, int fd)
{
    struct mpshm__ring *ring = end->in.ring;

    if (atomic_load_explicit(&ring->wakeup, memory_order_relaxed) == MPSHM__ARMED)
        return;
    take_byte(end, fd);
    atomic_store(&ring->wakeup, MPSHM__ARMED);
}

void mpshm__wakeup_repair(mpshm_channel *end, int fd, int is_reader)
{
    struct mpshm__ring *ring = is_reader ? end->in.ring : end->out.ring;
    struct pollfd poll_for = {.fd = fd, .events = POLLIN};
    int bytes = 1;

    if (is_reader)
        bytes = MPSHM__RETRY(poll(&poll_for, 1, 0)) == 1 && (poll_for.revents & POLLIN);
    else
        ioctl(fd, is_duplex(end) ? SIOCOUTQ : FIONREAD, &bytes);
    /* Armed without a byte is right for an empty ring. For another, a reader looks before it
     * sleeps, and the next writer writes it. */
    atomic_store(&ring->wakeup, bytes > 0 ? MPSHM__WRITTEN : MPSHM__ARMED);
}

int mpshm__wakeup_settle(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    struct mpshm__ring *ring = end->in.ring;
    enum { PATIENCE_NS = 10 * 1000000 };

    if (!mpshm__ring_is_empty(ring) || atomic_load(&ring->wakeup) == MPSHM__ARMED)
        return 0;
    int rc = mpshm__channel_lock(end, MPSHM__TO_ARM, fd, mpshm__now_ns() + PATIENCE_NS, waiter);
    /* A writer that keeps the lock for longer has a message under way: the byte is right. */
    if (rc == -EAGAIN || rc == -EDEADLK)
        return 0;
    if (rc < 0)
        return rc;
    if (mpshm__ring_is_empty(ring))
        mpshm__wakeup_arm(end, fd);
    mpshm__channel_unlock(end, MPSHM__TO_ARM);
    return 0;
}
