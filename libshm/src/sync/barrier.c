/* Barriers that break when a party dies.
 *
 *        arrive               the last arrives            open
 *     FILLING ------> FILLING --------------> FULL --------------> FILLING, all who wait go on
 *        |                                     |
 *        +---- a timeout, a death, break ------+-----> BROKEN ---- reset ----> FILLING
 *
 * What if it dies here
 *
 *   a party that waits          another one sees it, mostly within 100 ms, or the last as it arrives,
 *                               and breaks the barrier
 *   the last, before it opens   likewise
 *   a member between two waits  likewise, if others wait. A member has arrived before and has not
 *                               resigned; a process that has never arrived is not known
 *   a process with the guard    the guard's next owner breaks the barrier
 *   a party that was released   nothing: the round is over, and its entry is reaped later */
#include "sync/wait_list.h"

static struct mpshm__barrier *of(const mpshm_block *barrier)
{
    return barrier->data;
}

static void wake_all(struct mpshm__barrier *b, uint32_t state)
{
    mpshm__wait_list_wake_all(&b->list, state);
    mpshm__futex_wake(&b->state);
}

/* With the guard held. */
static void break_it(struct mpshm__barrier *b)
{
    atomic_store(&b->state, MPSHM__BARRIER_BROKEN);
    wake_all(b, MPSHM__BROKEN);
}

static int lock(struct mpshm__session *session, struct mpshm__barrier *b, int flags)
{
    int rc = mpshm__guard(session, &b->sync.word, flags);

    if (rc == MPSHM_OWNER_DIED)
        break_it(b);
    return rc < 0 ? rc : 0;
}

static void unlock(struct mpshm__barrier *b)
{
    mpshm__unguard(&b->sync.word);
}

static int has_dead_waiter(struct mpshm__session *session, struct mpshm__barrier *b)
{
    return mpshm__wait_list_has_dead(session, &b->list, MPSHM__WAITING, 0);
}

static int has_dead_party(struct mpshm__session *session, struct mpshm__barrier *b)
{
    for (int i = 0; i < MPSHM__SLOTS; i++) {
        uint32_t member = atomic_load_explicit(&b->members[i], memory_order_relaxed);
        if (member != 0 && mpshm__owner_is_dead(session, member))
            return 1;
    }
    return has_dead_waiter(session, b);
}

static void break_if_dead(struct mpshm__session *session, struct mpshm__barrier *b)
{
    uint64_t began = mpshm__look_begins(&b->next_look);

    if (began == 0)
        return;
    int dead = has_dead_party(session, b);
    mpshm__look_ends(&b->next_look, began);
    if (!dead || lock(session, b, 0) < 0)
        return;
    /* Without waiters the barrier has opened or has been reset meanwhile. */
    if (atomic_load(&b->count) > 0 && has_dead_party(session, b))
        break_it(b);
    unlock(b);
}

/* With the guard held, in state FILLING. */
static int enter(struct mpshm__session *session, struct mpshm__barrier *b, int *place,
                 uint32_t *order)
{
    uint32_t count = atomic_load(&b->count);

    if (count + 1 == b->sync.max && has_dead_waiter(session, b)) {
        break_it(b); /* no other has seen it yet, or only the dead wait */
        return -EPIPE;
    }
    if (count + 1 < b->sync.max && (*place = mpshm__wait_list_enter(session, &b->list)) < 0)
        return *place;
    if (session->slot >= 0)
        atomic_store(&b->members[session->slot], mpshm__me(session));
    *order = count;
    atomic_store(&b->count, count + 1);
    if (count + 1 < b->sync.max)
        return 0;
    atomic_store(&b->opener, mpshm__me(session));
    atomic_store(&b->state, MPSHM__FULL);
    return 1;
}

int mpshm_barrier_arrive(const mpshm_block *barrier, int flags, uint64_t timeout_ns, int *place,
                         uint32_t *order)
{
    struct mpshm__session *session = mpshm__session_of(barrier);
    struct mpshm__barrier *b = of(barrier);
    struct mpshm__sleep sleep;
    int rc, begun = 0;

    for (;;) {
        rc = lock(session, b, flags);
        if (rc < 0)
            return rc;
        uint32_t state = atomic_load(&b->state);
        if (state == MPSHM__FULL && mpshm__owner_is_dead(session, atomic_load(&b->opener))) {
            break_it(b);
            state = MPSHM__BARRIER_BROKEN;
        }
        rc = state == MPSHM__BARRIER_BROKEN ? -EPIPE
             : state == MPSHM__FILLING      ? enter(session, b, place, order)
                                            : -EAGAIN;
        unlock(b);
        if (rc != -EAGAIN)
            return rc;
        if (flags & MPSHM_NOWAIT)
            return -EBUSY;
        if (!begun)
            sleep = mpshm__sleep_for(timeout_ns);
        begun = 1;
        rc = mpshm__sleep(&sleep, &b->state, MPSHM__FULL);
        if (rc < 0)
            return rc;
    }
}

int mpshm_barrier_wait(const mpshm_block *barrier, int place, uint64_t timeout_ns)
{
    struct mpshm__session *session = mpshm__session_of(barrier);
    struct mpshm__barrier *b = of(barrier);
    _Atomic uint32_t *state = &b->list.waiters[place].state;
    struct mpshm__sleep sleep = mpshm__sleep_for(timeout_ns);
    int timed_out = 0;

    while (atomic_load(state) == MPSHM__WAITING) {
        int rc = mpshm__sleep(&sleep, state, MPSHM__WAITING);
        if (rc == -EINTR)
            return rc;
        if (rc == -ETIMEDOUT) {
            lock(session, b, 0);
            if (atomic_load(state) == MPSHM__WAITING) {
                timed_out = 1;
                break_it(b);
            }
            unlock(b);
        } else if (rc == 1) {
            break_if_dead(session, b);
        }
    }
    return mpshm__wait_list_leave(&b->list, place) == MPSHM__WOKEN ? 0
           : timed_out                                             ? -ETIMEDOUT
                                                                   : -EPIPE;
}

void mpshm_barrier_leave(const mpshm_block *barrier, int place)
{
    struct mpshm__barrier *b = of(barrier);

    lock(mpshm__session_of(barrier), b, 0);
    if (mpshm__wait_list_leave(&b->list, place) == MPSHM__WAITING && atomic_load(&b->count) > 0)
        atomic_fetch_sub(&b->count, 1);
    unlock(b);
}

int mpshm_barrier_open(const mpshm_block *barrier)
{
    struct mpshm__session *session = mpshm__session_of(barrier);
    struct mpshm__barrier *b = of(barrier);
    int rc = -EPIPE;

    lock(session, b, 0);
    if (atomic_load(&b->state) == MPSHM__FULL && atomic_load(&b->opener) == mpshm__me(session)) {
        atomic_store(&b->count, 0);
        atomic_store(&b->state, MPSHM__FILLING);
        wake_all(b, MPSHM__WOKEN);
        rc = 0;
    }
    unlock(b);
    return rc;
}

void mpshm_barrier_break(const mpshm_block *barrier)
{
    struct mpshm__session *session = mpshm__session_of(barrier);

    lock(session, of(barrier), 0);
    break_it(of(barrier));
    unlock(of(barrier));
}

void mpshm_barrier_reset(const mpshm_block *barrier)
{
    struct mpshm__session *session = mpshm__session_of(barrier);
    struct mpshm__barrier *b = of(barrier);

    lock(session, b, 0);
    wake_all(b, MPSHM__BROKEN);
    mpshm__wait_list_reap(session, &b->list);
    for (int i = 0; i < MPSHM__SLOTS; i++)
        atomic_store(&b->members[i], 0);
    atomic_store(&b->count, 0);
    atomic_store(&b->state, MPSHM__FILLING);
    mpshm__futex_wake(&b->state);
    unlock(b);
}

void mpshm_barrier_resign(const mpshm_block *barrier)
{
    struct mpshm__session *session = mpshm__session_of(barrier);
    uint32_t me = mpshm__me(session);

    if (session->slot >= 0)
        atomic_compare_exchange_strong(&of(barrier)->members[session->slot], &me, 0);
}

int mpshm_barrier_waiters(const mpshm_block *barrier)
{
    switch (atomic_load(&of(barrier)->state)) {
    case MPSHM__FILLING:
        return (int)atomic_load(&of(barrier)->count);
    case MPSHM__BARRIER_BROKEN:
        return -EPIPE;
    default:
        return 0;
    }
}

uint32_t mpshm_barrier_parties(const mpshm_block *barrier)
{
    return of(barrier)->sync.max;
}
