/* A word in shared memory that one process owns at a time, and that is not lost with its owner.
 *
 * Note [What if it dies here]
 *
 *   the owner                     the next process that looks finds its slot unlocked and exchanges
 *                                 its word for its own: exactly one succeeds
 *   the owner, word released,     the word is free; the sleepers look again when their sleep ends,
 *   before the wake-up            after 100 ms at most
 *   a waiter that was woken       likewise
 *   a waiter, anywhere else       nothing: it leaves no mark but the bit that makes one release
 *                                 wake in vain
 *   the owner forks               the word still names the parent; the child owns nothing
 *   the owner is stopped          it lives, and the others wait
 *
 *   No step needs the manager. */
#include <time.h>

#include "base/clock.h"
#include "sync/word.h"

int mpshm__sleep(struct mpshm__sleep *sleep, _Atomic uint32_t *word, uint32_t value)
{
    uint64_t span = sleep->next;
    int err, last = 0;

    if (sleep->until != MPSHM__FOREVER) {
        uint64_t now = mpshm__now_ns();
        if (now >= sleep->until)
            return -ETIMEDOUT;
        if (sleep->until - now <= span) {
            span = sleep->until - now;
            last = 1;
        }
    }
    err = mpshm__futex_wait_for(word, value, span);
    if (err == -EINTR)
        return err;
    if (err != -ETIMEDOUT)
        return 0;
    if (!last)
        sleep->next = sleep->next * 2 < sleep->most ? sleep->next * 2 : sleep->most;
    return 1;
}

int mpshm__word_take_over(struct mpshm__session *session, _Atomic uint32_t *word)
{
    uint32_t owner = atomic_load(word);

    if ((owner & ~MPSHM__WAITERS) == 0 || !mpshm__owner_is_dead(session, owner))
        return -EAGAIN;
    return atomic_compare_exchange_strong(word, &owner, mpshm__me(session) | MPSHM__WAITERS)
               ? MPSHM_OWNER_DIED
               : -EAGAIN;
}

int mpshm__word_wait(struct mpshm__session *session, _Atomic uint32_t *word, uint64_t until)
{
    struct mpshm__sleep sleep = mpshm__sleep_until(until);

    for (;;) {
        uint32_t owner = atomic_load(word);
        int rc;
        if ((owner & ~MPSHM__WAITERS) == 0) {
            /* Others may sleep as well, so the release has to wake one. */
            if (atomic_compare_exchange_strong(word, &owner, mpshm__me(session) | MPSHM__WAITERS))
                return 0;
            continue;
        }
        if (!(owner & MPSHM__WAITERS) &&
            !atomic_compare_exchange_strong(word, &owner, owner | MPSHM__WAITERS))
            continue;
        rc = mpshm__sleep(&sleep, word, owner | MPSHM__WAITERS);
        if (rc == 1)
            rc = mpshm__word_take_over(session, word);
        if (rc == MPSHM_OWNER_DIED || rc == -EINTR || rc == -ETIMEDOUT)
            return rc;
    }
}

int mpshm__guard_slow(struct mpshm__session *session, _Atomic uint32_t *word, int flags)
{
    enum { SPINS = 200, FIRST_NS = 50000, LONGEST_NS = 5000000 };
    uint32_t me = mpshm__me(session);

    for (int i = 0; i < SPINS; i++)
        if (atomic_load_explicit(word, memory_order_relaxed) == 0 && mpshm__word_try(word, me) == 0)
            return 0;
    /* Its owner is not running, or has died. */
    for (long ns = FIRST_NS;; ns = ns * 2 < LONGEST_NS ? ns * 2 : LONGEST_NS) {
        uint32_t owner = atomic_load(word);
        if (owner == 0) {
            if (mpshm__word_try(word, me) == 0)
                return 0;
        } else if (mpshm__owner_is_dead(session, owner)) {
            if (atomic_compare_exchange_strong(word, &owner, me))
                return MPSHM_OWNER_DIED;
        } else {
            struct timespec span = {.tv_nsec = ns};
            if (flags & MPSHM_NOWAIT)
                return -EBUSY;
            nanosleep(&span, NULL);
        }
    }
}
