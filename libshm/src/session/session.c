/* A tree as one process sees it: its slot, its manager, the arenas that it has met. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

/* Descriptors of others' arenas that are kept open, so that they can be registered again when the
 * manager is killed after their owner. Few, because descriptors are scarce. */
enum { KEEP_FDS = 4 };

struct mpshm__tree *mpshm__trees[MPSHM__TREES];

static void leave(struct mpshm__tree *tree)
{
    for (uint32_t i = 0; i < tree->arena_top; i++)
        mpshm__arena_unmap(tree->arenas[i]);
    mpshm__fd_close(&tree->sock);
    if (tree->control != NULL)
        munmap(tree->control, sizeof(*tree->control));
    mpshm__fd_close(&tree->control_fd);
    free(tree);
}

void mpshm__tree_forget(struct mpshm__tree *tree)
{
    for (int i = 1; i < MPSHM__TREES; i++)
        if (mpshm__trees[i] == tree && mpshm__holding(tree) == 0) {
            leave(tree);
            mpshm__trees[i] = NULL;
        }
}

/* A place in the table: home has the first; among the others, one of which nothing is held may go.
 */
static int place_for(int is_home)
{
    if (is_home)
        return 0;
    for (int i = 1; i < MPSHM__TREES; i++)
        if (mpshm__trees[i] == NULL)
            return i;
    for (int i = 1; i < MPSHM__TREES; i++)
        if (mpshm__holding(mpshm__trees[i]) == 0) {
            leave(mpshm__trees[i]);
            mpshm__trees[i] = NULL;
            return i;
        }
    return -EUSERS;
}

int mpshm__tree_is_met(const unsigned char *id)
{
    for (int i = 0; i < MPSHM__TREES; i++)
        if (mpshm__trees[i] != NULL && memcmp(mpshm__trees[i]->id, id, MPSHM_ID_SIZE) == 0)
            return 1;
    return 0;
}

static struct mpshm__tree *blank(const unsigned char *id)
{
    struct mpshm__tree *tree = calloc(1, sizeof(*tree));

    mpshm__fork_handlers();
    if (tree == NULL)
        return NULL;
    memcpy(tree->id, id, MPSHM_ID_SIZE);
    tree->sock = tree->control_fd = MPSHM__NO_FD;
    tree->slot = -1;
    return tree;
}

int mpshm__tree_of(const unsigned char *id, int is_home, struct mpshm__tree **out)
{
    struct mpshm__tree *tree;
    int at, err;

    for (int i = 0; i < MPSHM__TREES; i++)
        if (mpshm__trees[i] != NULL && memcmp(mpshm__trees[i]->id, id, MPSHM_ID_SIZE) == 0) {
            *out = mpshm__trees[i];
            return 0;
        }
    tree = blank(id);
    if (tree == NULL)
        return -ENOMEM;
    err = mpshm__tree_enter(tree, is_home);
    /* One that no manager has ever looked after has nothing to offer: the handle is made up. */
    if (err == 0 && !is_home && atomic_load(&tree->control->ready) != 1)
        err = -ESTALE;
    at = err == 0 ? place_for(is_home) : err;
    if (at < 0) {
        leave(tree);
        return at;
    }
    mpshm__fd_reserve(mpshm__fd_get(&tree->control_fd));
    *out = mpshm__trees[at] = tree;
    return 0;
}

/* Another thread of the parent may have forked while the descriptor was on its way: then that child
 * has a copy, and a lock through it would outlive this process. Takes `fd` over. */
static int alone(int fd)
{
    char path[32];
    int own;

    if (fd < 0)
        return fd;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    own = (int)MPSHM__RETRY(open(path, O_RDWR | O_CLOEXEC));
    if (own < 0)
        return fd; /* no /proc: that one has to do */
    close(fd);
    return own;
}

int mpshm__tree_inherit(const unsigned char *id, int control_fd, int sock)
{
    struct mpshm__tree *tree = mpshm__trees[0] == NULL ? blank(id) : NULL;

    control_fd = alone(control_fd);
    int err = tree == NULL ? -ENOMEM : mpshm__tree_enter_by(tree, control_fd);

    if (err < 0) { /* there already, or not to be had: then by the path */
        if (sock >= 0)
            close(sock);
        if (tree == NULL && control_fd >= 0)
            close(control_fd);
        if (tree != NULL)
            leave(tree);
        return mpshm__trees[0] != NULL ? 0 : err;
    }
    mpshm__fd_set(&tree->sock, sock);
    mpshm__fd_reserve(mpshm__fd_get(&tree->control_fd));
    mpshm__trees[0] = tree;
    return 0;
}

/* ---- arenas ---- */

static void put(struct mpshm__tree *tree, struct mpshm__arena *arena)
{
    arena->tree = tree;
    tree->arenas[arena->index] = arena;
    if (arena->index >= tree->arena_top)
        tree->arena_top = arena->index + 1;
}

static void drop(struct mpshm__tree *tree, uint32_t i)
{
    if (tree->arenas[i]->fd.number >= 0 && !tree->arenas[i]->own)
        tree->kept_fds--;
    mpshm__arena_unmap(tree->arenas[i]);
    tree->arenas[i] = NULL;
}

void mpshm__drop_stale_arenas(struct mpshm__tree *tree)
{
    for (uint32_t i = 0; i < tree->arena_top; i++) {
        struct mpshm__arena *arena = tree->arenas[i];
        if (arena != NULL && !arena->own && arena->holding == 0 &&
            atomic_load(&tree->control->arenas[i].nonce[0]) != arena->nonce[0])
            drop(tree, i);
    }
}

int mpshm__arena_place(struct mpshm__tree *tree, struct mpshm__arena *arena)
{
    mpshm__drop_stale_arenas(tree);
    if (tree->arenas[arena->index] != NULL)
        return -ESTALE;
    put(tree, arena);
    return 0;
}

int mpshm__arena_register(struct mpshm__tree *tree, struct mpshm__arena *arena)
{
    int err = 0;

    for (int attempt = 0; attempt < MPSHM__ATTEMPTS; attempt++) {
        err = mpshm__join(tree);
        if (err < 0)
            return err;
        err = mpshm__offer(tree, arena, 0);
        if (err == 0 && tree->arenas[arena->index] != NULL) { /* of an arena that is gone */
            if (tree->arenas[arena->index]->holding != 0)
                return -ESTALE;
            drop(tree, arena->index);
        }
        if (err == 0) {
            put(tree, arena);
            return 0;
        }
        if (!mpshm__worth_another(err, attempt))
            return err;
        mpshm__disconnect(tree);
    }
    return err;
}

int mpshm__arena_is_met(const struct mpshm__tree *tree, uint32_t index, uint64_t nonce0)
{
    return index < MPSHM__ARENAS && tree->arenas[index] != NULL &&
           tree->arenas[index]->nonce[0] == nonce0;
}

/* By name where it has one; from the manager, who has them all; and from the owner's /proc when the
 * manager does not answer. */
static int descriptor_of(struct mpshm__tree *tree, uint32_t index)
{
    const struct mpshm__arena_row *row = &tree->control->arenas[index];
    struct mpshm__frame frame = {.magic = MPSHM__WIRE, .op = MPSHM__GET, .a = index};
    int err, fd = -1;

    if (atomic_load(&row->strategy) == MPSHM_FILE_SYSTEM) {
        uint64_t nonce[2] = {atomic_load(&row->nonce[0]), atomic_load(&row->nonce[1])};
        do
            fd = mpshm__object_open_name(nonce);
        while (mpshm__fd_use_reserve(fd));
        if (fd >= 0)
            return fd;
    }
    err = mpshm__ask(tree, &frame, &fd);
    if (err == 0 && fd >= 0)
        return fd;
    fd = mpshm__object_from_owner(row);
    return fd >= 0 ? fd : err < 0 ? err : -EBADMSG;
}

int mpshm__arena_meet(struct mpshm__tree *tree, uint32_t index, uint64_t nonce0,
                      struct mpshm__arena **out)
{
    struct mpshm__arena *arena;
    struct mpshm__arena_row *row;
    int fd, err;

    if (index >= MPSHM__ARENAS)
        return -EBADMSG;
    if (mpshm__arena_is_met(tree, index, nonce0)) {
        *out = tree->arenas[index];
        return 0;
    }
    row = &tree->control->arenas[index];
    if (atomic_load(&row->nonce[0]) != nonce0)
        return -ESTALE;
    mpshm__drop_stale_arenas(tree);
    if (tree->arenas[index] != NULL)
        return -ESTALE; /* blocks of an arena that the control file has forgotten */
    fd = descriptor_of(tree, index);
    if (fd < 0)
        return fd;
    err = mpshm__arena_map(fd, index, row, tree, &arena);
    if (err < 0) {
        close(fd);
        return err;
    }
    /* What the reserve has lent goes back first. */
    if (arena->strategy == MPSHM_FILE_DESCRIPTOR && tree->kept_fds < KEEP_FDS &&
        mpshm__fd_reserved() > 0) {
        mpshm__fd_set(&arena->fd, fd);
        tree->kept_fds++;
    } else {
        close(fd);
    }
    mpshm__fd_reserve(mpshm__fd_get(&tree->control_fd));
    put(tree, arena);
    *out = arena;
    return 0;
}

/* ---- leaving ---- */

/* A tree that no manager looks after, because none was needed or because it was killed, is cleaned
 * up by the last process that leaves it in good order. A process that is killed cleans up nothing;
 * then the next manager of this user does. */
__attribute__((destructor)) static void last_one_out(void)
{
    if (!mpshm__try_acquire())
        return; /* a thread is at it still */
    /* The lock is kept: whatever thread is left has nothing to do here any more. */
    for (int i = 0; i < MPSHM__TREES; i++) {
        struct mpshm__tree *tree = mpshm__trees[i];
        char byte;
        int control = tree != NULL ? mpshm__fd_get(&tree->control_fd) : -1;
        int sock = tree != NULL ? mpshm__fd_get(&tree->sock) : -1;
        if (control < 0)
            continue;
        if (sock >= 0 && recv(sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0)
            continue; /* it will see us go */
        if (mpshm__manager_is_there(tree))
            continue;
        mpshm__disconnect(tree);
        flock(control, LOCK_UN); /* closing is not enough, the mapping keeps it open */
        mpshm__tree_sweep(tree->id);
    }
}
