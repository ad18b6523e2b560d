/* Blocks as a process uses them: allocated, held, released. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* Nobody who must not wait waits for the lock either: who has it may be waiting for the manager. */
int mpshm__enter_engine(int flags)
{
    if (flags & MPSHM_NOWAIT)
        return mpshm__try_acquire();
    mpshm__acquire();
    return 1;
}

/* ---- holding: how many handles this process has to a block, and the one bit that says so ---- */

void mpshm__hold(struct mpshm__tree *tree, struct mpshm__arena *arena, uint32_t i)
{
    if (arena->held[i]++ == 0) {
        arena->holding++;
        mpshm__add_holder(arena, i, tree->slot);
    }
}

void mpshm__drop_hold(struct mpshm__tree *tree, struct mpshm__arena *arena, uint32_t i)
{
    if (--arena->held[i] == 0) {
        arena->holding--;
        mpshm__remove_holder(arena, i, tree->slot);
        mpshm__try_free(tree->control, arena, i);
    }
}

void mpshm__let_go(const mpshm_block *block)
{
    struct mpshm__arena *arena = block->arena;

    mpshm__drop_hold(arena->tree, arena, block->index);
}

void mpshm__fill(mpshm_block *out, struct mpshm__arena *arena, uint32_t i)
{
    out->data = arena->data + (uint64_t)atomic_load(&arena->blocks[i].where) * 64;
    out->nbytes = atomic_load(&arena->blocks[i].nbytes);
    out->arena = arena;
    out->index = i;
}

/* ---- allocate ---- */

/* What this process keeps warm is the first thing to go when memory is short. */
static void trim_own(struct mpshm__tree *tree)
{
    for (struct mpshm__arena *arena = tree->own; arena != NULL; arena = arena->next_own)
        mpshm__trim(tree->control, arena);
}

int mpshm_block_allocate(int strategy, uint64_t nbytes, int flags, mpshm_block *out)
{
    struct mpshm__tree *tree;
    struct mpshm__arena *arena = NULL;
    uint32_t i;
    int err;

    if (strategy != MPSHM_FILE_DESCRIPTOR && strategy != MPSHM_FILE_SYSTEM)
        return -EINVAL;
    if (nbytes > mpshm__memory_bytes() * 4 || nbytes > MPSHM__LARGEST)
        return -ENOMEM; /* nothing that this machine could ever hold */
    if (!mpshm__enter_engine(flags))
        return -EAGAIN;
    err = (flags & MPSHM_NOWAIT) && mpshm__trees[0] == NULL ? -EAGAIN : mpshm__home(&tree);
    if (err == 0 && tree->slot < 0)
        err = flags & MPSHM_NOWAIT ? -EAGAIN : mpshm__join(tree);
    if (err == -ENOSPC)
        err = -EDQUOT; /* the folder is full, and not memory */
    if (err == 0) {
        err = mpshm__find_room(tree, strategy, nbytes, flags, &arena, &i);
        if (err == -ENOSPC || err == -ENOMEM) {
            trim_own(tree);
            err = mpshm__find_room(tree, strategy, nbytes, flags, &arena, &i);
        }
    }
    if (err == 0) {
        struct mpshm__block *block = &arena->blocks[i];
        /* Nobody looks at these before the state says that it lives. */
        atomic_store_explicit(&block->outstanding, 0, memory_order_relaxed);
        atomic_store_explicit(&block->overflow, 0, memory_order_relaxed);
        atomic_store_explicit(&block->nbytes, nbytes, memory_order_relaxed);
        mpshm__clear_holders(tree->control, arena, i);
        arena->held[i] = 0;
        mpshm__hold(tree, arena, i);
        /* Killed before this line: the block is still free and its arena has lost its owner. */
        uint64_t generation = MPSHM__GENERATION(atomic_load(&block->state));
        atomic_store(&block->state, generation << MPSHM__GENERATION_SHIFT | MPSHM__LIVE);
        mpshm__fill(out, arena, i);
        if ((flags & MPSHM__HEAP) && (err = mpshm__heap_enlist(arena)) < 0)
            mpshm__drop_hold(tree, arena, i);
    }
    mpshm__release();
    return err;
}

int mpshm__block_again(struct mpshm__arena *arena, uint32_t i, int flags, mpshm_block *out)
{
    if (!mpshm__enter_engine(flags))
        return -EAGAIN;
    mpshm__hold(arena->tree, arena, i);
    /* Somebody knows of it now beside its user: see heap.c, Note [What a process keeps]. */
    atomic_fetch_add(&arena->blocks[i].state, 1);
    mpshm__fill(out, arena, i);
    mpshm__release();
    return 0;
}

/* ---- release ---- */

void mpshm_block_release(mpshm_block *ref)
{
    if (ref->arena == NULL)
        return;
    if (mpshm__try_acquire()) {
        mpshm__let_go(ref);
        mpshm__release();
    } else {
        mpshm__release_later(ref);
    }
    ref->arena = NULL;
    ref->data = NULL;
}

int mpshm_block_others(const mpshm_block *ref)
{
    const struct mpshm__arena *arena = ref->arena;
    const struct mpshm__tree *tree = arena->tree;
    const struct mpshm__block *block = &arena->blocks[ref->index];
    uint64_t before, after;
    int others;

    /* The same look as before a free: repeated when somebody moved meanwhile. */
    do {
        before = atomic_load(&block->state);
        others = (int)atomic_load(&block->overflow) +
                 __builtin_popcountll(atomic_load(&block->outstanding));
        for (int w = 0; w < MPSHM__HOLDER_WORDS; w++) {
            uint64_t bits = mpshm__holders(tree->control, arena, ref->index, w);
            if (tree->slot >= 0 && w == tree->slot / 64)
                bits &= ~((uint64_t)1 << (tree->slot % 64));
            others += __builtin_popcountll(bits);
        }
        after = atomic_load(&block->state);
    } while (before != after);
    return others;
}

void mpshm_block_revoke(const mpshm_block *ref)
{
    struct mpshm__block *block = &((struct mpshm__arena *)ref->arena)->blocks[ref->index];

    /* A claim in progress has set its holder first: either it finds its message or it does not. */
    atomic_store(&block->outstanding, 0);
    atomic_store(&block->overflow, 0);
}

int mpshm_block_strategy(const mpshm_block *ref)
{
    return ((const struct mpshm__arena *)ref->arena)->strategy;
}
