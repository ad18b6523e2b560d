/* Fork: parent and child both keep what the parent held.
 *
 * Note [A slot for the child]
 *
 *   prepare   the parent asks the manager for a slot, over a connection of its own, locks that
 *             slot's byte of the control file through a description of its own, and enters the slot
 *             as a holder of every block that it holds itself
 *   fork(2)
 *   child     takes slot, connection and description over; it is a process of its own from here on.
 *             What the parent owned (arenas to allocate in) is somebody else's arena to the child
 *   parent    closes its copies
 *
 *   These are pthread_atfork handlers, so nothing runs between them and the system call: no other
 *   hook, no interpreter, and a fork by anybody's C code is covered too. (vfork and posix_spawn run
 *   no handlers and need none: the child has nothing before it execs.)
 *
 *   Connection and locked byte are what keeps the slot. A fork that failed, or a child that died at
 *   once, loses both, and the manager takes the slot out of every block again. There is no moment
 * at which the child holds something and nobody knows.
 *
 *   When no slot can be had (no manager, no descriptor, 256 processes), every block that the parent
 *   holds is given one message that nobody will ever claim: it leaks rather than being reused under
 *   the child's hands. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

static struct {
    int fd, sock, slot;
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

uint64_t mpshm__holding(const struct mpshm__tree *tree)
{
    uint64_t sum = 0;

    for (uint32_t a = 0; a < tree->arena_top; a++)
        sum += tree->arenas[a] != NULL ? tree->arenas[a]->holding : 0;
    return sum;
}

static void prepare(void)
{
    mpshm__acquire(); /* no other thread is in the middle of anything */
    mpshm__heap_before_fork();
    for (int t = 0; t < MPSHM__TREES; t++) {
        struct mpshm__tree *tree = mpshm__trees[t];
        child[t].fd = child[t].sock = child[t].slot = -1;
        if (tree == NULL)
            continue;
        /* A description of its own, so that the kernel knows the two apart: what the parent has
         * locked must not stay locked because the child lives. */
        child[t].fd = mpshm__tree_hold(tree->id);
        if (mpshm__holding(tree) == 0)
            continue; /* the child may join by itself when it needs to */
        if (child[t].fd >= 0 && mpshm__child_slot(tree, &child[t].sock, &child[t].slot) == 0 &&
            mpshm__lock_slot(child[t].fd, child[t].slot) < 0) {
            close(child[t].sock);
            child[t].sock = child[t].slot = -1;
        }
        if (child[t].slot >= 0)
            for_held(tree, add_holder, child[t].slot);
        else
            for_held(tree, leak, -1);
    }
}

static void in_parent(void)
{
    mpshm__heap_after_fork(0);
    for (int t = 0; t < MPSHM__TREES; t++) {
        if (child[t].sock >= 0)
            close(child[t].sock);
        if (child[t].fd >= 0)
            close(child[t].fd);
    }
    mpshm__release();
}

/* Among the arenas of the parent, the child is a guest. */
static void disown(struct mpshm__tree *tree)
{
    tree->own = NULL;
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

/* What a child without a slot holds was leaked (see above): letting go of it means nothing. */
static void never_let_go(struct mpshm__tree *tree)
{
    for (uint32_t a = 0; a < tree->arena_top; a++)
        for (uint32_t i = 0; tree->arenas[a] != NULL && tree->arenas[a]->holding > 0 &&
                             i < tree->arenas[a]->capacity;
             i++)
            if (tree->arenas[a]->held[i] != 0)
                tree->arenas[a]->held[i] += 0x40000000; /* never comes down to 0 */
}

static void in_child(void)
{
    for (int t = 0; t < MPSHM__TREES; t++) {
        struct mpshm__tree *tree = mpshm__trees[t];
        if (tree == NULL)
            continue;
        disown(tree);
        if (tree->sock >= 0)
            close(tree->sock); /* the parent's: it would hide the parent's death */
        if (child[t].fd >= 0) {
            close(tree->control_fd);
            tree->control_fd = child[t].fd;
        }
        tree->sock = child[t].sock;
        tree->slot = child[t].slot;
        if (tree->slot >= 0)
            mpshm__sign_slot(&tree->control->slots[tree->slot], getpid());
        else
            never_let_go(tree);
    }
    mpshm__heap_after_fork(1);
    mpshm__renew_lock_in_child();
}

/* At load, so that there is no first fork that is missed. */
__attribute__((constructor)) static void arm(void)
{
    pthread_atfork(prepare, in_parent, in_child);
}

void mpshm__fork_handlers(void)
{
    /* Referred to by the code that makes trees, so that the linker takes this file from the
     * archive. */
}
