/* Waiting for a message and for room: first a spin, then a sleep.
 *
 * base/spin.c says when a wait spins. A writer with a full ring spins as well, also one that must
 * not sleep: the next thing that it would do is to wake a thread that sleeps for it.
 *
 * Note [Who tells a sleeper]
 *   A reader sleeps in poll() on the pipe: the wake-up byte or the hang-up wakes it. A writer
 * without room and a reader between the records of a large message sleep on a futex, which a death
 * does not wake; so they look for it, the writer four times a second. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/failed_call.h"
#include "channel/channel.h"
#include "platform/linux/futex.h"
#include "platform/platform.h"

enum { PART_NS = 20000000 };

static int has_record(void *ring, uint64_t unused)
{
    (void)unused;
    return !mpshm__ring_is_empty(ring);
}

static int has_room(void *ring, uint64_t nbytes)
{
    return mpshm__ring_room(ring) >= (int64_t)nbytes;
}

mpshm_waiter mpshm__without_handlers(const mpshm_waiter *waiter)
{
    mpshm_waiter made = *waiter;

    if (made.resume != NULL)
        made.end_wait = made.resume;
    return made;
}

int mpshm__spin_for(struct mpshm__spin *spin, const struct mpshm__awaited *awaited, unsigned times,
                    uint64_t deadline, const mpshm_waiter *waiter)
{
    uint64_t length = mpshm__spin_length(spin, awaited);
    uint64_t most = length == 0 ? 0 : mpshm__remaining(deadline, times * length);

    if (most == 0)
        return 0;
    waiter->begin_wait(waiter->self);
    int found = mpshm__spin(spin, awaited, most);
    int rc = waiter->end_wait(waiter->self);
    return rc < 0 ? rc : found;
}

int mpshm__poll(struct pollfd *polled, int count, uint64_t ns, const mpshm_waiter *waiter)
{
    struct timespec until = {.tv_sec = (time_t)(ns / 1000000000),
                             .tv_nsec = (long)(ns % 1000000000)};

    waiter->begin_wait(waiter->self);
    int rc = ppoll(polled, (nfds_t)count, ns == UINT64_MAX ? NULL : &until, NULL);
    int err = errno, given_up = waiter->end_wait(waiter->self);

    if (given_up < 0 || rc >= 0)
        return given_up < 0 ? given_up : rc;
    errno = err; /* end_wait may have changed it */
    return err == EINTR ? -EINTR : mpshm__failed("ppoll");
}

/* Sleep until the descriptor is readable, or a signal: 1, 0 when the pipe has hung up, -EAGAIN at
 * the deadline. */
static int sleep_on(int fd, uint64_t deadline, const mpshm_waiter *waiter)
{
    struct pollfd poll_for = {.fd = fd, .events = POLLIN | POLLRDHUP};
    int n = mpshm__poll(&poll_for, 1, mpshm__remaining(deadline, UINT64_MAX), waiter);

    if (n <= 0)
        return n == 0 ? -EAGAIN : n == -EINTR ? 1 : n;
    if (poll_for.revents & POLLNVAL)
        return -EBADF;
    return poll_for.revents & (POLLHUP | POLLERR | POLLRDHUP) ? 0 : 1;
}

int mpshm__wait_for_record(mpshm_channel *end, int fd, uint64_t deadline,
                           const mpshm_waiter *waiter)
{
    struct mpshm__ring *ring = end->in.ring;

    if (mpshm__ring_has_record(&end->in))
        return 1;
    struct mpshm__awaited record = {.has = has_record, .of = ring, .cpu = &ring->writer_cpu};
    int rc = mpshm__spin_for(&end->for_record, &record, 1, deadline, waiter);
    if (rc != 0)
        return rc;
    uint64_t look = MPSHM__FIRST_LOOK_NS;
    int woken = 1;
    for (int idle = 0;; idle++) {
        /* A reader keeps the lock while the parts of a large message pass: look in between. */
        uint64_t until = mpshm__now_ns() + mpshm__remaining(deadline, look);
        rc = mpshm__channel_lock(end, MPSHM__TO_READ, fd, until, waiter);
        if (rc == 0) {
            if (mpshm__ring_is_empty(ring))
                mpshm__wakeup_arm(end, fd, idle > 0);
            mpshm__channel_unlock(end, MPSHM__TO_READ);
        } else if (rc != -EAGAIN && rc != -EDEADLK) {
            return rc; /* a signal handler has raised: the message, if there is one, stays */
        }
        if (!mpshm__ring_is_empty(ring))
            return 1;
        if (rc == 0 && atomic_load(&end->foreign)) { /* the binding says so */
            waiter->begin_wait(waiter->self);
            if ((rc = waiter->end_wait(waiter->self)) < 0)
                return rc;
        }
        /* The last writer may have been killed just before it published, or the deadline came. */
        if (woken <= 0)
            return woken;
        if (rc == -EAGAIN && mpshm__remaining(deadline, look) > 0) {
            look = look < (uint64_t)MPSHM__LOOK_NS ? look * 2 : MPSHM__LOOK_NS;
            continue;
        }
        if (rc < 0)
            return rc;
        if (idle >= 16)
            mpshm__sleep_ms(1);
        woken = sleep_on(fd, deadline, waiter);
        if (!mpshm__ring_is_empty(ring) && (woken >= 0 || woken == -EAGAIN))
            return 1;
        /* At the end of the file it looks once more: bytes of another program may be left. */
        if (woken < 0 && (woken != -EAGAIN || !mpshm__wakeup_is_begun(ring)))
            return woken;
    }
}

/* Sleep while the flag is 1. The sleeper has set it, and whoever clears it wakes: a sleep on tail
 * or head could begin just after a waker has cleared the flag for an earlier sleeper. */
int mpshm__sleep_on_flag(_Atomic uint32_t *flag, uint64_t ns, const mpshm_waiter *waiter)
{
    waiter->begin_wait(waiter->self);
    mpshm__futex_wait_for(flag, 1, ns);
    return waiter->end_wait(waiter->self);
}

int mpshm__wait_for_part(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    struct mpshm__ring *ring = end->in.ring;

    struct mpshm__awaited part = {.has = has_record, .of = ring, .cpu = &ring->writer_cpu};
    if (has_record(ring, 0) ||
        mpshm__spin(&end->for_part, &part, mpshm__spin_length(&end->for_part, &part)))
        return 1;
    for (;;) {
        atomic_store(&ring->part_wanted, 1);
        if (!mpshm__ring_is_empty(ring))
            return 1;
        int rc = mpshm__sleep_on_flag(&ring->part_wanted, PART_NS, waiter);
        if (rc < 0)
            return rc;
        if (!mpshm__ring_is_empty(ring))
            return 1;
        if (!mpshm__writer_is_at_work(end, fd) && mpshm__ring_is_empty(ring))
            return 0;
    }
}

int mpshm__channel_has_reader(int fd)
{
    struct pollfd poll_for = {.fd = fd, .events = 0};

    if (MPSHM__RETRY(poll(&poll_for, 1, 0)) <= 0)
        return 0;
    return poll_for.revents & POLLNVAL ? -EBADF : -EPIPE;
}

int mpshm__wait_for_room(mpshm_channel *end, int fd, uint64_t need, uint64_t deadline,
                         const mpshm_waiter *waiter)
{
    struct mpshm__ring *ring = end->out.ring;

    if (has_room(ring, need))
        return 0;
    struct mpshm__awaited room = {
        .has = has_room, .of = ring, .value = need, .cpu = &ring->reader_cpu};
    int rc = mpshm__spin_for(&end->for_room, &room, 1, MPSHM__FOREVER, waiter);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    for (;;) {
        uint64_t ns = mpshm__remaining(deadline, MPSHM__LOOK_NS);
        if (ns > 0)
            atomic_store(&ring->room_wanted, 1);
        if (mpshm__ring_room(ring) >= (int64_t)need)
            return 0;
        rc = mpshm__channel_has_reader(fd);
        if (rc < 0)
            return rc;
        if (ns == 0)
            return -EAGAIN;
        rc = mpshm__sleep_on_flag(&ring->room_wanted, ns, waiter);
        if (rc < 0 || mpshm__ring_room(ring) >= (int64_t)need)
            return rc;
    }
}

void mpshm_channel_wake_senders(mpshm_channel *end)
{
    if (end->out.ring == NULL)
        return;
    mpshm__futex_wake(&end->out.ring->room_wanted);
    mpshm__futex_wake(&end->out.ring->place_wanted);
}

void mpshm__wakeup_settle(mpshm_channel *end, int fd)
{
    struct mpshm__ring *ring = end->in.ring;
    mpshm_waiter none = {0};

    while (mpshm__ring_is_empty(ring)) {
        if (!mpshm__wakeup_is_unsettled(ring))
            return;
        /* Another reader that has the lock comes here when it gives it back. */
        if (mpshm__channel_lock(end, MPSHM__TO_READ, fd, 1, &none) < 0)
            return;
        if (mpshm__ring_is_empty(ring))
            mpshm__wakeup_arm(end, fd, 0);
        mpshm__channel_unlock(end, MPSHM__TO_READ);
    }
}
