/* A tree as one process sees it: its slot, its manager, the arenas that it has met. */
#define _GNU_SOURCE
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
enum { KEEP_FDS = 6, ATTEMPTS = 20, GIVE_IT_A_REST_S = 10 };

struct mpshm__tree *mpshm__trees[MPSHM__TREES];

static void leave(struct mpshm__tree *tree)
{
    for (uint32_t i = 0; i < tree->arena_top; i++)
        mpshm__arena_unmap(tree->arenas[i]);
    if (tree->sock >= 0)
        close(tree->sock);
    if (tree->control != NULL)
        munmap(tree->control, sizeof(*tree->control));
    if (tree->control_fd >= 0)
        close(tree->control_fd);
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

int mpshm__tree_of(const unsigned char *id, int is_home, struct mpshm__tree **out)
{
    struct mpshm__tree *tree;
    int at, err;

    for (int i = 0; i < MPSHM__TREES; i++)
        if (mpshm__trees[i] != NULL && memcmp(mpshm__trees[i]->id, id, MPSHM_ID_SIZE) == 0) {
            *out = mpshm__trees[i];
            return 0;
        }
    mpshm__fork_handlers();
    tree = calloc(1, sizeof(*tree));
    if (tree == NULL)
        return -ENOMEM;
    memcpy(tree->id, id, MPSHM_ID_SIZE);
    tree->sock = tree->slot = tree->control_fd = -1;
    err = mpshm__tree_enter(tree, is_home);
    /* One that no manager has ever looked after has nothing to offer: the handle is made up. */
    if (err == 0 && !is_home && atomic_load(&tree->control->ready) != 1)
        err = -ESTALE;
    at = err == 0 ? place_for(is_home) : err;
    if (at < 0) {
        leave(tree);
        return at;
    }
    *out = mpshm__trees[at] = tree;
    return 0;
}

/* ---- talking to the manager ---- */

static void disconnect(struct mpshm__tree *tree)
{
    if (tree->sock >= 0)
        close(tree->sock);
    tree->sock = -1;
}

/* Send, and wait for the answer. When that fails the connection is of no use any more: an answer
 * that comes late would be taken for the answer to the next question. */
static int converse(int sock, struct mpshm__frame *frame, int fd, int *fd_out)
{
    int got = -1;
    int err = mpshm__send_frame(sock, frame, fd);

    if (err == 0)
        err = mpshm__recv_frame(sock, frame, &got);
    if (err < 0) {
        shutdown(sock, SHUT_RDWR);
        return err == -EAGAIN ? -ETIMEDOUT : err;
    }
    if (frame->op != MPSHM__ANSWER || (frame->err < 0 && got >= 0)) {
        if (got >= 0)
            close(got);
        return -EBADMSG;
    }
    if (fd_out != NULL)
        *fd_out = got;
    else if (got >= 0)
        close(got);
    return frame->err;
}

/* Is it worth asking a manager again, and not a matter of what was asked? One that is being killed
 * still has its socket for a moment, so the next attempt comes a little later. */
static int worth_another(int err, int attempt)
{
    struct timespec pause = {.tv_nsec = attempt == 0 ? 0 : 2000000};

    if (err != -ECONNRESET && err != -EBADMSG && err != -EPIPE && err != -ENOTCONN)
        return 0;
    nanosleep(&pause, NULL);
    return 1;
}

static int say_hello(struct mpshm__tree *tree)
{
    struct mpshm__frame frame = {
        .magic = MPSHM__WIRE,
        .op = MPSHM__HELLO,
        .a = tree->slot >= 0 ? (uint32_t)tree->slot : MPSHM__NO_SLOT,
    };
    int err = converse(tree->sock, &frame, -1, NULL);

    if (err < 0)
        return err;
    if (frame.a >= MPSHM__SLOTS || atomic_load(&tree->control->ready) != 1 ||
        (tree->slot >= 0 && frame.a != (uint32_t)tree->slot))
        return -EBADMSG;
    err = mpshm__lock_slot(tree->control_fd, (int)frame.a);
    if (err < 0)
        return err;
    mpshm__sign_slot(&tree->control->slots[frame.a], getpid());
    if (tree->slot < 0) /* who comes back has the slot that it had, and others may be reading it */
        tree->slot = (int)frame.a;
    return 0;
}

static int offer(struct mpshm__tree *tree, struct mpshm__arena *arena, int known)
{
    struct mpshm__frame frame = {
        .magic = MPSHM__WIRE,
        .op = MPSHM__REGISTER,
        .strategy = (uint16_t)arena->strategy,
        .a = known ? arena->index : MPSHM__NO_SLOT,
        .nonce = {arena->nonce[0], arena->nonce[1]},
        .size = arena->size,
        .fd_number = arena->fd,
    };
    int err = converse(tree->sock, &frame, arena->fd, NULL);

    if (err == 0 && (frame.a >= MPSHM__ARENAS || (known && frame.a != arena->index)))
        err = -EBADMSG;
    if (err == 0 && !known) /* otherwise others may be reading it */
        arena->index = frame.a;
    return err;
}

int mpshm__join(struct mpshm__tree *tree)
{
    int err = 0;

    if (tree->sock >= 0 && tree->slot >= 0)
        return 0;
    /* A manager that is stopped costs one wait and not one for each array. */
    if (tree->stuck_until != 0 && mpshm__now_ns() < tree->stuck_until)
        return -ETIMEDOUT;
    tree->stuck_until = 0;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        disconnect(tree);
        tree->sock = err = mpshm__manager_connect(tree);
        if (err >= 0)
            err = say_hello(tree);
        /* To a manager that is new everything has to be said again. */
        for (uint32_t i = 0; err == 0 && i < tree->arena_top; i++)
            if (tree->arenas[i] != NULL && tree->arenas[i]->fd >= 0) {
                err = offer(tree, tree->arenas[i], 1);
                if (err == -ESTALE || err == -EMFILE || err == -ENOMEM)
                    err = 0; /* one that it will not have is still good for us */
            }
        if (err == 0)
            return 0;
        disconnect(tree);
        if (err == -ETIMEDOUT)
            tree->stuck_until = mpshm__now_ns() + GIVE_IT_A_REST_S * 1000000000ull;
        if (!worth_another(err, attempt))
            return err;
    }
    return err;
}

/* One question, asked again when the manager was killed meanwhile. */
int mpshm__ask(struct mpshm__tree *tree, struct mpshm__frame *frame, int *fd_out)
{
    struct mpshm__frame question = *frame;
    int err = 0;

    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        err = mpshm__join(tree);
        if (err < 0)
            return err;
        *frame = question;
        err = converse(tree->sock, frame, -1, fd_out);
        if (err == -ETIMEDOUT)
            disconnect(tree);
        if (!worth_another(err, attempt))
            return err;
        disconnect(tree);
    }
    return err;
}

int mpshm__child_slot(struct mpshm__tree *tree, int *sock_out, int *slot_out)
{
    int err = 0;

    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        struct mpshm__frame frame = {.magic = MPSHM__WIRE, .op = MPSHM__HELLO_CHILD};
        int sock = err = mpshm__manager_connect(tree);
        if (err >= 0)
            err = converse(sock, &frame, -1, NULL);
        if (err == 0 && frame.a >= MPSHM__SLOTS)
            err = -EBADMSG;
        if (err == 0) {
            *sock_out = sock;
            *slot_out = (int)frame.a;
            return 0;
        }
        if (sock >= 0)
            close(sock);
        if (!worth_another(err, attempt))
            return err;
    }
    return err;
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
    if (tree->arenas[i]->fd >= 0 && !tree->arenas[i]->own)
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

    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        err = mpshm__join(tree);
        if (err < 0)
            return err;
        err = offer(tree, arena, 0);
        if (err == 0 && tree->arenas[arena->index] != NULL) { /* of an arena that is gone */
            if (tree->arenas[arena->index]->holding != 0)
                return -ESTALE;
            drop(tree, arena->index);
        }
        if (err == 0) {
            put(tree, arena);
            return 0;
        }
        if (!worth_another(err, attempt))
            return err;
        disconnect(tree);
    }
    return err;
}

int mpshm__arena_is_met(const struct mpshm__tree *tree, uint32_t index, uint64_t nonce0)
{
    return index < MPSHM__ARENAS && tree->arenas[index] != NULL &&
           tree->arenas[index]->nonce[0] == nonce0;
}

int mpshm__arena_meet(struct mpshm__tree *tree, uint32_t index, uint64_t nonce0,
                      struct mpshm__arena **out)
{
    struct mpshm__arena *arena;
    struct mpshm__arena_row *row;
    int fd = -1, err;

    if (index >= MPSHM__ARENAS)
        return -EBADMSG;
    if (mpshm__arena_is_met(tree, index, nonce0)) {
        *out = tree->arenas[index];
        return 0;
    }
    err = mpshm__join(tree); /* a claim needs a slot, and a mapping should be a fresh one */
    if (err < 0)
        return err;
    row = &tree->control->arenas[index];
    if (atomic_load(&row->nonce[0]) != nonce0)
        return -ESTALE;
    mpshm__drop_stale_arenas(tree);
    if (tree->arenas[index] != NULL)
        return -ESTALE; /* blocks of an arena that the control file has forgotten */

    if (atomic_load(&row->strategy) == MPSHM_FILE_SYSTEM) {
        uint64_t nonce[2] = {atomic_load(&row->nonce[0]), atomic_load(&row->nonce[1])};
        fd = err = mpshm__object_open_name(nonce);
    } else {
        struct mpshm__frame frame = {.magic = MPSHM__WIRE, .op = MPSHM__GET, .a = index};
        err = mpshm__ask(tree, &frame, &fd);
        if (err == 0 && fd < 0)
            err = -EBADMSG;
    }
    if (err < 0)
        return err;
    err = mpshm__arena_map(fd, index, row, tree->id, &arena);
    if (err < 0) {
        close(fd);
        return err;
    }
    if (arena->strategy == MPSHM_FILE_DESCRIPTOR && tree->kept_fds < KEEP_FDS) {
        arena->fd = fd;
        tree->kept_fds++;
    } else {
        close(fd);
    }
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
        if (tree == NULL || tree->control_fd < 0)
            continue;
        if (tree->sock >= 0 && recv(tree->sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0)
            continue; /* it will see us go */
        if (mpshm__manager_is_there(tree))
            continue;
        disconnect(tree);
        flock(tree->control_fd, LOCK_UN); /* closing is not enough, the mapping keeps it open */
        mpshm__tree_sweep(tree->id);
    }
}
