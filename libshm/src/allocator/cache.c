/* The cache counts, which every process of the session changes. */
#include "allocator/cache.h"
#include "platform/linux/futex.h"

/* A process that is killed between two additions leaves the sums too high or too low by one
 * block. They never go below zero, which would disable the cache for good. The manager corrects
 * them: see cache_limit.c. */
static void take_away(_Atomic uint64_t *sum, uint64_t size)
{
    uint64_t now = atomic_load(sum);

    while (!atomic_compare_exchange_weak(sum, &now, now > size ? now - size : 0))
        ;
}

void mpshm__cache_add(struct mpshm__control *control, struct mpshm__segment *segment, uint64_t size)
{
    atomic_fetch_add(&segment->header->cached, size);
    atomic_fetch_add(&control->cached_bytes, size);
}

void mpshm__cache_take(struct mpshm__control *control, struct mpshm__segment *segment,
                       uint64_t size)
{
    take_away(&segment->header->cached, size);
    take_away(&control->cached_bytes, size);
}

/* The result is exact if no block was freed meanwhile, and otherwise off by those blocks. */
void mpshm__cache_recount(struct mpshm__control *control, struct mpshm__segment *segment,
                          uint64_t before, uint64_t counted)
{
    if (!atomic_compare_exchange_strong(&segment->header->cached, &before, counted))
        return;
    if (counted > before)
        atomic_fetch_add(&control->cached_bytes, counted - before);
    else
        take_away(&control->cached_bytes, before - counted);
}

void mpshm__cache_wake(struct mpshm__control *control)
{
    if (atomic_load_explicit(&control->cache_unwatched, memory_order_relaxed) &&
        atomic_exchange(&control->cache_unwatched, 0))
        mpshm__futex_wake(&control->cache_unwatched);
}
