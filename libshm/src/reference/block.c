/* Blocks as a process uses them: allocated, retained, released. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "allocator/allocator.h"
#include "allocator/grow.h"
#include "allocator/write_block.h"
#include "base/process_lock.h"
#include "platform/linux/memory_size.h"
#include "reference/block.h"
#include "segment/address_range.h"
#include "segment/holder_bits.h"
#include "session/connection.h"
#include "session/own_session.h"

void mpshm__block_fill(mpshm_block *out, struct mpshm__segment *segment, uint32_t i)
{
    out->data = segment->data + (uint64_t)atomic_load(&segment->blocks[i].where) * 64;
    out->nbytes = atomic_load(&segment->blocks[i].nbytes);
    out->segment = segment;
    out->index = i;
}

/* ---- allocate ---- */

/* The free blocks of this process are the first to go when memory is short. */
static void trim_own(struct mpshm__session *session)
{
    for (struct mpshm__segment *segment = session->own; segment != NULL;
         segment = segment->next_own)
        mpshm__trim(session->control, segment);
}

/* Attach the session, which takes address space for good. A process that has little (ulimit -v) keeps
 * it: the caller sends by value, which needs room as well. */
static int attach_own(uint64_t nbytes, int flags, struct mpshm__session **session)
{
    if (mpshm__sessions[0] == NULL) {
        uint64_t needed = 4 * sizeof(struct mpshm__control) + nbytes;

        if (flags & MPSHM_NOWAIT)
            return -EAGAIN;
        void *at =
            mmap(NULL, needed, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at != MAP_FAILED)
            munmap(at, needed);
        else if (errno == ENOMEM)
            return -ENOMEM;
    }
    return mpshm__own_session(session);
}

int mpshm_block_allocate(int strategy, uint64_t nbytes, int flags, mpshm_block *out)
{
    struct mpshm__session *session;
    struct mpshm__segment *segment = NULL;
    uint32_t i;
    int err;

    if (strategy != MPSHM_FILE_DESCRIPTOR && strategy != MPSHM_FILE_SYSTEM)
        return -EINVAL;
    if (nbytes > mpshm__memory_bytes() * 4 || nbytes > MPSHM__LARGEST)
        return -ENOMEM; /* more than this machine can hold */
    if (!mpshm__lock_by_flags(flags))
        return -EAGAIN;
    err = attach_own(nbytes, flags, &session);
    if (err == 0 && session->slot < 0)
        err = flags & MPSHM_NOWAIT ? -EAGAIN : mpshm__session_register(session);
    if (err == -ENOSPC)
        err = -EDQUOT; /* the runtime folder is full, and not memory */
    if (err == 0) {
        err = mpshm__find_room(session, strategy, nbytes, flags, &segment, &i);
        if (err == -ENOSPC || err == -ENOMEM) {
            trim_own(session);
            err = mpshm__find_room(session, strategy, nbytes, flags, &segment, &i);
        }
    }
    if (err == 0) {
        struct mpshm__block *block = &segment->blocks[i];
        /* No process reads these before the state is live. */
        atomic_store_explicit(&block->in_flight, 0, memory_order_relaxed);
        atomic_store_explicit(&block->in_flight_overflow, 0, memory_order_relaxed);
        atomic_store_explicit(&block->nbytes, nbytes, memory_order_relaxed);
        mpshm__clear_holders(session->control, segment, i);
        segment->local_refs[i] = 0;
        mpshm__retain(session, segment, i);
        /* A process that is killed before this line leaves a free block in a segment without
         * owner. */
        uint64_t generation = MPSHM__GENERATION(atomic_load(&block->state));
        atomic_store(&block->state, generation << MPSHM__GENERATION_SHIFT | MPSHM__LIVE);
        mpshm__block_fill(out, segment, i);
        if ((flags & MPSHM__HEAP) && (err = mpshm__range_register(segment)) < 0)
            mpshm__release(session, segment, i);
    }
    mpshm__unlock();
    return err;
}

void mpshm_block_write(const mpshm_block *block, const void *from, uint64_t nbytes)
{
    mpshm__write_block(block->segment, block->index, block->data, from, nbytes);
}

int mpshm__block_retain(struct mpshm__segment *segment, uint32_t i, int flags, mpshm_block *out)
{
    if (!mpshm__lock_by_flags(flags))
        return -EAGAIN;
    mpshm__retain(segment->session, segment, i);
    /* A second party knows of it now: see heap.c, Note [The thread cache]. */
    atomic_fetch_add(&segment->blocks[i].state, 1);
    mpshm__block_fill(out, segment, i);
    mpshm__unlock();
    return 0;
}

/* ---- release ---- */

struct deferred_release {
    struct mpshm__deferred work;
    mpshm_block block;
};

static void run_release(struct mpshm__deferred *work)
{
    struct deferred_release *d = (struct deferred_release *)work;

    mpshm__release_block(&d->block);
    free(d);
}

static void defer_release(const mpshm_block *block)
{
    struct deferred_release *d = malloc(sizeof(*d));

    if (d == NULL) { /* without memory it has to wait after all */
        mpshm__lock();
        mpshm__release_block(block);
        mpshm__unlock();
        return;
    }
    d->work.run = run_release;
    d->block = *block;
    mpshm__lock_defer(&d->work);
}

void mpshm_block_release(mpshm_block *ref)
{
    if (ref->segment == NULL)
        return;
    if (mpshm__try_lock()) {
        mpshm__release_block(ref);
        mpshm__unlock();
    } else {
        defer_release(ref);
    }
    ref->segment = NULL;
    ref->data = NULL;
}

int mpshm_block_others(const mpshm_block *ref)
{
    const struct mpshm__segment *segment = ref->segment;
    const struct mpshm__session *session = segment->session;
    const struct mpshm__block *block = &segment->blocks[ref->index];
    uint64_t before, after;
    int others;

    /* The same check as before a free, repeated when the state changed meanwhile. */
    do {
        before = atomic_load(&block->state);
        others = (int)atomic_load(&block->in_flight_overflow) +
                 __builtin_popcountll(atomic_load(&block->in_flight));
        for (int w = 0; w < MPSHM__HOLDER_WORDS; w++) {
            uint64_t bits = mpshm__holders(session->control, segment, ref->index, w);
            if (session->slot >= 0 && w == session->slot / 64)
                bits &= ~((uint64_t)1 << (session->slot % 64));
            others += __builtin_popcountll(bits);
        }
        after = atomic_load(&block->state);
    } while (before != after);
    return others;
}

void mpshm_block_revoke(const mpshm_block *ref)
{
    struct mpshm__block *block = &((struct mpshm__segment *)ref->segment)->blocks[ref->index];

    /* A receive in progress has set its holder bit first. It either finds its message or does
     * not. */
    atomic_store(&block->in_flight, 0);
    atomic_store(&block->in_flight_overflow, 0);
}

int mpshm_block_strategy(const mpshm_block *ref)
{
    return ((const struct mpshm__segment *)ref->segment)->strategy;
}
