/* Every segment of every tree of this user, with what is in it and who has it. */
#define _GNU_SOURCE
#include <string.h>

#include "internal.h"

struct listing {
    mpshm_info *rows;
    int room, count;
};

static void look(const struct mpshm__tree *tree, const struct mpshm__arena *arena, mpshm_info *row)
{
    const struct mpshm__arena_row *about = &tree->control->arenas[arena->index];
    uint64_t holders[MPSHM__HOLDER_WORDS] = {0};
    uint32_t owner = atomic_load(&about->owner), used = mpshm__used(arena);

    memset(row, 0, sizeof(*row));
    memcpy(row->tree, tree->id, MPSHM_ID_SIZE);
    row->index = arena->index;
    row->strategy = arena->strategy;
    row->owner_pid = owner < MPSHM__SLOTS ? atomic_load(&tree->control->slots[owner].pid) : 0;
    row->age_ns = mpshm__now_ns() - atomic_load(&about->born_ns);
    row->cached_bytes = atomic_load(&arena->header->cached);
    for (uint32_t i = 0; i < used; i++) {
        const struct mpshm__block *block = &arena->blocks[i];
        if (!(atomic_load(&block->state) & MPSHM__LIVE))
            continue;
        uint64_t nbytes = atomic_load(&block->nbytes);
        row->live_blocks += 1;
        row->live_bytes += nbytes;
        if (atomic_load(&block->outstanding) || atomic_load(&block->overflow))
            row->in_flight_bytes += nbytes;
        for (int w = 0; w < MPSHM__HOLDER_WORDS; w++)
            holders[w] |= mpshm__holders(tree->control, arena, i, w);
    }
    for (int slot = 0; slot < MPSHM__SLOTS; slot++)
        if (holders[slot / 64] >> (slot % 64) & 1)
            row->holder_pids[row->holders++] = atomic_load(&tree->control->slots[slot].pid);
}

static void list_tree(const unsigned char *id, void *arg)
{
    struct listing *l = arg;
    struct mpshm__tree *tree;
    int was_there = mpshm__tree_is_met(id);

    /* One that has just ended, or whose manager cannot be had, has nothing to show. */
    if (mpshm__tree_of(id, mpshm__is_home(id), &tree) < 0)
        return;
    for (uint32_t i = 0; i < MPSHM__ARENAS; i++) {
        uint64_t nonce = atomic_load(&tree->control->arenas[i].nonce[0]);
        struct mpshm__arena *arena;
        if (nonce == 0 || mpshm__arena_meet(tree, i, nonce, &arena) < 0)
            continue;
        if (l->count < l->room)
            look(tree, arena, &l->rows[l->count]);
        l->count++;
    }
    if (!was_there)
        mpshm__tree_forget(tree);
}

int mpshm_list(mpshm_info *rows, int room)
{
    struct listing l = {.rows = rows, .room = room};

    mpshm__acquire();
    mpshm__for_each_tree(list_tree, &l);
    mpshm__release();
    return l.count;
}
