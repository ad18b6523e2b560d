/* A list of waiters that names each of them, so that no dead one is woken in place of a living one.
 *
 *   NO_WAITER -> WAITING         its owner, with the guard held
 *   WAITING   -> WOKEN, BROKEN   the process that wakes it, with the guard held
 *   any       -> NO_WAITER       its owner; any process with the guard, when the owner is dead
 *
 * Each step is one exchange of `state`, so a process that dies in between leaves a whole entry. */
#include "sync/wait_list.h"

static uint32_t top_of(const struct mpshm__wait_list *list)
{
    uint32_t top = atomic_load(&list->top);

    return top < MPSHM__WAITERS_MOST ? top : MPSHM__WAITERS_MOST;
}

static int find_free(struct mpshm__wait_list *list)
{
    uint32_t top = top_of(list);

    for (uint32_t i = 0; i < top; i++)
        if (atomic_load(&list->waiters[i].state) == MPSHM__NO_WAITER)
            return (int)i;
    if (top == MPSHM__WAITERS_MOST)
        return -EUSERS;
    atomic_store(&list->top, top + 1);
    return (int)top;
}

int mpshm__wait_list_enter(struct mpshm__session *session, struct mpshm__wait_list *list)
{
    int i = find_free(list);

    if (i < 0) {
        mpshm__wait_list_reap(session, list);
        i = find_free(list);
    }
    if (i < 0)
        return i;
    struct mpshm__waiter *waiter = &list->waiters[i];
    atomic_store(&waiter->owner, mpshm__me(session));
    atomic_store(&waiter->ticket, atomic_fetch_add(&list->next_ticket, 1));
    atomic_store(&waiter->state, MPSHM__WAITING);
    return i;
}

static struct mpshm__waiter *longest_waiting(struct mpshm__wait_list *list)
{
    struct mpshm__waiter *first = NULL;
    uint32_t top = top_of(list);

    for (uint32_t i = 0; i < top; i++) {
        struct mpshm__waiter *waiter = &list->waiters[i];
        if (atomic_load(&waiter->state) == MPSHM__WAITING &&
            (first == NULL || atomic_load(&waiter->ticket) < atomic_load(&first->ticket)))
            first = waiter;
    }
    return first;
}

int mpshm__wait_list_wake(struct mpshm__session *session, struct mpshm__wait_list *list)
{
    struct mpshm__waiter *waiter;

    while ((waiter = longest_waiting(list)) != NULL) {
        uint32_t waiting = MPSHM__WAITING;
        int dead = mpshm__owner_is_dead(session, atomic_load(&waiter->owner));
        /* If it dies with its notification, only those that wait now may have that. */
        atomic_store(&waiter->ticket, atomic_load(&list->next_ticket));
        /* It fails when the waiter has just left. */
        if (!atomic_compare_exchange_strong(&waiter->state, &waiting,
                                            dead ? MPSHM__NO_WAITER : MPSHM__WOKEN) ||
            dead)
            continue;
        mpshm__futex_wake(&waiter->state);
        return 1;
    }
    return 0;
}

int mpshm__wait_list_wake_all(struct mpshm__wait_list *list, uint32_t state)
{
    uint32_t top = top_of(list);
    int woken = 0;

    for (uint32_t i = 0; i < top; i++) {
        uint32_t waiting = MPSHM__WAITING;
        if (!atomic_compare_exchange_strong(&list->waiters[i].state, &waiting, state))
            continue;
        mpshm__futex_wake(&list->waiters[i].state);
        woken++;
    }
    return woken;
}

void mpshm__wait_list_reap(struct mpshm__session *session, struct mpshm__wait_list *list)
{
    uint32_t top = top_of(list);

    for (uint32_t i = 0; i < top; i++)
        if (atomic_load(&list->waiters[i].state) != MPSHM__NO_WAITER &&
            mpshm__owner_is_dead(session, atomic_load(&list->waiters[i].owner)))
            atomic_store(&list->waiters[i].state, MPSHM__NO_WAITER);
}

void mpshm__wait_list_pass_on(struct mpshm__session *session, struct mpshm__wait_list *list)
{
    uint32_t top = top_of(list);

    for (uint32_t i = 0; i < top; i++) {
        struct mpshm__waiter *dead = &list->waiters[i], *next;
        if (atomic_load(&dead->state) != MPSHM__WOKEN ||
            !mpshm__owner_is_dead(session, atomic_load(&dead->owner)))
            continue;
        next = longest_waiting(list);
        if (next != NULL && atomic_load(&next->ticket) < atomic_load(&dead->ticket))
            mpshm__wait_list_wake(session, list);
        /* Last, so that a kill before this line loses nothing. */
        atomic_store(&dead->state, MPSHM__NO_WAITER);
    }
}

int mpshm__wait_list_has_dead(struct mpshm__session *session, const struct mpshm__wait_list *list,
                              uint32_t state, uint64_t ticket)
{
    uint32_t top = top_of(list);

    for (uint32_t i = 0; i < top; i++)
        if (atomic_load(&list->waiters[i].state) == state &&
            atomic_load(&list->waiters[i].ticket) >= ticket &&
            mpshm__owner_is_dead(session, atomic_load(&list->waiters[i].owner)))
            return 1;
    return 0;
}

int mpshm__wait_list_count(const struct mpshm__wait_list *list)
{
    uint32_t top = top_of(list);
    int count = 0;

    for (uint32_t i = 0; i < top; i++)
        count += atomic_load(&list->waiters[i].state) == MPSHM__WAITING;
    return count;
}

uint32_t mpshm__wait_list_leave(struct mpshm__wait_list *list, int i)
{
    return atomic_exchange(&list->waiters[i].state, MPSHM__NO_WAITER);
}
