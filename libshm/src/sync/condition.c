/* Conditions: who waits, and who is notified. The lock that belongs to one is the caller's.
 *
 * What if it dies here
 *
 *   a waiter, before it is notified     notify finds it dead and takes the next
 *   a waiter, notified, not yet         another waiter finds it within 100 ms and passes its
 *   running                             notification on, to one that waited at that time
 *   a notifier, in the middle           those that it has woken stay woken; the guard passes on
 *   a notifier, before the wake-up      the waiter looks again within 100 ms */
#include "sync/wait_list.h"

/* A notified process that has died gives its notification to the next. */
static void pass_on(struct mpshm__session *session, struct mpshm__condition *c, int place)
{
    /* A notification is only for those that waited already when it came. */
    uint64_t mine = atomic_load(&c->list.waiters[place].ticket);

    if (!mpshm__wait_list_has_dead(session, &c->list, MPSHM__WOKEN, mine + 1))
        return;
    mpshm__guard(session, &c->sync.word, 0);
    mpshm__wait_list_pass_on(session, &c->list);
    mpshm__unguard(&c->sync.word);
}

int mpshm_condition_enter(const mpshm_block *condition, int flags)
{
    struct mpshm__session *session = mpshm__session_of(condition);
    struct mpshm__condition *c = condition->data;
    int place = mpshm__guard(session, &c->sync.word, flags);

    if (place < 0)
        return place;
    place = mpshm__wait_list_enter(session, &c->list);
    mpshm__unguard(&c->sync.word);
    return place;
}

static int was_woken(void *state, uint64_t unused)
{
    (void)unused;
    return atomic_load((_Atomic uint32_t *)state) != MPSHM__WAITING;
}

int mpshm_condition_wait(const mpshm_block *condition, int place, uint64_t timeout_ns)
{
    struct mpshm__session *session = mpshm__session_of(condition);
    struct mpshm__condition *c = condition->data;
    _Atomic uint32_t *state = &c->list.waiters[place].state;
    struct mpshm__sleep sleep = mpshm__sleep_for(timeout_ns);
    int rc = 0;

    mpshm__sync_spin(&c->sync, was_woken, state, 0, sleep.until);
    while (atomic_load(state) == MPSHM__WAITING && rc != -ETIMEDOUT) {
        rc = mpshm__sleep(&sleep, state, MPSHM__WAITING);
        if (rc == -EINTR)
            return rc;
        if (rc == 1)
            pass_on(session, c, place);
    }
    return mpshm__wait_list_leave(&c->list, place) == MPSHM__WOKEN ? 0 : -ETIMEDOUT;
}

void mpshm_condition_leave(const mpshm_block *condition, int place)
{
    struct mpshm__condition *c = condition->data;

    if (mpshm__wait_list_leave(&c->list, place) == MPSHM__WOKEN)
        mpshm_condition_notify(condition, 1, 0);
}

int mpshm_condition_notify(const mpshm_block *condition, uint32_t n, int flags)
{
    struct mpshm__session *session = mpshm__session_of(condition);
    struct mpshm__condition *c = condition->data;
    int woken = 0, rc = mpshm__guard(session, &c->sync.word, flags);

    if (rc < 0)
        return rc;
    mpshm__note_cpu(&c->sync.cpu);
    if (n >= MPSHM__WAITERS_MOST) /* then the notification of a dead one is nobody else's */
        woken = mpshm__wait_list_wake_all(&c->list, MPSHM__WOKEN);
    else
        while ((uint32_t)woken < n && mpshm__wait_list_wake(session, &c->list))
            woken++;
    mpshm__unguard(&c->sync.word);
    return woken;
}

int mpshm_condition_waiters(const mpshm_block *condition)
{
    return mpshm__wait_list_count(&((struct mpshm__condition *)condition->data)->list);
}
