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
 *   No step needs the manager.
 *
 * Note [Looks]
 *   An object with many owners, a semaphore or a barrier, is looked at as a whole: a question to
 *   the kernel for each. If each of N waiters asked for N owners ten times a second, 300 of them
 *   would keep two processors busy. So one looks for all, and `next_look` says when the next may:
 *   after fifty times as long as the last took, at most after 100 ms. A process that begins sets
 *   that to 100 ms from now, and so a kill in its look delays the next one no longer. The time is
 *   that of the kernel's clock in 2^16 ns, modulo 2^32; one that is too far ahead, as of a process
 *   in another time namespace, is none.
 *
 * Note [A signal between two sleeps]
 *   A signal interrupts a sleep. One that comes while the thread is awake between two of them, or
 *   before the first, interrupts nothing: a program whose handlers run when the call returns, as
 *   Python's, would not hear of a Ctrl-C before another comes. It asks for a return after each sleep
 *   (mpshm_sync_return_from_sleeps), and calls again. The next call of the thread for the same word
 *   goes on: it does not spin, and sleeps as long as it would have. What a wait must not forget
 *   meanwhile is the caller's: a waiter's place, and the round of an event. */
#include <time.h>

#include "base/clock.h"
#include "sync/word.h"

static _Atomic int returns_from_sleeps;
/* The wait that the last call of this thread has left, and its next sleep. */
static _Thread_local struct {
    const _Atomic uint32_t *word;
    uint64_t next;
} left;

void mpshm_sync_return_from_sleeps(int whether)
{
    atomic_store(&returns_from_sleeps, whether);
}

int mpshm__sleep(struct mpshm__sleep *sleep, _Atomic uint32_t *word, uint32_t value)
{
    if (left.word == word)
        sleep->next = left.next;
    left.word = NULL;
    uint64_t span = mpshm__remaining(sleep->until, sleep->next);

    if (span == 0)
        return -ETIMEDOUT;
    if (sleep->slept && atomic_load_explicit(&returns_from_sleeps, memory_order_relaxed)) {
        left.word = word;
        left.next = sleep->next;
        return -EINTR;
    }
    int err = mpshm__futex_wait_for(word, value, span);
    if (err == -EINTR)
        return err;
    if (err != -ETIMEDOUT)
        return 0;
    sleep->slept = 1;
    sleep->next =
        sleep->next * 4 < MPSHM__LONGEST_SLEEP_NS ? sleep->next * 4 : MPSHM__LONGEST_SLEEP_NS;
    return 1;
}

enum { TICK_BITS = 16, PAUSE = 50 };

uint64_t mpshm__look_begins(_Atomic uint32_t *next)
{
    enum { LONGEST = MPSHM__LONGEST_SLEEP_NS >> TICK_BITS };
    uint64_t now = mpshm__now_ns();
    uint32_t due = atomic_load(next), tick = (uint32_t)(now >> TICK_BITS), ahead = due - tick;

    if (ahead - 1 < LONGEST || !atomic_compare_exchange_strong(next, &due, tick + LONGEST))
        return 0;
    return now;
}

void mpshm__look_ends(_Atomic uint32_t *next, uint64_t began)
{
    uint64_t now = mpshm__now_ns(), pause = (now - began) * PAUSE;

    if (pause > MPSHM__LONGEST_SLEEP_NS)
        pause = MPSHM__LONGEST_SLEEP_NS;
    atomic_store(next, (uint32_t)((now + pause) >> TICK_BITS));
}

/* How long a wait at an object spins is known to each process. Two objects may share an entry: then
 * the spins of one make those of the other shorter. */
static struct mpshm__spin *spin_of(const struct mpshm__sync *sync)
{
    enum { BITS = 6 };
    static struct mpshm__spin spins[1 << BITS];

    return &spins[((uint64_t)(uintptr_t)sync * 0x9e3779b97f4a7c15u) >> (64 - BITS)];
}

int mpshm__sync_spin(struct mpshm__sync *sync, int (*has)(void *, uint64_t), void *of,
                     uint64_t value, uint64_t until)
{
    struct mpshm__awaited awaited = {.has = has, .of = of, .value = value, .cpu = &sync->cpu};
    struct mpshm__spin *spin = spin_of(sync);
    uint64_t most = left.word == NULL ? mpshm__spin_length(spin, &awaited) : 0;

    if (most > 0)
        most = mpshm__remaining(until, most);
    return mpshm__spin(spin, &awaited, most);
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

static int is_taken(void *word, uint64_t me)
{
    return atomic_load_explicit((_Atomic uint32_t *)word, memory_order_relaxed) == 0 &&
           mpshm__word_try(word, (uint32_t)me) == 0;
}

int mpshm__word_wait(struct mpshm__session *session, struct mpshm__sync *sync, uint64_t until)
{
    _Atomic uint32_t *word = &sync->word;
    struct mpshm__sleep sleep = mpshm__sleep_until(until);

    if (mpshm__sync_spin(sync, is_taken, word, mpshm__me(session), until))
        return 0;

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

int mpshm__guard_contended(struct mpshm__session *session, _Atomic uint32_t *word, int flags)
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
