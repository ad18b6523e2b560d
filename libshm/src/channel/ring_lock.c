/* The two locks of a ring, and the repair after a holder that died. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <time.h>

#include "base/clock.h"
#include "channel/channel.h"

/* How long one attempt waits before the binding may look for signals. */
enum { ATTEMPT_NS = 20 * 1000000, SECOND_NS = 1000000000 };

/* So that it can be weak where the headers do not have it. */
int pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until);

static pthread_mutex_t *mutex_of(mpshm_channel *end, enum mpshm__purpose purpose)
{
    switch (purpose) {
    case MPSHM__TO_WRITE:
        return &end->out.ring->write_lock;
    case MPSHM__TO_COUNT:
        return end->out.ring != NULL ? &end->out.ring->places : &end->in.ring->places;
    case MPSHM__TO_CHECK:
    case MPSHM__TO_CLOSE:
        return &end->in.ring->write_lock;
    default:
        return &end->in.ring->read_lock;
    }
}

void mpshm__abort_message(struct mpshm__view *view)
{
    /* A repair that died has taken the place that is kept for an ABORTED record. */
    struct mpshm__ring *ring = view->ring;

    if (!ring->large)
        return;
    if (atomic_load(&ring->tail) == ring->large_end) { /* it is whole */
        ring->large = 0;
        return;
    }
    if (mpshm__ring_room(ring) >= 0) {
        uint64_t to = mpshm__ring_write(view, (struct mpshm__record){.kind = MPSHM__ABORTED}, NULL);
        mpshm__wakeup_begin(ring, to);
        mpshm__ring_publish(ring, to);
    }
    /* The same if it is done twice. */
    uint64_t begun = atomic_load(&ring->sent) - ring->sent_before_large;
    atomic_store(&ring->aborts_end, atomic_load(&ring->tail));
    atomic_store(&ring->aborts, ring->aborts_before_large + begun);
    ring->large = 0;
}

/* The lock is taken, and its last holder died: 0. */
static int repair(mpshm_channel *end, enum mpshm__purpose purpose, int fd)
{
    pthread_mutex_consistent(mutex_of(end, purpose));
    if (purpose == MPSHM__TO_READ) {
        mpshm__wakeup_doubt(end->in.ring); /* skip_rest() removes the rest of its message */
    } else if (purpose == MPSHM__TO_COUNT) {
        if (end->out.ring != NULL)
            mpshm__repair_after_writer(end, fd); /* it had both locks */
    } else {
        struct mpshm__view *view = purpose == MPSHM__TO_WRITE ? &end->out : &end->in;
        mpshm__wakeup_repair(end, fd, purpose);
        mpshm__ring_recount(view);
        mpshm__abort_message(view);
    }
    return 0;
}

void mpshm__repair_after_writer(mpshm_channel *end, int fd)
{
    int err = pthread_mutex_trylock(mutex_of(end, MPSHM__TO_WRITE));

    if (err == EOWNERDEAD)
        err = repair(end, MPSHM__TO_WRITE, fd);
    if (err == 0)
        mpshm__channel_unlock(end, MPSHM__TO_WRITE);
}

/* musl has no such function, and glibc before 2.30. */
#pragma weak pthread_mutex_clocklock

/* The thread sanitizer takes no notice of it. */
#ifdef __SANITIZE_THREAD__
#define HAS_CLOCKLOCK 0
#else
#define HAS_CLOCKLOCK (pthread_mutex_clocklock != NULL)
#endif

/* Wait for a lock by the monotonic clock, which nobody sets. */
static int lock_within(pthread_mutex_t *mutex, uint64_t ns)
{
    uint64_t deadline = mpshm__deadline(ns);
    struct timespec until = {.tv_sec = (time_t)(deadline / SECOND_NS),
                             .tv_nsec = (long)(deadline % SECOND_NS)};
    int err = EBUSY;

    if (HAS_CLOCKLOCK)
        return pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &until);
    while (err == EBUSY && mpshm__remaining(deadline, 1) > 0) {
        mpshm__sleep_ms(1);
        err = pthread_mutex_trylock(mutex);
    }
    return err;
}

int mpshm__channel_lock(mpshm_channel *end, enum mpshm__purpose purpose, int fd, uint64_t deadline,
                        const mpshm_waiter *waiter)
{
    pthread_mutex_t *mutex = mutex_of(end, purpose);
    int err = pthread_mutex_trylock(mutex), rc = 0;

    /* A holder copies some KiB: it will be ready before a sleep would end. */
    for (int i = 0; err == EBUSY && i < 50; i++) {
        mpshm__relax();
        err = pthread_mutex_trylock(mutex);
    }
    /* With one processor, a reader may have woken while its writer is about to publish. */
    for (int i = 0; err == EBUSY && i < 4; i++) {
        sched_yield();
        err = pthread_mutex_trylock(mutex);
    }
    while (rc >= 0 && (err == EBUSY || err == ETIMEDOUT)) {
        uint64_t ns = mpshm__remaining(deadline, ATTEMPT_NS);
        if (ns == 0)
            return -EAGAIN;
        waiter->begin_wait(waiter->self);
        err = lock_within(mutex, ns);
        if (err == EOWNERDEAD) /* before a signal handler may close the descriptor */
            err = repair(end, purpose, fd);
        rc = waiter->end_wait(waiter->self);
    }
    if (err == EOWNERDEAD)
        err = repair(end, purpose, fd);
    if (rc < 0 && err == 0)
        pthread_mutex_unlock(mutex);
    return rc < 0 ? rc : -err;
}

void mpshm__channel_unlock(mpshm_channel *end, enum mpshm__purpose purpose)
{
    pthread_mutex_unlock(mutex_of(end, purpose));
}

int mpshm__writer_is_at_work(mpshm_channel *end, int fd)
{
    int err = pthread_mutex_trylock(mutex_of(end, MPSHM__TO_CHECK));

    if (err == EOWNERDEAD)
        repair(end, MPSHM__TO_CHECK, fd);
    if (err == 0 || err == EOWNERDEAD)
        mpshm__channel_unlock(end, MPSHM__TO_CHECK);
    return err == EBUSY;
}
