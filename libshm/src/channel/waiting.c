/* Waiting for a message and for room: first a spin, then a sleep.
 *
 * Note [When to spin]
 *   A sleep and its wake-up cost some 50 us, so a short spin pays if the answer comes sooner. A
 *   wait spins for `spin_ns`. Success doubles it up to the ceiling (MP_SPIN_US), failure quarters
 *   it down to nothing. Then a wait tries the ceiling again after 2 waits, after 4 more, and so on
 *   up to 64: on a busy machine, whose peers are not running, nearly all waits sleep at once, and
 *   two processes that begin to talk after a pause are both soon awake. With one processor in
 *   the affinity mask nothing spins.
 *
 *   A writer with a full ring spins as well, also one that must not sleep: the next thing that it
 *   would do is to wake a thread that sleeps for it.
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
#include "channel/channel.h"
#include "platform/linux/futex.h"
#include "platform/platform.h"

enum {
    CEILING_US = 50,
    LEAST_NS = 2000,
    MOST_SKIPPED = 64,
    LOOK_NS = 250 * 1000000,
    PART_NS = 20000000,
    PATIENCE_NS = 1000000
};

void mpshm__relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint64_t ceiling_ns(void)
{
    static _Atomic int64_t known = -1;
    int64_t ns = atomic_load_explicit(&known, memory_order_relaxed);

    if (ns < 0) {
        const char *text = getenv("MP_SPIN_US");
        char *rest;
        long us = text != NULL && *text != 0 ? strtol(text, &rest, 10) : CEILING_US;
        if (us < 0 || us > 1000000)
            us = CEILING_US;
        ns = (int64_t)us * 1000;
        atomic_store_explicit(&known, ns, memory_order_relaxed);
    }
    return (uint64_t)ns;
}

static int has_other_cpu(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) != 0 || CPU_COUNT(&set) > 1;
}

/* 1 when the last writer ran on another processor. Before the first message: when there is another.
 */
static int writer_runs_beside(mpshm_channel *end)
{
    uint32_t cpu = atomic_load_explicit(&end->in.ring->writer_cpu, memory_order_relaxed);

    return cpu != 0 ? cpu != (uint32_t)sched_getcpu() + 1 : has_other_cpu();
}

uint64_t mpshm__remaining(uint64_t deadline, uint64_t most)
{
    if (deadline == MPSHM__FOREVER)
        return most;
    uint64_t now = mpshm__now_ns();
    if (now >= deadline)
        return 0;
    return deadline - now < most ? deadline - now : most;
}

/* Decide whether this wait spins. */
static int may_spin(struct mpshm__patience *patience)
{
    if (patience->spin_ns == 0) {
        uint32_t to_skip = patience->to_skip;
        if (to_skip > 0) {
            patience->to_skip = to_skip - 1;
            return 0;
        }
        uint32_t before = patience->skipped;
        patience->skipped = before < MOST_SKIPPED / 2 ? before * 2 + 2 : MOST_SKIPPED;
        patience->to_skip = patience->skipped;
        patience->spin_ns = ceiling_ns();
    }
    return patience->spin_ns > 0;
}

static int has_record(mpshm_channel *end, uint64_t unused)
{
    (void)unused;
    return !mpshm__ring_is_empty(end->in.ring);
}

static int has_room(mpshm_channel *end, uint64_t nbytes)
{
    return mpshm__ring_room(end->out.ring) >= (int64_t)nbytes;
}

/* Spin until the end has what it waits for: 1, or 0 when that took longer than `most`. */
static int spin(mpshm_channel *end, struct mpshm__patience *patience,
                int (*has)(mpshm_channel *, uint64_t), uint64_t nbytes, uint64_t most)
{
    uint64_t ceiling = ceiling_ns();
    if (most == 0)
        return 0;
    uint64_t start = mpshm__now_ns();
    do
        for (int i = 0; i < 32; i++) {
            if (has(end, nbytes)) {
                uint64_t longer = patience->spin_ns * 2;
                patience->spin_ns = longer < ceiling ? longer : ceiling;
                if (patience->skipped != 0)
                    patience->to_skip = patience->skipped = 0;
                return 1;
            }
            mpshm__relax();
        }
    while (mpshm__now_ns() - start < most);
    uint64_t shorter = patience->spin_ns / 4;
    patience->spin_ns = shorter < LEAST_NS ? 0 : shorter;
    return 0;
}

mpshm_waiter mpshm__without_handlers(const mpshm_waiter *waiter)
{
    mpshm_waiter made = *waiter;

    if (made.resume != NULL)
        made.end_wait = made.resume;
    return made;
}

/* Sleep until the descriptor is readable: 1, 0 when the pipe has hung up, -EAGAIN at the deadline.
 */
static int sleep_on(int fd, uint64_t deadline, const mpshm_waiter *waiter)
{
    struct pollfd poll_for = {.fd = fd, .events = POLLIN | POLLRDHUP};
    struct timespec until, *timeout = NULL;
    int n, rc = 0;

    if (deadline != MPSHM__FOREVER) {
        uint64_t ns = mpshm__remaining(deadline, UINT64_MAX);
        until = (struct timespec){.tv_sec = (time_t)(ns / 1000000000),
                                  .tv_nsec = (long)(ns % 1000000000)};
        timeout = &until;
    }
    waiter->begin_wait(waiter->self);
    n = ppoll(&poll_for, 1, timeout, NULL);
    int err = errno;
    rc = waiter->end_wait(waiter->self);
    if (rc < 0)
        return rc;
    if (n < 0)
        return err == EINTR ? 1 : -err;
    if (n == 0)
        return -EAGAIN;
    if (poll_for.revents & POLLNVAL)
        return -EBADF;
    return poll_for.revents & (POLLHUP | POLLERR | POLLRDHUP) ? 0 : 1;
}

int mpshm__wait_for_record(mpshm_channel *end, int fd, uint64_t deadline,
                           const mpshm_waiter *waiter)
{
    struct mpshm__ring *ring = end->in.ring;
    int rc;

    if (mpshm__ring_has_record(&end->in))
        return 1;
    if (may_spin(&end->for_record) && writer_runs_beside(end)) {
        uint64_t most = mpshm__remaining(deadline, end->for_record.spin_ns);
        waiter->begin_wait(waiter->self);
        int found = spin(end, &end->for_record, has_record, 0, most);
        rc = waiter->end_wait(waiter->self);
        if (found || rc < 0)
            return rc < 0 ? rc : 1;
    }
    uint64_t patience = PATIENCE_NS;
    for (int idle = 0;; idle++) {
        /* A writer keeps the lock while the parts of a large message pass: look in between. */
        uint64_t until = mpshm__now_ns() + mpshm__remaining(deadline, patience);
        rc = mpshm__channel_lock(end, MPSHM__TO_ARM, fd, until, waiter);
        if (rc == 0) {
            if (mpshm__ring_is_empty(ring))
                mpshm__wakeup_arm(end, fd);
            mpshm__channel_unlock(end, MPSHM__TO_ARM);
        } else if (rc != -EAGAIN && rc != -EDEADLK) {
            return rc; /* a signal handler has raised: the message, if there is one, stays */
        }
        if (!mpshm__ring_is_empty(ring))
            return 1;
        if (rc == -EAGAIN && mpshm__remaining(deadline, patience) > 0) {
            patience = patience < LOOK_NS ? patience * 2 : LOOK_NS;
            continue;
        }
        if (rc < 0)
            return rc;
        rc = sleep_on(fd, deadline, waiter);
        if (rc < 0 && rc != -EAGAIN)
            return rc;
        /* The byte comes just before the message: give its writer the time to publish. */
        for (int i = 0; rc == 1 && i < 24 && mpshm__ring_is_empty(ring); i++)
            if (i < 20)
                mpshm__relax();
            else
                sched_yield();
        /* The last writer may have published just before it hung up, or before the deadline. */
        if (!mpshm__ring_is_empty(ring))
            return 1;
        if (rc <= 0)
            return rc;
        if (idle >= 16)
            mpshm__sleep_ms(1); /* the program itself has written into the pipe */
    }
}

/* Sleep while the flag is 1. The sleeper has set it, and whoever clears it wakes: a sleep on tail
 * or head could begin just after a waker has cleared the flag for an earlier sleeper. */
static int sleep_on_flag(_Atomic uint32_t *flag, uint64_t ns, const mpshm_waiter *waiter)
{
    waiter->begin_wait(waiter->self);
    mpshm__futex_wait_for(flag, 1, ns);
    return waiter->end_wait(waiter->self);
}

int mpshm__wait_for_part(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    struct mpshm__ring *ring = end->in.ring;

    for (int i = 0; i < 2000; i++) {
        if (!mpshm__ring_is_empty(ring))
            return 1;
        mpshm__relax();
    }
    for (;;) {
        atomic_store(&ring->part_wanted, 1);
        if (!mpshm__ring_is_empty(ring))
            return 1;
        int rc = sleep_on_flag(&ring->part_wanted, PART_NS, waiter);
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

    if (has_room(end, need))
        return 0;
    if (may_spin(&end->for_room) && has_other_cpu()) {
        waiter->begin_wait(waiter->self);
        int found = spin(end, &end->for_room, has_room, need, end->for_room.spin_ns);
        int rc = waiter->end_wait(waiter->self);
        if (found || rc < 0)
            return rc;
    }
    for (;;) {
        uint64_t ns = mpshm__remaining(deadline, LOOK_NS);
        if (ns > 0)
            atomic_store(&ring->room_wanted, 1);
        if (mpshm__ring_room(ring) >= (int64_t)need)
            return 0;
        int rc = mpshm__channel_has_reader(fd);
        if (rc < 0)
            return rc;
        if (ns == 0)
            return -EAGAIN;
        rc = sleep_on_flag(&ring->room_wanted, ns, waiter);
        if (rc < 0 || mpshm__ring_room(ring) >= (int64_t)need)
            return rc;
    }
}
