/* The blocks that locks live in: made and recognised. */
#include <errno.h>

#include "sync/owner.h"
#include "sync/sync.h"

static uint64_t size_of(int kind)
{
    switch (kind) {
    case MPSHM_LOCK:
        return sizeof(struct mpshm__sync);
    case MPSHM_SEMAPHORE:
        return sizeof(struct mpshm__semaphore);
    case MPSHM_CONDITION:
        return sizeof(struct mpshm__condition);
    case MPSHM_EVENT:
        return sizeof(struct mpshm__event);
    case MPSHM_BARRIER:
        return sizeof(struct mpshm__barrier);
    default:
        return 0;
    }
}

int mpshm_sync_create(int strategy, int kind, uint32_t value, uint32_t max, int flags,
                      mpshm_block *out)
{
    mpshm_block block;
    int err;

    if (size_of(kind) == 0 || value > INT32_MAX || max > INT32_MAX ||
        (kind == MPSHM_SEMAPHORE && value > max) || (kind == MPSHM_BARRIER && max == 0))
        return -EINVAL;
    err = mpshm_block_allocate(strategy, size_of(kind), flags | MPSHM_ZEROED, &block);
    if (err < 0)
        return err;
    struct mpshm__sync *sync = block.data;
    sync->kind = (uint32_t)kind;
    sync->max = max;
    if (kind == MPSHM_SEMAPHORE) {
        struct mpshm__semaphore *semaphore = block.data;
        atomic_store(&semaphore->value, value);
        atomic_store(&semaphore->events, value == 0);
    }
    sync->magic = MPSHM__SYNC_MAGIC;
    *out = block;
    return 0;
}

int mpshm__is_sync(const void *data, uint64_t nbytes)
{
    const struct mpshm__sync *sync = data;

    for (int kind = MPSHM_LOCK; kind <= MPSHM_BARRIER; kind++)
        if (nbytes == size_of(kind)) /* other blocks are not read: that would touch their pages */
            return sync->magic == MPSHM__SYNC_MAGIC && sync->kind == (uint32_t)kind;
    return 0;
}

int mpshm_sync_kind(const mpshm_block *block)
{
    return mpshm__is_sync(block->data, block->nbytes)
               ? (int)((const struct mpshm__sync *)block->data)->kind
               : -EINVAL;
}
