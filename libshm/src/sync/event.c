/* Events. Nobody owns one, so there is nothing to be lost with a process.
 *
 * What if it dies here: a process that is killed between setting the event and the wake-up costs
 * the sleepers at most 100 ms (word.c). */
#include "sync/word.h"

enum { SET = 1, SLEEPERS = 2, ROUND = 4 };

static _Atomic uint32_t *state_of(const mpshm_block *event)
{
    return &((struct mpshm__event *)event->data)->state;
}

void mpshm_event_set(const mpshm_block *event)
{
    _Atomic uint32_t *state = state_of(event);
    uint32_t was = atomic_load(state);

    mpshm__note_cpu(&((struct mpshm__sync *)event->data)->cpu);
    do
        if (was & SET)
            return;
    while (!atomic_compare_exchange_weak(state, &was, (was & ~SLEEPERS) + ROUND + SET));
    if (was & SLEEPERS)
        mpshm__futex_wake(state);
}

void mpshm_event_clear(const mpshm_block *event)
{
    atomic_fetch_and(state_of(event), ~(uint32_t)SET);
}

int mpshm_event_is_set(const mpshm_block *event)
{
    return atomic_load(state_of(event)) & SET;
}

static int was_set(void *state, uint64_t begun)
{
    uint32_t now = atomic_load((_Atomic uint32_t *)state);

    return (now & SET) || now / ROUND != begun;
}

int mpshm_event_wait(const mpshm_block *event, uint32_t *since, uint64_t timeout_ns)
{
    _Atomic uint32_t *state = state_of(event);
    uint32_t was = atomic_load(state), begun;
    struct mpshm__sleep sleep;

    if (*since == 0)
        *since = was / ROUND + 1;
    begun = *since - 1;
    if (was_set(state, begun))
        return 0;
    sleep = mpshm__sleep_for(timeout_ns);
    if (mpshm__sync_spin(event->data, was_set, state, begun, sleep.until))
        return 0;
    was = atomic_load(state);
    while (!(was & SET) && was / ROUND == begun) {
        if (!(was & SLEEPERS) && !atomic_compare_exchange_weak(state, &was, was | SLEEPERS))
            continue;
        int rc = mpshm__sleep(&sleep, state, was | SLEEPERS);
        was = atomic_load(state);
        if (rc < 0 && !(was & SET) && was / ROUND == begun)
            return rc;
    }
    return 0;
}
