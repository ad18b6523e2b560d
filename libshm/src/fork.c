/* Fork: parent and child both keep what the parent held.
 *
 * Note [A slot for the child]
 *
 *   before    the parent asks the manager for a slot, over a connection of its own, and enters that
 *             slot as a holder of every block that it holds itself
 *   fork
 *   child     takes slot and connection over; it is a process of its own from here on. What the
 *             parent owned (arenas to allocate in) is somebody else's arena to the child
 *   parent    closes its copy of the connection
 *
 *   The connection is what keeps the slot: a fork that failed, or a child that died at once, closes
 *   it, and the manager takes the slot out of every block again. There is no moment at which the
 *   child holds something and nobody knows.
 *
 *   When no slot can be had (no manager, no descriptor, 256 processes), every block that the parent
 *   holds is given one message that nobody will ever claim: it leaks rather than being reused under
 *   the child's hands. */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

#include "internal.h"

static struct {
    int sock, slot;
} child[MPSHM__TREES];

static void for_held(struct mpshm__tree *tree, void (*act)(struct mpshm__block *, int), int slot)
{
    for (uint32_t a = 0; a < tree->arena_top; a++) {
        struct mpshm__arena *arena = tree->arenas[a];
        if (arena == NULL || arena->holding == 0)
            continue;
        uint64_t left = arena->holding;
        for (uint32_t i = 0; left > 0 && i < arena->capacity; i++)
            if (arena->held[i] != 0) {
                act(&arena->blocks[i], slot);
                left--;
            }
    }
}

static void add_holder(struct mpshm__block *block, int slot)
{
    atomic_fetch_or(&block->holders[slot / 64], (uint64_t)1 << (slot % 64));
    atomic_fetch_add(&block->state, 1);
}

static void leak(struct mpshm__block *block, int slot)
{
    (void)slot;
    atomic_fetch_add(&block->overflow, 1);
    atomic_fetch_add(&block->state, 1);
}

static uint64_t holding(const struct mpshm__tree *tree)
{
    uint64_t sum = 0;

    for (uint32_t a = 0; a < tree->arena_top; a++)
        sum += tree->arenas[a] != NULL ? tree->arenas[a]->holding : 0;
    return sum;
}

void mpshm_before_fork(void)
{
    mpshm__hold_for_fork();
    for (int t = 0; t < MPSHM__TREES && mpshm__trees[t] != NULL; t++) {
        struct mpshm__tree *tree = mpshm__trees[t];
        child[t].sock = child[t].slot = -1;
        if (holding(tree) == 0)
            continue; /* the child may join by itself when it needs to */
        if (mpshm__child_slot(tree, &child[t].sock, &child[t].slot) == 0)
            for_held(tree, add_holder, child[t].slot);
        else
            for_held(tree, leak, -1);
    }
}

void mpshm_after_fork_in_parent(void)
{
    for (int t = 0; t < MPSHM__TREES && mpshm__trees[t] != NULL; t++)
        if (child[t].sock >= 0)
            close(child[t].sock);
    mpshm__after_fork(0);
}

/* Among the arenas of the parent, the child is a guest. */
static void disown(struct mpshm__tree *tree)
{
    tree->current = 0;
    for (uint32_t a = 0; a < tree->arena_top; a++) {
        struct mpshm__arena *arena = tree->arenas[a];
        if (arena == NULL || !arena->own)
            continue;
        arena->own = 0;
        /* The parent's descriptor is not the child's to register again. */
        if (arena->fd >= 0)
            close(arena->fd);
        arena->fd = -1;
    }
}

void mpshm_after_fork_in_child(void)
{
    for (int t = 0; t < MPSHM__TREES && mpshm__trees[t] != NULL; t++) {
        struct mpshm__tree *tree = mpshm__trees[t];
        disown(tree);
        if (tree->sock >= 0)
            close(tree->sock); /* the parent's: it would hide the parent's death */
        tree->sock = child[t].sock;
        tree->slot = child[t].slot;
        if (tree->slot >= 0) {
            struct mpshm__slot *slot = &tree->control->slots[tree->slot];
            atomic_store(&slot->start_time, mpshm__start_time(getpid()));
            atomic_store(&slot->pid, getpid());
        } else {
            /* Without a slot, what is held here was leaked (see above): letting go means nothing. */
            for (uint32_t a = 0; a < tree->arena_top; a++)
                if (tree->arenas[a] != NULL && tree->arenas[a]->holding > 0) {
                    for (uint32_t i = 0; i < tree->arenas[a]->capacity; i++)
                        if (tree->arenas[a]->held[i] != 0)
                            tree->arenas[a]->held[i] += 0x40000000; /* never comes down to 0 */
                }
        }
    }
    mpshm__after_fork(1);
}
