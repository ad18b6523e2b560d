/* Which segment a block comes from: one of its own, one that a dead process has left, a new one.
 *
 * Note [Segments grow]
 *   The first segment of a process is small, and each new one is as large as all that it has
 * together. So there are few of them however much is used (mappings, descriptors), and little
 * address space is taken by a process that uses little (ulimit -v, mlockall). What a dead process
 *   has left is adopted before a new segment is made: their number is bounded by the processes that
 *   live, and not by those that have lived. */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

#include "internal.h"

static int memfd_is_refused; /* with the lock held */

int mpshm__usable_strategy(int strategy)
{
    return strategy == MPSHM_FILE_DESCRIPTOR && memfd_is_refused ? MPSHM_FILE_SYSTEM : strategy;
}

static void own(struct mpshm__tree *tree, struct mpshm__arena *arena)
{
    arena->next_own = tree->own;
    tree->own = arena;
}

/* It had room: it is asked first the next time. */
static void to_the_front(struct mpshm__tree *tree, struct mpshm__arena *arena)
{
    struct mpshm__arena **link = &tree->own;

    while (*link != arena)
        link = &(*link)->next_own;
    *link = arena->next_own;
    own(tree, arena);
}

/* Not ours any more when a manager took us for dead. Whoever has it now allocates in it, so what we
 * know of it is worth nothing. It cannot happen while our slot is locked; to look costs a load. */
static int is_ours(const struct mpshm__tree *tree, const struct mpshm__arena *arena)
{
    return atomic_load_explicit(&tree->control->arenas[arena->index].owner, memory_order_relaxed) ==
           (uint32_t)tree->slot;
}

static int from_own(struct mpshm__tree *tree, int strategy, uint64_t nbytes, int zeroed,
                    struct mpshm__arena **out, uint32_t *i)
{
    for (int source = MPSHM__FROM_WARM; source <= MPSHM__FROM_ANY; source++)
        for (struct mpshm__arena *arena = tree->own; arena != NULL; arena = arena->next_own) {
            if (arena->strategy != strategy || !is_ours(tree, arena))
                continue;
            int err = mpshm__allocate_in(tree->control, arena, source, nbytes, zeroed, i);
            if (err == -EXFULL)
                continue;
            *out = arena;
            if (err == 0 && source == MPSHM__FROM_GROUND && arena != tree->own)
                to_the_front(tree, arena);
            return err;
        }
    return -EXFULL;
}

/* ---- adopted ---- */

static int somebody_left_one(const struct mpshm__tree *tree, int strategy)
{
    for (uint32_t i = 0; i < MPSHM__ARENAS; i++) {
        const struct mpshm__arena_row *row = &tree->control->arenas[i];
        uint32_t handed = atomic_load_explicit(&row->handed, memory_order_relaxed);
        if (atomic_load_explicit(&row->nonce[0], memory_order_relaxed) != 0 &&
            atomic_load_explicit(&row->strategy, memory_order_relaxed) == (uint32_t)strategy &&
            (atomic_load_explicit(&row->owner, memory_order_relaxed) == MPSHM__NO_SLOT ||
             handed == (uint32_t)tree->slot + 1))
            return 1;
    }
    return 0;
}

/* The mapping of row `index`: the one that this process has already, or a new one. Takes `fd`. */
static int mapped(struct mpshm__tree *tree, uint32_t index, int fd, struct mpshm__arena **out)
{
    struct mpshm__arena_row *row = &tree->control->arenas[index];
    struct mpshm__arena *arena = tree->arenas[index];
    int err;

    if (arena != NULL && mpshm__arena_is_met(tree, index, atomic_load(&row->nonce[0]))) {
        if (arena->fd.number >= 0)
            tree->kept_fds--;
        mpshm__fd_close(&arena->fd);
        mpshm__fd_set(&arena->fd, fd);
        *out = arena;
        return 0;
    }
    err = mpshm__arena_map(fd, index, row, tree, &arena);
    if (err < 0) {
        close(fd);
        return err;
    }
    mpshm__fd_set(&arena->fd, fd);
    err = mpshm__arena_place(tree, arena);
    if (err < 0)
        mpshm__arena_unmap(arena); /* and with it the descriptor */
    *out = arena;
    return err;
}

/* `*left` is what the dead have left altogether, when nothing of it is of use. */
static int adopt(struct mpshm__tree *tree, int strategy, uint64_t least, uint64_t nbytes,
                 uint64_t *left)
{
    struct mpshm__frame frame = {.magic = MPSHM__WIRE,
                                 .op = MPSHM__ADOPT,
                                 .strategy = (uint16_t)strategy,
                                 .nonce = {least, 0},
                                 .size = nbytes};
    struct mpshm__arena *arena;
    int fd = -1, err = mpshm__ask(tree, &frame, &fd);

    *left = err == -ENOENT ? frame.size : 0;
    if (err == 0 && (fd < 0 || frame.a >= MPSHM__ARENAS))
        err = -EBADMSG;
    if (err < 0) {
        if (fd >= 0)
            close(fd);
        return err;
    }
    struct mpshm__arena_row *row = &tree->control->arenas[frame.a];
    uint32_t handed = (uint32_t)tree->slot + 1;
    /* Confirmed before anything in it is changed: the manager takes back what is not. */
    if (!atomic_compare_exchange_strong(&row->handed, &handed, 0)) {
        close(fd);
        return -ESTALE;
    }
    atomic_store(&row->owner_fd, fd);
    err = mapped(tree, frame.a, fd, &arena);
    if (err == 0) {
        arena->must_reserve = mpshm__object_must_reserve(strategy);
        err = mpshm__arena_adopt(tree->control, arena);
        /* Not ours after all. What was listed stays LISTED for the next one. */
        if (err < 0)
            arena->own = 0, tree->kept_fds++;
    }
    if (err < 0) {
        atomic_store(&row->owner, MPSHM__NO_SLOT);
        return err;
    }
    own(tree, arena);
    return 0;
}

/* ---- made ---- */

static int make(struct mpshm__tree *tree, int strategy, uint64_t size, uint64_t nbytes)
{
    struct mpshm__slot *slot = &tree->control->slots[tree->slot];
    struct mpshm__arena *arena;
    int err = mpshm__arena_create(strategy, size, nbytes, tree->id, slot, &arena);

    if (err < 0)
        return err;
    err = mpshm__arena_register(tree, arena);
    if (err < 0) {
        if (strategy == MPSHM_FILE_SYSTEM)
            mpshm__object_unlink(arena->nonce);
        mpshm__arena_unmap(arena);
        return err;
    }
    atomic_store(&slot->making[0], 0);
    own(tree, arena);
    return 0;
}

static int grow(struct mpshm__tree *tree, int strategy, uint64_t nbytes)
{
    uint64_t total = 0, size, left;
    int err = mpshm__join(tree);

    if (err < 0)
        return err;
    for (struct mpshm__arena *arena = tree->own; arena != NULL; arena = arena->next_own)
        total += arena->room;
    size = mpshm__arena_next_size(total);
    if (somebody_left_one(tree, strategy)) {
        if (adopt(tree, strategy, size / 2, nbytes, &left) == 0)
            return 0;
        /* When much is left behind and in use, there are many generations. Grow with them, or what
         * each of them leaves is a segment more. */
        if (size < left)
            size = mpshm__arena_next_size(left);
    }
    return make(tree, strategy, size, nbytes);
}

int mpshm__find_room(struct mpshm__tree *tree, int strategy, uint64_t nbytes, int flags,
                     struct mpshm__arena **out, uint32_t *i)
{
    int zeroed = flags & MPSHM_ZEROED, err;

    strategy = mpshm__usable_strategy(strategy);
    /* After setuid: a name of ours could be opened by nobody else of the tree. */
    if (strategy == MPSHM_FILE_SYSTEM && geteuid() != tree->user && !memfd_is_refused)
        strategy = MPSHM_FILE_DESCRIPTOR;
    err = from_own(tree, strategy, nbytes, zeroed, out, i);
    if (err != -EXFULL)
        return err;
    if (flags & MPSHM_NOWAIT)
        return -EAGAIN;
    err = grow(tree, strategy, nbytes);
    if (err == -EOPNOTSUPP && strategy == MPSHM_FILE_DESCRIPTOR) {
        /* A sandbox that refuses memfds may still have /dev/shm. */
        memfd_is_refused = 1;
        strategy = MPSHM_FILE_SYSTEM;
        err = from_own(tree, strategy, nbytes, zeroed, out, i);
        if (err != -EXFULL)
            return err;
        err = grow(tree, strategy, nbytes);
        if (err < 0)
            memfd_is_refused = 0;
        if (err == -ENODEV)
            err = -EOPNOTSUPP; /* neither is to be had */
    }
    if (err < 0)
        return err;
    err = from_own(tree, strategy, nbytes, zeroed, out, i);
    return err == -EXFULL ? -ENOMEM : err;
}
