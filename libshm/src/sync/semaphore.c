/* Semaphores whose units return when the process that took them dies: see layout/sync_block.h, Note
 * [A semaphore's units].
 *
 * What if it dies here: the guard's next owner undoes a change that is under way. A process that
 * was killed while it had units is found by the next that finds none left and looks. A process that
 * was killed between its release and the wake-up costs a sleeper at most 100 ms (word.c). */
#include "sync/word.h"

enum { NOBODY = MPSHM__SLOTS }; /* the index in `held` for a process without a slot */

static uint32_t units(uint64_t held)
{
    return (uint32_t)held;
}

static void begin(struct mpshm__semaphore *s, int i)
{
    atomic_store_explicit(&s->log_value, atomic_load_explicit(&s->value, memory_order_relaxed),
                          memory_order_relaxed);
    atomic_store_explicit(&s->log_held, atomic_load_explicit(&s->held[i], memory_order_relaxed),
                          memory_order_relaxed);
    atomic_store_explicit(&s->log, (uint32_t)i + 1, memory_order_release);
}

static void change(struct mpshm__semaphore *s, int i, uint32_t value, uint64_t held)
{
    begin(s, i);
    /* The log is complete before the change begins. */
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store_explicit(&s->value, value, memory_order_release);
    atomic_store_explicit(&s->held[i], held, memory_order_release);
    atomic_store_explicit(&s->log, 0, memory_order_release);
}

static void undo(struct mpshm__semaphore *s)
{
    uint32_t log = atomic_load(&s->log);

    if (log == 0 || log > NOBODY + 1)
        return;
    atomic_store(&s->value, atomic_load(&s->log_value));
    atomic_store(&s->held[log - 1], atomic_load(&s->log_held));
    atomic_store(&s->log, 0);
}

/* `me` is the word of this process: its slot is looked up once for each call. */
static inline int lock(struct mpshm__session *session, struct mpshm__semaphore *s, uint32_t me,
                       int flags)
{
    int rc = mpshm__word_try(&s->sync.word, me);

    if (__builtin_expect(rc == 0, 1))
        return 0;
    rc = mpshm__guard_contended(session, &s->sync.word, flags);
    if (rc == MPSHM_OWNER_DIED) {
        undo(s);
        return 0;
    }
    return rc;
}

static void unlock(struct mpshm__semaphore *s)
{
    mpshm__unguard(&s->sync.word);
}

/* Give back what was held in entry `i`. */
static void give_back(struct mpshm__semaphore *s, int i, uint64_t held)
{
    uint64_t value = (uint64_t)atomic_load(&s->value) + units(held);

    change(s, i, value > s->sync.max ? s->sync.max : (uint32_t)value, 0);
}

/* Give back the units of all dead processes, if it is time to look. 1 when there were any. */
static int settle(struct mpshm__session *session, struct mpshm__semaphore *s)
{
    uint64_t began = atomic_load(&s->events) ? 0 : mpshm__look_begins(&s->next_look);
    int any = 0;

    if (began == 0)
        return 0;
    for (int i = 0; i < MPSHM__SLOTS; i++) {
        uint64_t held = atomic_load_explicit(&s->held[i], memory_order_relaxed);
        if (units(held) == 0 ||
            !mpshm__owner_is_dead(session,
                                  (uint32_t)(held >> 32) << MPSHM__OWNER_SHIFT | (uint32_t)i))
            continue;
        give_back(s, i, held);
        any = 1;
    }
    mpshm__look_ends(&s->next_look, began);
    return any;
}

/* Take a unit, with the guard held. 0 when there is one. */
static inline int take(struct mpshm__session *session, struct mpshm__semaphore *s, uint32_t me,
                       int *died)
{
    uint32_t value;
    uint64_t mine = (uint64_t)(me >> MPSHM__OWNER_SHIFT) << 32;
    int i = session->slot < 0 ? NOBODY : session->slot;
    uint64_t held = atomic_load_explicit(&s->held[i], memory_order_relaxed);
    int events = atomic_load_explicit(&s->events, memory_order_relaxed) || i == NOBODY;

    if (!events && units(held) != 0 && held >> 32 != mine >> 32) {
        give_back(s, i, held); /* of a dead process that had this slot before */
        held = 0;
        *died = 1;
    }
    value = atomic_load_explicit(&s->value, memory_order_relaxed);
    if (value == 0)
        return -EAGAIN;
    change(s, i, value - 1, events ? 0 : mine | (units(held) + 1));
    return 0;
}

static inline int attempt(struct mpshm__session *session, struct mpshm__semaphore *s, int flags)
{
    uint32_t me = mpshm__me(session);
    int died = 0, rc = lock(session, s, me, flags);

    if (rc < 0)
        return rc;
    rc = take(session, s, me, &died);
    if (rc < 0 && settle(session, s)) {
        died = 1;
        rc = take(session, s, me, &died);
    }
    if (rc < 0 && !(flags & MPSHM_NOWAIT)) /* the caller is going to sleep */
        atomic_store(&s->sleepers, 1);
    unlock(s);
    return rc == 0 && died ? MPSHM_OWNER_DIED : rc;
}

static int has_unit(void *value, uint64_t unused)
{
    (void)unused;
    return atomic_load((_Atomic uint32_t *)value) > 0;
}

int mpshm_semaphore_acquire(const mpshm_block *semaphore, int flags, uint64_t timeout_ns)
{
    struct mpshm__session *session = mpshm__session_of(semaphore);
    struct mpshm__semaphore *s = semaphore->data;
    struct mpshm__sleep sleep;
    int rc, slept = 0;

    if (!(flags & MPSHM_NOWAIT)) {
        sleep = mpshm__sleep_for(timeout_ns);
        /* Before the first attempt, which says that a release has to wake somebody. */
        if (!has_unit(&s->value, 0))
            mpshm__sync_spin(&s->sync, has_unit, &s->value, 0, sleep.until);
    }
    rc = attempt(session, s, flags);
    if (rc != -EAGAIN || (flags & MPSHM_NOWAIT))
        return rc;
    do {
        rc = mpshm__sleep(&sleep, &s->value, 0);
        if (rc < 0)
            return rc;
        slept = 1;
    } while ((rc = attempt(session, s, 0)) == -EAGAIN);
    /* A release wakes one sleeper and forgets the others. */
    if (slept && rc >= 0) {
        atomic_store(&s->sleepers, 1);
        if (atomic_load(&s->value) > 0)
            mpshm__futex_wake_one(&s->value);
    }
    return rc;
}

int mpshm_semaphore_release(const mpshm_block *semaphore, int flags)
{
    struct mpshm__session *session = mpshm__session_of(semaphore);
    struct mpshm__semaphore *s = semaphore->data;
    uint32_t me = mpshm__me(session), value;
    int i = session->slot < 0 ? NOBODY : session->slot, wake, rc = lock(session, s, me, flags);
    uint64_t held;

    if (rc < 0)
        return rc;
    value = atomic_load_explicit(&s->value, memory_order_relaxed);
    if (value >= s->sync.max) {
        unlock(s);
        return -EOVERFLOW;
    }
    held = atomic_load_explicit(&s->held[i], memory_order_relaxed);
    if (units(held) != 0 && held >> 32 == me >> MPSHM__OWNER_SHIFT)
        held--;
    else
        atomic_store_explicit(&s->events, 1, memory_order_relaxed);
    change(s, i, value + 1, held);
    mpshm__note_cpu(&s->sync.cpu);
    wake = atomic_load_explicit(&s->sleepers, memory_order_relaxed);
    if (wake)
        atomic_store_explicit(&s->sleepers, 0, memory_order_relaxed);
    unlock(s);
    if (wake)
        mpshm__futex_wake_one(&s->value);
    return 0;
}

uint32_t mpshm_semaphore_value(const mpshm_block *semaphore)
{
    return atomic_load(&((struct mpshm__semaphore *)semaphore->data)->value);
}
