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
 *   A reader arms it before it sleeps. Readers that find their messages in time do not touch it, it
 *   stays WRITTEN, and no message costs a system call.
 *
 *   A program that selects has asked for the descriptor. From then on (`selectable`) a reader arms
 *   it as soon as it has emptied the ring, so the descriptor is readable while there is a message
 *   and not otherwise. That holds wherever a writer loses its processor, is stopped or is killed,
 *   and no reader waits for a writer.
 *
 *   The end of the file is the pipe's own hang-up: the kernel counts who has its ends.
 *
 * Note [One word decides]
 *
 *        63 ........................ 3        2           1         0
 *     +-------------------------------+-----------+---------+---------+
 *     | bytes begun, as tail counts   | PUBLISHED |  DOUBT  | WRITTEN |    `wakeup`
 *     +-------------------------------+-----------+---------+---------+
 *
 *   A writer (under write_lock) and a reader (under read_lock) change it by compare-and-exchange:
 *
 *     writer   1  writes the record            reader   a  sees that head is where `wakeup` says
 *              2  begun = its end, WRITTEN              b  WRITTEN becomes ARMED
 *              3  ARMED before: one byte                c  takes one byte
 *              4  moves tail
 *
 *   2 before b: b fails, since head is before the message, and the byte stays.
 *   b before 2: the writer sees ARMED and writes its own byte. The pipe has two until c, and one
 *   afterwards. So c always takes a byte that is there: those who wrote it have published.
 *
 *   A writer that stops after 2 has sent the message if the byte is there, and not yet otherwise. A
 *   reader that finds a ring without records, a message begun and the byte publishes the message
 *   itself: PUBLISHED, then tail. It has read_lock, so no other reader is between b and c, and the
 *   byte is not that of an earlier message.
 *
 *     stops or dies after   byte   the message is                    repair by the next writer
 *     2, ARMED before       no     not sent                          DOUBT, a byte, tail
 *     2, WRITTEN before     yes    published by a reader             the same, unless PUBLISHED
 *     3                     yes    published by a reader             the same
 *     4                     yes    there                             none
 *
 *   The next writer cannot know whether the byte is there: the one that it would count may be one
 *   that a reader is about to take. It writes another one, and DOUBT says that there may be one too
 *   many. No reader publishes in DOUBT, so the message is taken after that byte; and the reader
 *   that arms then takes bytes until none is left, or a writer begins: then DOUBT stays for the
 *   next time. A reader that died between b and c leaves DOUBT, set by the next one. A reader that
 *   finds a dead writer has read_lock and so knows: with the byte it publishes, and without it
 *   takes the message back. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/failed_call.h"
#include "channel/channel.h"
#include "platform/platform.h"

#ifndef RWF_NOWAIT
#define RWF_NOWAIT 0x00000008 /* of the kernel's interface; not in musl before 1.2.5 */
#endif

static int is_duplex(const mpshm_channel *end)
{
    return (int)end->mapping->header->duplex;
}

enum { WRITTEN = 1, DOUBT = 2, PUBLISHED = 4, BITS = 7 };

static uint64_t begun(uint64_t word)
{
    return word & ~(uint64_t)BITS;
}

static int write_byte(mpshm_channel *end, int fd)
{
    long rc;

    if (is_duplex(end))
        rc = MPSHM__RETRY(send(fd, "", 1, MSG_NOSIGNAL));
    else
        rc = MPSHM__RETRY(write(fd, "", 1));
    if (rc == 1)
        return 0;
    return errno == ECONNRESET ? -EPIPE : mpshm__failed("send or write");
}

int mpshm__wakeup_write(mpshm_channel *end, int fd, uint64_t to)
{
    struct mpshm__ring *ring = end->out.ring;
    uint64_t word = atomic_load_explicit(&ring->wakeup, memory_order_relaxed);

    while (!atomic_compare_exchange_weak(&ring->wakeup, &word, to | WRITTEN | (word & DOUBT)))
        ;
    if (word & WRITTEN)
        return 0;
    int rc = write_byte(end, fd);
    if (rc < 0) {
        uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
        word = atomic_load(&ring->wakeup);
        while (!atomic_compare_exchange_weak(&ring->wakeup, &word, tail | (word & DOUBT)))
            ;
    }
    return rc;
}

void mpshm__wakeup_begin(struct mpshm__ring *ring, uint64_t to)
{
    uint64_t word = atomic_load_explicit(&ring->wakeup, memory_order_relaxed);

    while (!atomic_compare_exchange_weak(&ring->wakeup, &word, to | (word & (WRITTEN | DOUBT))))
        ;
}

int mpshm__wakeup_is_begun(struct mpshm__ring *ring)
{
    uint64_t word = atomic_load(&ring->wakeup);

    return begun(word) > atomic_load(&ring->tail);
}

int mpshm__wakeup_is_unsettled(struct mpshm__ring *ring)
{
    uint64_t word = atomic_load(&ring->wakeup), head = atomic_load(&ring->head);

    return word != head && begun(word) == head;
}

static int has_byte(const mpshm_channel *end, int fd)
{
    char byte;
    struct pollfd poll_for = {.fd = fd, .events = POLLIN};

    if (is_duplex(end)) /* a closed socket is also readable */
        return MPSHM__RETRY(recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT)) == 1;
    return MPSHM__RETRY(poll(&poll_for, 1, 0)) == 1 && (poll_for.revents & POLLIN);
}

/* Take one byte if there is one: 1, without waiting: the program may have read it. */
static int take_byte(mpshm_channel *end, int fd)
{
    char byte;

    if (is_duplex(end))
        return MPSHM__RETRY(recv(fd, &byte, 1, MSG_DONTWAIT)) == 1;
    struct iovec to = {.iov_base = &byte, .iov_len = 1};
    /* preadv2, which musl has from 1.2.5 on only; both halves of the offset -1: as read. */
    long rc = MPSHM__RETRY(syscall(SYS_preadv2, fd, &to, 1, -1L, -1L, RWF_NOWAIT));
    if (rc >= 0 || errno == EAGAIN)
        return rc == 1;
    struct pollfd poll_for = {.fd = fd, .events = POLLIN}; /* older kernels */
    return MPSHM__RETRY(poll(&poll_for, 1, 0)) == 1 && (poll_for.revents & POLLIN) &&
           MPSHM__RETRY(read(fd, &byte, 1)) == 1;
}

/* Publish a message whose byte is there and whose writer has not moved tail. */
static void publish_begun(const mpshm_channel *end, int fd, uint64_t word)
{
    struct mpshm__ring *ring = end->in.ring;
    uint64_t tail = atomic_load(&ring->tail);

    if (begun(word) <= tail || !(word & WRITTEN) || (word & DOUBT))
        return;
    if (!(word & PUBLISHED) && (!has_byte(end, fd) || !atomic_compare_exchange_strong(
                                                          &ring->wakeup, &word, word | PUBLISHED)))
        return;
    /* It fails when the writer has moved it, perhaps further. */
    atomic_compare_exchange_strong(&ring->tail, &tail, begun(word));
}

/* Under read_lock: take the bytes that are too many, and end DOUBT. Deaths leave one or two; four
 * or more, the head of a message, are another program's, which uses the pipe as a connection. */
static void take_surplus(mpshm_channel *end, int fd, uint64_t head)
{
    enum { HEAD_OF_MESSAGE = 4 };
    uint64_t armed = head | DOUBT;
    int taken = 0;

    while (has_byte(end, fd) && atomic_load(&end->in.ring->wakeup) == armed && take_byte(end, fd))
        taken++;
    if (taken >= HEAD_OF_MESSAGE)
        atomic_store(&end->foreign, 1);
    atomic_compare_exchange_strong(&end->in.ring->wakeup, &armed, head);
}

void mpshm__wakeup_arm(mpshm_channel *end, int fd, int woken)
{
    struct mpshm__ring *ring = end->in.ring;
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    uint64_t word = atomic_load(&ring->wakeup);

    while (begun(word) == head && (word & WRITTEN))
        if (atomic_compare_exchange_strong(&ring->wakeup, &word, head | (word & DOUBT))) {
            take_byte(end, fd);
            word = head | (word & DOUBT);
        }
    /* The program itself may have written into the pipe. */
    if (woken && word == head && atomic_compare_exchange_strong(&ring->wakeup, &word, head | DOUBT))
        word = head | DOUBT;
    if (word == (head | DOUBT))
        take_surplus(end, fd, head);
    else if (begun(word) != head)
        publish_begun(end, fd, word);
}

void mpshm__wakeup_doubt(struct mpshm__ring *ring)
{
    atomic_fetch_or(&ring->wakeup, DOUBT);
}

void mpshm__wakeup_repair(mpshm_channel *end, int fd, enum mpshm__purpose purpose)
{
    struct mpshm__ring *ring = purpose == MPSHM__TO_WRITE ? end->out.ring : end->in.ring;
    uint64_t word = atomic_load(&ring->wakeup), tail, next;

    for (;;) {
        tail = atomic_load(&ring->tail);
        if (begun(word) == tail)
            return;
        if (word & PUBLISHED)
            break;
        if (purpose == MPSHM__TO_WRITE)
            next = word | WRITTEN | DOUBT;
        else if (purpose == MPSHM__TO_CHECK && has_byte(end, fd))
            next = word | PUBLISHED;
        else /* a reader that closes does not know whose byte it is */
            next = tail | DOUBT;
        if (atomic_compare_exchange_strong(&ring->wakeup, &word, next)) {
            word = next;
            break;
        }
    }
    if (purpose == MPSHM__TO_WRITE && !(word & PUBLISHED))
        write_byte(end, fd); /* without readers it fails, and so will the next message */
    if (begun(word) != tail)
        mpshm__ring_publish(ring, begun(word));
}
