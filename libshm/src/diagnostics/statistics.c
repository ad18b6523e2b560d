/* What this process holds and what the tree keeps, counted where it is. */
#define _GNU_SOURCE
#include <string.h>

#include "internal.h"

static void count_arena(const struct mpshm__arena *arena, mpshm_stats *out)
{
    uint32_t used = mpshm__used(arena);

    out->segments += arena->own ? 1 : 0;
    out->mappings += 1;
    out->descriptors += arena->fd.number >= 0;
    for (uint32_t i = 0; i < used; i++) {
        const struct mpshm__block *block = &arena->blocks[i];
        uint64_t nbytes;
        if (!(atomic_load(&block->state) & MPSHM__LIVE))
            continue;
        nbytes = atomic_load(&block->nbytes);
        if (arena->held[i] != 0) {
            out->live_bytes += nbytes;
            out->live_blocks += 1;
        }
        if (arena->own && (atomic_load(&block->outstanding) || atomic_load(&block->overflow)))
            out->in_flight_bytes += nbytes;
    }
    if (arena->own)
        out->cached_bytes += atomic_load(&arena->header->cached);
}

void mpshm_get_stats(mpshm_stats *out)
{
    memset(out, 0, sizeof(*out));
    mpshm__heap_flush();
    mpshm__acquire();
    out->descriptors = (uint64_t)mpshm__fd_reserved();
    for (int t = 0; t < MPSHM__TREES; t++) {
        const struct mpshm__tree *tree = mpshm__trees[t];
        if (tree == NULL)
            continue;
        out->descriptors += (tree->sock.number >= 0) + (tree->control_fd.number >= 0);
        out->mappings += tree->control != NULL;
        out->cache_limit = tree->control ? atomic_load(&tree->control->cache_limit) : 0;
        out->tree_cached_bytes += tree->control ? atomic_load(&tree->control->cached_bytes) : 0;
        for (uint32_t a = 0; a < tree->arena_top; a++)
            if (tree->arenas[a] != NULL)
                count_arena(tree->arenas[a], out);
    }
    mpshm__release();
}

void mpshm_empty_cache(void)
{
    mpshm__heap_flush();
    mpshm__acquire();
    for (int t = 0; t < MPSHM__TREES; t++) {
        struct mpshm__tree *tree = mpshm__trees[t];
        if (tree == NULL)
            continue;
        for (uint32_t a = 0; a < tree->arena_top; a++)
            if (tree->arenas[a] != NULL && tree->arenas[a]->own)
                mpshm__trim(tree->control, tree->arenas[a]);
        if (tree->control != NULL)
            mpshm__drop_stale_arenas(tree);
    }
    mpshm__release();
}
