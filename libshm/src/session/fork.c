/* Fork: parent and child both keep what the parent held.
 *
 * Note [A slot for the child]
 *
 *   prepare   the parent opens the control file again, which gives the child a description of its
 *             own, takes a slot through it, enters the slot as a holder of every block that it
 *             holds itself, and sends the manager one end of a new connection; a parent that has
 *             none itself (a daemon, or one that has given up waiting) makes one for the child
 *   fork(2)
 *   child     maps the control file again, through its description, at the same address: now
 *             nothing in it keeps the parent's description, and with it the parent's lock, alive.
 *             It is a process of its own from here on. What the parent owned (arenas to allocate
 *             in) is somebody else's arena to the child
 *   parent    closes its copies
 *
 *   Nobody is waited for, so a manager that is stopped delays no fork; one that has been killed is
 *   replaced here, since a fork is often all that a parent does. These are pthread_atfork
 *   handlers, so nothing runs between them and the system call: no other hook, no interpreter, and
 *   a fork by anybody's C code is covered too. (vfork and posix_spawn run no handlers and need
 *   none: the child has nothing before it execs.)
 *
 *   Killed here: the parent, before fork(2): the description goes with it, the slot is not locked,
 *   and the manager takes it out of every block again. The fork fails, or the child dies at once:
 *   the same. There is no moment at which the child holds something and nobody knows.
 *
 *   When no slot can be had (no descriptor, 1024 processes), every block that the parent holds is
 *   given one message that nobody will ever claim: it leaks rather than being reused under the
 *   child's hands. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

static struct {
    int fd, sock, slot;
} child[MPSHM__TREES];

static void for_held(struct mpshm__tree *tree,
                     void (*act)(const struct mpshm__arena *, uint32_t, int), int slot)
{
    for (uint32_t a = 0; a < tree->arena_top; a++) {
        struct mpshm__arena *arena = tree->arenas[a];
        if (arena == NULL || arena->holding == 0)
            continue;
        uint64_t left = arena->holding;
        for (uint32_t i = 0; left > 0 && i < arena->capacity; i++)
            if (arena->held[i] != 0) {
                act(arena, i, slot);
                left--;
            }
    }
}

static void add_holder(const struct mpshm__arena *arena, uint32_t i, int slot)
{
    mpshm__add_holder(arena, i, slot);
    atomic_fetch_add(&arena->blocks[i].state, 1);
}

static void leak(const struct mpshm__arena *arena, uint32_t i, int slot)
{
    (void)slot;
    atomic_fetch_add(&arena->blocks[i].overflow, 1);
    atomic_fetch_add(&arena->blocks[i].state, 1);
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
        child[t].fd = mpshm__tree_reopen(tree, tree->stuck_until == 0);
        mpshm__replace_manager(tree, child[t].fd);
        if (mpshm__holding(tree) != 0) { /* otherwise the child may take one when it needs it */
            if (child[t].fd >= 0)
                child[t].slot = mpshm__take_slot(tree->control, child[t].fd);
            if (child[t].slot >= 0)
                for_held(tree, add_holder, child[t].slot);
            else
                for_held(tree, leak, -1);
        }
        if (child[t].fd >= 0)
            child[t].sock = mpshm__connect_child(tree, child[t].slot);
    }
}

static void close_copies(int t)
{
    if (child[t].sock >= 0)
        close(child[t].sock);
    if (child[t].fd >= 0)
        close(child[t].fd);
}

static void in_parent(void)
{
    mpshm__heap_after_fork(0);
    for (int t = 0; t < MPSHM__TREES; t++)
        close_copies(t);
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
        mpshm__fd_close(&arena->fd);
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

/* Without a description of its own the child keeps the parent's alive, and the parent's memory is
 * kept until the child has ended: a leak, and no slot. */
static void become_a_process(struct mpshm__tree *tree, int t)
{
    disown(tree);
    mpshm__disconnect(tree); /* the parent's: it would hide the parent's death */
    tree->slot = -1;
    if (child[t].fd >= 0 && mpshm__tree_remap(tree, child[t].fd) == 0) {
        tree->slot = child[t].slot;
        mpshm__fd_set(&tree->sock, child[t].sock);
        tree->introduced = tree->slot >= 0 && child[t].sock >= 0;
    } else {
        if (child[t].slot >= 0)
            for_held(tree, leak, -1);
        close_copies(t);
        /* The parent's: a lock taken through it would be the parent's, too. What it refers to stays
         * known, so that it can be opened again. */
        if (mpshm__fd_get(&tree->control_fd) >= 0)
            close(tree->control_fd.number);
        tree->control_fd.number = -1;
    }
    if (tree->slot >= 0)
        mpshm__sign_slot(&tree->control->slots[tree->slot], getpid());
    else
        never_let_go(tree);
}

static void in_child(void)
{
    mpshm__fd_drop_reserve(); /* of the parent's description, too */
    for (int t = 0; t < MPSHM__TREES; t++)
        if (mpshm__trees[t] != NULL)
            become_a_process(mpshm__trees[t], t);
    if (mpshm__trees[0] != NULL)
        mpshm__fd_reserve(mpshm__fd_get(&mpshm__trees[0]->control_fd));
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
