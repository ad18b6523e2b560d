/* The client's side of the connection to the manager: it introduces this process, registers its
 * segments, asks for those of others, and introduces children. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/failed_call.h"
#include "segment/segment.h"
#include "session/connection.h"
#include "session/control_lock.h"
#include "session/manager_start.h"
#include "session/process_slot.h"

enum { RETRY_AFTER_S = 10, RETRY_LATEST_S = 160 };

void mpshm__disconnect(struct mpshm__session *session)
{
    mpshm__fd_close(&session->sock);
    session->introduced = 0;
}

/* Send a frame and wait for the answer, so many seconds in all, however many signals arrive. After
 * a failure the connection is closed, because a late answer would be taken for the answer to the
 * next question. */
static int exchange(int sock, struct mpshm__frame *frame, int fd, int *fd_out, int within_s)
{
    uint64_t until = mpshm__now_ns() + (uint64_t)within_s * 1000000000ull;
    int got = -1;
    int err = mpshm__send_frame(sock, frame, fd, until);

    if (err == 0)
        err = mpshm__recv_frame(sock, frame, &got, until);
    if (err == -EMFILE)
        return err; /* the answer arrived and its descriptor did not: ask again with a free
                       descriptor */
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

/* The error came from the connection. A manager that is being killed still has its socket for a
 * moment, so the next attempt comes a little later. All attempts take about two seconds, because
 * several managers may be killed in a row. */
int mpshm__worth_another(int err, int attempt)
{
    long ms = attempt == 0 ? 0 : attempt < 20 ? 2 : 20;

    if (err != -ECONNRESET && err != -EBADMSG && err != -EPIPE && err != -ENOTCONN &&
        err != -ECONNREFUSED)
        return 0;
    mpshm__sleep_ms(ms);
    return 1;
}

/* A manager that is stopped, that no path leads to, or that cannot be started costs one attempt,
 * and not one for each array. Returns 0, or the error of that attempt until it is time to try
 * again. */
static int stuck(struct mpshm__session *session)
{
    if (session->stuck_until != 0 && mpshm__now_ns() >= session->stuck_until)
        session->stuck_until = 0;
    return session->stuck_until != 0 ? session->stuck_error : 0;
}

/* Each attempt in a row that fails doubles the pause before the next one. */
static void be_stuck(struct mpshm__session *session, int err)
{
    int pause_s = session->stuck_for_s == 0 ? RETRY_AFTER_S : 2 * session->stuck_for_s;

    session->stuck_for_s = pause_s < RETRY_LATEST_S ? pause_s : RETRY_LATEST_S;
    session->stuck_until = mpshm__now_ns() + (uint64_t)session->stuck_for_s * 1000000000ull;
    session->stuck_error = err;
}

static void note_if_stuck(struct mpshm__session *session, int err)
{
    /* Another user's process learns at once that there is no manager, and must notice the first. */
    if (err == -ETIMEDOUT || err == -ECHILD || (err == -ENOLINK && session->user == geteuid()))
        be_stuck(session, err);
}

static int ensure_connected(struct mpshm__session *session)
{
    int err;

    if (mpshm__fd_get(&session->sock) >= 0)
        return 0;
    session->introduced = 0; /* the program has closed it */
    err = mpshm__manager_connect(session, 1);
    note_if_stuck(session, err);
    if (err < 0)
        return err;
    mpshm__fd_set(&session->sock, err);
    return 0;
}

static int ask_connected(struct mpshm__session *session, struct mpshm__frame *frame, int fd,
                         int *fd_out)
{
    int within_s = session->is_listed ? MPSHM__LISTED_WITHIN_S : MPSHM__ANSWER_WITHIN_S;
    int err = exchange(mpshm__fd_get(&session->sock), frame, fd, fd_out, within_s);

    note_if_stuck(session, err);
    if (err == 0)
        session->stuck_for_s = 0;
    if (err == -ETIMEDOUT)
        mpshm__disconnect(session);
    return err;
}

/* If the program has closed the descriptor of the control file, the lock must be taken through a
 * new description, and the file mapped through the same one. */
static int take_own_slot(struct mpshm__session *session)
{
    int err;

    if (session->slot >= 0)
        return 0;
    if (mpshm__fd_get(&session->control_fd) < 0) {
        int fd = mpshm__session_reopen(session, 1);
        if (fd < 0)
            return fd;
        err = mpshm__session_remap(session, fd);
        if (err < 0)
            return err;
    }
    session->slot = err = mpshm__take_slot(session->control, mpshm__fd_get(&session->control_fd));
    if (err < 0)
        session->slot = -1;
    return err < 0 ? err : 0;
}

static int say_hello(struct mpshm__session *session)
{
    struct mpshm__frame frame = {.magic = MPSHM__WIRE, .op = MPSHM__HELLO};
    int err = take_own_slot(session);

    if (err < 0)
        return err;
    frame.a = (uint32_t)session->slot;
    err = ask_connected(session, &frame, -1, NULL);
    if (err == 0 &&
        (frame.a != (uint32_t)session->slot || atomic_load(&session->control->ready) != 1))
        err = -EBADMSG;
    return err;
}

int mpshm__offer_segment(struct mpshm__session *session, struct mpshm__segment *segment, int known)
{
    int fd = mpshm__fd_get(&segment->fd);
    struct mpshm__frame frame = {
        .magic = MPSHM__WIRE,
        .op = MPSHM__REGISTER,
        .strategy = (uint16_t)segment->strategy,
        .a = known ? segment->index : MPSHM__NO_SLOT,
        .nonce = {segment->nonce[0], segment->nonce[1]},
        .size = segment->size,
        .fd_number = fd,
    };
    int err = ask_connected(session, &frame, fd, NULL);

    if (err == 0 && (frame.a >= MPSHM__SEGMENTS || (known && frame.a != segment->index)))
        err = -EBADMSG;
    if (err == 0 &&
        !known) /* a known index must not be written, because other threads may read it */
        segment->index = frame.a;
    return err;
}

/* Fetch the descriptor of an own segment from the manager when the program has closed it.
 * Without it the next manager could not find the segment again. */
static void fetch_again(struct mpshm__session *session, struct mpshm__segment *segment)
{
    struct mpshm__frame frame = {.magic = MPSHM__WIRE, .op = MPSHM__GET, .a = segment->index};
    struct mpshm__fd known = segment->fd;
    int fd = -1;

    if (ask_connected(session, &frame, -1, &fd) < 0 || fd < 0)
        return;
    if (mpshm__fd_is(&known, fd))
        mpshm__fd_set(&segment->fd, fd);
    else
        close(fd);
}

/* Tell a new manager all that it needs to know. */
static int introduce(struct mpshm__session *session)
{
    int err = say_hello(session);

    for (uint32_t i = 0; err == 0 && i < session->segment_top; i++) {
        struct mpshm__segment *segment = session->segments[i];
        if (segment == NULL)
            continue;
        if (segment->own && mpshm__fd_get(&segment->fd) < 0)
            fetch_again(session, segment);
        if (mpshm__fd_get(&segment->fd) < 0)
            continue;
        err = mpshm__offer_segment(session, segment, 1);
        if (err == -ESTALE || err == -EMFILE || err == -ENOMEM)
            err = 0; /* a segment that it refuses is still valid here */
    }
    session->introduced = err == 0;
    return err;
}

int mpshm__session_register(struct mpshm__session *session)
{
    int err;

    if (session->introduced && session->slot >= 0 && mpshm__fd_get(&session->sock) >= 0)
        return 0;
    if ((err = stuck(session)) < 0)
        return err;
    for (int attempt = 0; attempt < MPSHM__ATTEMPTS; attempt++) {
        err = ensure_connected(session);
        if (err == 0)
            err = introduce(session);
        if (err == 0 || err == -EUSERS) /* without a slot, the connection is still usable */
            return err;
        mpshm__disconnect(session);
        if (!mpshm__worth_another(err, attempt))
            return err;
    }
    be_stuck(session, err);
    return err;
}

void mpshm__manager_replace(struct mpshm__session *session, int control_fd)
{
    int sock = mpshm__fd_get(&session->sock);

    if (session->slot < 0 || (sock >= 0 && !mpshm__has_hung_up(sock)))
        return;
    mpshm__disconnect(session);
    /* A manager that hung up is ending, and loses its lock a moment after its connections. On a
     * loaded machine that takes longer: the next fork or the next question looks again. */
    for (int ms = 0; sock >= 0 && ms < 100 && control_fd >= 0 &&
                     mpshm__byte_is_locked(control_fd, MPSHM__MANAGER_BYTE);
         ms++)
        mpshm__sleep_ms(1);
    /* A manager that lives may be stopped, so do not wait for it. */
    if (control_fd < 0 || !mpshm__byte_is_locked(control_fd, MPSHM__MANAGER_BYTE))
        mpshm__session_register(session);
}

int mpshm__ask(struct mpshm__session *session, struct mpshm__frame *frame, int *fd_out)
{
    struct mpshm__frame question = *frame;
    int err = stuck(session);

    if (err < 0)
        return err;
    for (int attempt = 0; attempt < MPSHM__ATTEMPTS; attempt++) {
        err = ensure_connected(session);
        /* A process with a slot introduces itself first, because some questions need a slot. */
        if (err == 0 && session->slot >= 0 && !session->introduced)
            err = introduce(session);
        *frame = question;
        if (err == 0)
            err = ask_connected(session, frame, -1, fd_out);
        if (mpshm__fd_use_reserve(err))
            continue;
        if (!mpshm__worth_another(err, attempt))
            return err;
        mpshm__disconnect(session);
    }
    if (err != -EMFILE)
        be_stuck(session, err);
    return err;
}

int mpshm__manager_connect_child(struct mpshm__session *session, int slot)
{
    struct mpshm__frame frame = {
        .magic = MPSHM__WIRE,
        .op = MPSHM__CHILD,
        .a = slot >= 0 ? (uint32_t)slot : MPSHM__NO_SLOT,
    };
    int pair[2], err, sock = mpshm__fd_get(&session->sock);

    if (sock < 0) { /* the child introduces itself, through a connection of its own */
        sock = mpshm__manager_try(session);
        if (sock < 0)
            return sock;
        err = mpshm__send_frame(sock, &frame, -1, 0);
        if (err == 0)
            return sock;
        close(sock);
        return err;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return mpshm__failed("socketpair");
    err = mpshm__send_frame(sock, &frame, pair[0], 0);
    close(pair[0]);
    if (err == 0)
        return pair[1];
    close(pair[1]);
    return err;
}

int mpshm__control_from_manager(struct mpshm__session *session)
{
    struct mpshm__frame frame = {.magic = MPSHM__WIRE};
    int err, fd = -1;

    if (mpshm__fd_get(&session->sock) < 0) {
        err = mpshm__manager_connect(session, 0);
        if (err < 0)
            return err == -ECONNREFUSED ? -ENOENT : err;
        mpshm__fd_set(&session->sock, err);
        session->introduced = 0;
    }
    do {
        frame.op = MPSHM__CONTROL;
        err = ask_connected(session, &frame, -1, &fd);
    } while (mpshm__fd_use_reserve(err));
    if (err < 0 && err != -EMFILE)
        mpshm__disconnect(session);
    if (err == 0 && fd < 0)
        err = -EBADMSG;
    return err < 0 ? err : fd;
}

/* ---- the control file, which the manager has as well ---- */

enum { TRIES = 100 };

/* The path may have gone while the session lives; the manager still has the file. */
static int open_by_manager(struct mpshm__session *session)
{
    int fd = mpshm__control_from_manager(session);

    return fd < 0 ? fd : mpshm__session_open_fd(session, fd);
}

int mpshm__session_open(struct mpshm__session *session, int create)
{
    int err, fd = -ENOENT, is_new = 0;

    if (session->control != NULL)
        return 0;
    for (int i = 0; fd == -ENOENT && i < TRIES; i++) {
        fd = mpshm__control_hold(session->id, 0);
        if (fd == -ENOENT && (err = open_by_manager(session)) != -ENOENT)
            return err;
        if (!create)
            break;
        if (fd == -ENOENT) {
            fd = mpshm__control_hold(session->id, 1);
            is_new = fd >= 0;
        }
    }
    if (fd < 0) {
        if (create)
            mpshm__session_remove_if_dead(session->id);
        return fd == -ENOENT && !create ? -ESTALE : fd;
    }
    err = mpshm__control_enter(session, fd);
    /* Those that had no manager when all of their processes were killed. */
    if (err == 0 && is_new)
        mpshm__remove_dead_sessions();
    if (err == 0)
        return 0;
    close(fd);
    if (create && err != -EPROTO) /* remove the new session, unless another process is in it */
        mpshm__session_remove_if_dead(session->id);
    return err;
}

int mpshm__session_reopen(struct mpshm__session *session, int wait)
{
    int fd = mpshm__control_open_again(session);

    if (fd < 0 && wait)
        fd = mpshm__control_from_manager(session);
    return mpshm__control_lock(fd);
}
