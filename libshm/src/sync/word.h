/* A word that excludes, and that outlives its owner: see word.c. */
#ifndef MPSHM_WORD_H
#define MPSHM_WORD_H

#include <errno.h>

#include "base/clock.h"
#include "base/spin.h"
#include "platform/linux/futex.h"
#include "sync/owner.h"

static inline int mpshm__word_try(_Atomic uint32_t *word, uint32_t me)
{
    uint32_t is_free = 0;

    return atomic_compare_exchange_strong_explicit(word, &is_free, me, memory_order_acquire,
                                                   memory_order_relaxed)
               ? 0
               : -EAGAIN;
}

/* -EPERM when nobody had it. */
static inline int mpshm__word_release(_Atomic uint32_t *word)
{
    uint32_t before = atomic_exchange_explicit(word, 0, memory_order_release);

    if (before & MPSHM__WAITERS)
        mpshm__futex_wake_one(word);
    return before == 0 ? -EPERM : 0;
}

/* Before a sleep: spin until has(of, value) or the time `until`, if that has paid lately. 1 when it
 * has. */
int mpshm__sync_spin(struct mpshm__sync *sync, int (*has)(void *, uint64_t), void *of,
                     uint64_t value, uint64_t until);

/* Take the word from a dead owner: MPSHM_OWNER_DIED, or -EAGAIN when its owner lives. */
int mpshm__word_take_over(struct mpshm__session *session, _Atomic uint32_t *word);
/* Wait for the word of a lock until the time `until`. 0, MPSHM_OWNER_DIED, -ETIMEDOUT or -EINTR. */
int mpshm__word_wait(struct mpshm__session *session, struct mpshm__sync *sync, uint64_t until);

/* The guard of a structure, a word that is held for some nanoseconds. Nobody is woken when it
 * becomes free, so giving it back is one plain store. 0 or MPSHM_OWNER_DIED; with MPSHM_NOWAIT also
 * -EBUSY, after some attempts. */
int mpshm__guard_contended(struct mpshm__session *session, _Atomic uint32_t *word, int flags);
static inline int mpshm__guard(struct mpshm__session *session, _Atomic uint32_t *word, int flags)
{
    return mpshm__word_try(word, mpshm__me(session)) == 0
               ? 0
               : mpshm__guard_contended(session, word, flags);
}
static inline void mpshm__unguard(_Atomic uint32_t *word)
{
    atomic_store_explicit(word, 0, memory_order_release);
}

/* How long one sleep may take, in nanoseconds: it begins small and is four times as long each time, up to the longest. A
 * wake-up is lost with the process that had to make it, so no sleep is unbounded. `slept` says that one has ended. */
struct mpshm__sleep {
    uint64_t next, until;
    int slept;
};
enum { MPSHM__FIRST_SLEEP_NS = 2000000, MPSHM__LONGEST_SLEEP_NS = 100000000 };
static inline struct mpshm__sleep mpshm__sleep_until(uint64_t until)
{
    return (struct mpshm__sleep){.next = MPSHM__FIRST_SLEEP_NS, .until = until};
}
static inline struct mpshm__sleep mpshm__sleep_for(uint64_t timeout_ns)
{
    return mpshm__sleep_until(timeout_ns == 0 ? 1
                                              : mpshm__deadline(timeout_ns)); /* 0 is no limit */
}
/* Sleep while `*word` is `value`: 0 after a wake-up, 1 when it is time to look for the dead,
 * -ETIMEDOUT or -EINTR. See Note [A signal between two sleeps]. */
int mpshm__sleep(struct mpshm__sleep *sleep, _Atomic uint32_t *word, uint32_t value);

/* Look for the dead among the owners of an object: when it begins, or 0 if another has looked just
 * now. See Note [Looks]. */
uint64_t mpshm__look_begins(_Atomic uint32_t *next);
void mpshm__look_ends(_Atomic uint32_t *next, uint64_t began);

#endif
