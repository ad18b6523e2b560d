/* The two locks of a ring, and the repair after a holder that died. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <time.h>

#include "base/clock.h"
#include "channel/channel.h"

/* How long one attempt waits before the binding may look for signals. */
enum { ATTEMPT_NS = 20 * 1000000, SECOND_NS = 1000000000 };

static pthread_mutex_t *mutex_of(mpshm_channel *end, enum mpshm__purpose purpose)
{
    switch (purpose) {
    case MPSHM__TO_WRITE:
        return &end->out.ring->write_lock;
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
    if (view->ring->large && mpshm__ring_room(view->ring) >= 0) {
        uint64_t to = mpshm__ring_write(view, (struct mpshm__record){.kind = MPSHM__ABORTED}, NULL);
        mpshm__wakeup_begin(view->ring, to);
        mpshm__ring_publish(view->ring, to);
    }
    view->ring->large = 0;
}

/* The lock is taken, and its last holder died: 0. */
static int repair(mpshm_channel *end, enum mpshm__purpose purpose, int fd)
{
    pthread_mutex_consistent(mutex_of(end, purpose));
    if (purpose == MPSHM__TO_READ) {
        mpshm__wakeup_doubt(end->in.ring); /* skip_rest() removes the rest of its message */
    } else {
        mpshm__wakeup_repair(end, fd, purpose);
        mpshm__abort_message(purpose == MPSHM__TO_WRITE ? &end->out : &end->in);
    }
    return 0;
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
        struct timespec until;
        uint64_t ns = mpshm__remaining(deadline, ATTEMPT_NS);
        if (ns == 0)
            return -EAGAIN;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += (long)ns;
        if (until.tv_nsec >= SECOND_NS) {
            until.tv_sec++;
            until.tv_nsec -= SECOND_NS;
        }
        waiter->begin_wait(waiter->self);
        err = pthread_mutex_timedlock(mutex, &until);
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
