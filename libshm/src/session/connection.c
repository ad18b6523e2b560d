/* What a client says to the manager of its tree: it introduces itself, registers arenas, asks for
 * those of others, and introduces its children. */
#define _GNU_SOURCE
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

enum { ANSWER_WITHIN_S = 10, GIVE_IT_A_REST_S = 10 };

void mpshm__disconnect(struct mpshm__tree *tree)
{
    mpshm__fd_close(&tree->sock);
    tree->introduced = 0;
}

/* Send, and wait for the answer, ten seconds in all, however many signals come. When that fails the
 * connection is of no use any more: an answer that comes late would be taken for the answer to the
 * next question. */
static int converse(int sock, struct mpshm__frame *frame, int fd, int *fd_out)
{
    uint64_t until = mpshm__now_ns() + ANSWER_WITHIN_S * 1000000000ull;
    int got = -1;
    int err = mpshm__send_frame(sock, frame, fd, until);

    if (err == 0)
        err = mpshm__recv_frame(sock, frame, &got, until);
    if (err == -EMFILE)
        return err; /* the answer is here, its descriptor is not: ask again with room for it */
    if (err < 0) {
        shutdown(sock, SHUT_RDWR);
        return err;
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

/* Not a matter of what was asked. A manager that is being killed still has its socket for a moment,
 * so the next attempt comes a little later; some two seconds in all, since somebody may be killing
 * one after the other. */
int mpshm__worth_another(int err, int attempt)
{
    long ms = attempt == 0 ? 0 : attempt < 20 ? 2 : 20;
    struct timespec pause = {.tv_nsec = ms * 1000000};

    if (err != -ECONNRESET && err != -EBADMSG && err != -EPIPE && err != -ENOTCONN &&
        err != -ECONNREFUSED)
        return 0;
    nanosleep(&pause, NULL);
    return 1;
}

/* A manager that is stopped costs one wait and not one for each array. */
static int is_stuck(struct mpshm__tree *tree)
{
    if (tree->stuck_until != 0 && mpshm__now_ns() >= tree->stuck_until)
        tree->stuck_until = 0;
    return tree->stuck_until != 0;
}

static int connected(struct mpshm__tree *tree)
{
    int err;

    if (mpshm__fd_get(&tree->sock) >= 0)
        return 0;
    tree->introduced = 0; /* the program has closed it under us */
    err = mpshm__manager_connect(tree, 1);
    if (err == -ETIMEDOUT)
        tree->stuck_until = mpshm__now_ns() + GIVE_IT_A_REST_S * 1000000000ull;
    if (err < 0)
        return err;
    mpshm__fd_set(&tree->sock, err);
    return 0;
}

static int said(struct mpshm__tree *tree, struct mpshm__frame *frame, int fd, int *fd_out)
{
    int err = converse(mpshm__fd_get(&tree->sock), frame, fd, fd_out);

    if (err == -ETIMEDOUT) {
        tree->stuck_until = mpshm__now_ns() + GIVE_IT_A_REST_S * 1000000000ull;
        mpshm__disconnect(tree);
    }
    return err;
}

/* Where the program has closed the descriptor of the control file, the lock must be taken through
 * a new description, and the file be mapped through the same. */
static int slot_of_own(struct mpshm__tree *tree)
{
    int err;

    if (tree->slot >= 0)
        return 0;
    if (mpshm__fd_get(&tree->control_fd) < 0) {
        int fd = mpshm__tree_reopen(tree, 1);
        if (fd < 0)
            return fd;
        err = mpshm__tree_remap(tree, fd);
        if (err < 0)
            return err;
    }
    tree->slot = err = mpshm__take_slot(tree->control, mpshm__fd_get(&tree->control_fd));
    if (err < 0)
        tree->slot = -1;
    return err < 0 ? err : 0;
}

static int say_hello(struct mpshm__tree *tree)
{
    struct mpshm__frame frame = {.magic = MPSHM__WIRE, .op = MPSHM__HELLO};
    int err = slot_of_own(tree);

    if (err < 0)
        return err;
    frame.a = (uint32_t)tree->slot;
    err = said(tree, &frame, -1, NULL);
    if (err == 0 && (frame.a != (uint32_t)tree->slot || atomic_load(&tree->control->ready) != 1))
        err = -EBADMSG;
    return err;
}

int mpshm__offer(struct mpshm__tree *tree, struct mpshm__arena *arena, int known)
{
    int fd = mpshm__fd_get(&arena->fd);
    struct mpshm__frame frame = {
        .magic = MPSHM__WIRE,
        .op = MPSHM__REGISTER,
        .strategy = (uint16_t)arena->strategy,
        .a = known ? arena->index : MPSHM__NO_SLOT,
        .nonce = {arena->nonce[0], arena->nonce[1]},
        .size = arena->size,
        .fd_number = fd,
    };
    int err = said(tree, &frame, fd, NULL);

    if (err == 0 && (frame.a >= MPSHM__ARENAS || (known && frame.a != arena->index)))
        err = -EBADMSG;
    if (err == 0 && !known) /* otherwise others may be reading it */
        arena->index = frame.a;
    return err;
}

/* Own memory whose descriptor the program has closed: the manager has one too. Without it the next
 * manager could not find the arena again. */
static void fetch_again(struct mpshm__tree *tree, struct mpshm__arena *arena)
{
    struct mpshm__frame frame = {.magic = MPSHM__WIRE, .op = MPSHM__GET, .a = arena->index};
    struct mpshm__fd known = arena->fd;
    int fd = -1;

    if (said(tree, &frame, -1, &fd) < 0 || fd < 0)
        return;
    if (mpshm__fd_is(&known, fd))
        mpshm__fd_set(&arena->fd, fd);
    else
        close(fd);
}

/* To a manager that is new everything has to be said again. */
static int introduce(struct mpshm__tree *tree)
{
    int err = say_hello(tree);

    for (uint32_t i = 0; err == 0 && i < tree->arena_top; i++) {
        struct mpshm__arena *arena = tree->arenas[i];
        if (arena == NULL)
            continue;
        if (arena->own && mpshm__fd_get(&arena->fd) < 0)
            fetch_again(tree, arena);
        if (mpshm__fd_get(&arena->fd) < 0)
            continue;
        err = mpshm__offer(tree, arena, 1);
        if (err == -ESTALE || err == -EMFILE || err == -ENOMEM)
            err = 0; /* one that it will not have is still good for us */
    }
    tree->introduced = err == 0;
    return err;
}

int mpshm__join(struct mpshm__tree *tree)
{
    int err = 0;

    if (tree->introduced && tree->slot >= 0 && mpshm__fd_get(&tree->sock) >= 0)
        return 0;
    if (is_stuck(tree))
        return -ETIMEDOUT;
    for (int attempt = 0; attempt < MPSHM__ATTEMPTS; attempt++) {
        err = connected(tree);
        if (err == 0)
            err = introduce(tree);
        if (err == 0 || err == -EUSERS) /* without a slot, the connection is still good */
            return err;
        mpshm__disconnect(tree);
        if (!mpshm__worth_another(err, attempt))
            return err;
    }
    return err;
}

void mpshm__replace_manager(struct mpshm__tree *tree, int control_fd)
{
    int sock = mpshm__fd_get(&tree->sock);
    char byte;

    if (tree->slot < 0 || (sock >= 0 && recv(sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0))
        return;
    mpshm__disconnect(tree);
    /* One that hung up is ending, and loses its lock a moment after its connections. */
    for (int ms = 0; sock >= 0 && ms < 100 && control_fd >= 0 &&
                     mpshm__byte_is_locked(control_fd, MPSHM__MANAGER_BYTE);
         ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    /* One that lives may be stopped, and is not waited for. */
    if (control_fd < 0 || !mpshm__byte_is_locked(control_fd, MPSHM__MANAGER_BYTE))
        mpshm__join(tree);
}

int mpshm__ask(struct mpshm__tree *tree, struct mpshm__frame *frame, int *fd_out)
{
    struct mpshm__frame question = *frame;
    int err = 0;

    if (is_stuck(tree))
        return -ETIMEDOUT;
    for (int attempt = 0; attempt < MPSHM__ATTEMPTS; attempt++) {
        err = connected(tree);
        /* Who has a slot says so first: some questions are for those alone. */
        if (err == 0 && tree->slot >= 0 && !tree->introduced)
            err = introduce(tree);
        *frame = question;
        if (err == 0)
            err = said(tree, frame, -1, fd_out);
        if (mpshm__fd_use_reserve(err))
            continue;
        if (!mpshm__worth_another(err, attempt))
            return err;
        mpshm__disconnect(tree);
    }
    return err;
}

int mpshm__connect_child(struct mpshm__tree *tree, int slot)
{
    struct mpshm__frame frame = {
        .magic = MPSHM__WIRE,
        .op = MPSHM__CHILD,
        .a = slot >= 0 ? (uint32_t)slot : MPSHM__NO_SLOT,
    };
    int pair[2], err, sock = mpshm__fd_get(&tree->sock);

    if (sock < 0) { /* then it introduces itself, through a connection of its own */
        sock = mpshm__manager_try(tree);
        if (sock < 0)
            return sock;
        err = mpshm__send_frame(sock, &frame, -1, 0);
        if (err == 0)
            return sock;
        close(sock);
        return err;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    err = mpshm__send_frame(sock, &frame, pair[0], 0);
    close(pair[0]);
    if (err == 0)
        return pair[1];
    close(pair[1]);
    return err;
}

int mpshm__control_from_manager(struct mpshm__tree *tree)
{
    struct mpshm__frame frame = {.magic = MPSHM__WIRE, .op = MPSHM__CONTROL};
    int err, fd = -1;

    if (mpshm__fd_get(&tree->sock) < 0) {
        err = mpshm__manager_connect(tree, 0);
        if (err < 0)
            return err == -ECONNREFUSED ? -ENOENT : err;
        mpshm__fd_set(&tree->sock, err);
        tree->introduced = 0;
    }
    do {
        frame.op = MPSHM__CONTROL;
        err = said(tree, &frame, -1, &fd);
    } while (mpshm__fd_use_reserve(err));
    if (err < 0 && err != -EMFILE)
        mpshm__disconnect(tree);
    if (err == 0 && fd < 0)
        err = -EBADMSG;
    return err < 0 ? err : fd;
}
