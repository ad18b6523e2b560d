/* The manager's answers to its clients. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "manager/manager.h"
#include "platform/platform.h"
#include "segment/segment.h"
#include "session/control_lock.h"

static int peer_pid(int sock)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);

    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 ? 0 : peer.pid;
}

/* Connection `c` belongs to that slot from now on. Its process has taken and locked the slot
 * itself. */
static int hello(struct manager *m, int c, uint32_t slot)
{
    const struct mpshm__control *control = m->session.control;

    if (m->slot_of[c] >= 0)
        return -EBADMSG;
    if (slot >= MPSHM__SLOTS || atomic_load(&control->slots[slot].state) != MPSHM__SLOT_TAKEN ||
        !mpshm__reaper_is_alive(m, (int)slot))
        return -EACCES;
    /* While another connection belongs to the slot, only its process may replace it. (In another
     * pid namespace the pids differ, so there the old connection must go first.) */
    if (mpshm__reaper_is_attached(m, (int)slot) &&
        atomic_load(&control->slots[slot].pid) != peer_pid(m->fds[c].fd))
        return -EACCES;
    mpshm__reaper_unwatch(m, (int)slot);
    mpshm__reaper_detach(m, (int)slot);
    m->slot_of[c] = (int)slot;
    return 0;
}

/* A client passes the other end of its child's connection, or, without a descriptor, says that
 * this connection is its child's. Takes `fd` over. */
static void child(struct manager *m, int c, uint32_t slot, int fd)
{
    if (fd >= 0)
        c = mpshm__client_add(m, fd);
    if (c < 0 || m->slot_of[c] >= 0 || slot == MPSHM__NO_SLOT || slot >= MPSHM__SLOTS)
        return;
    if (atomic_load(&m->session.control->slots[slot].state) == MPSHM__SLOT_TAKEN &&
        !mpshm__reaper_is_attached(m, (int)slot)) {
        mpshm__reaper_unwatch(m, (int)slot);
        m->slot_of[c] = (int)slot;
    }
}

/* Takes `fd` over. */
static int registered(struct manager *m, int c, struct mpshm__frame *f, int fd)
{
    struct mpshm__control *control = m->session.control;
    uint32_t i = f->a;
    int err;

    if (fd < 0 || m->slot_of[c] < 0 || f->nonce[0] == 0 ||
        (f->strategy != MPSHM_FILE_DESCRIPTOR && f->strategy != MPSHM_FILE_SYSTEM)) {
        err = -EBADMSG;
        goto refuse;
    }
    if (i != MPSHM__NO_SLOT) { /* again, to a manager that may be new */
        if (i >= MPSHM__SEGMENTS || atomic_load(&control->segments[i].nonce[0]) != f->nonce[0]) {
            err = -ESTALE;
            goto refuse;
        }
        if (m->session.segments[i] != NULL) {
            close(fd);
            return 0;
        }
        err = mpshm__reaper_map_segment(m, i, fd);
        if (err < 0)
            goto refuse;
        mpshm__reaper_catch_up(m, i);
        return 0;
    }
    /* The client asked before, and the answer was lost: the entry exists. */
    for (i = 0; i < m->session.segment_top; i++)
        if (m->session.segments[i] != NULL && m->session.segments[i]->nonce[0] == f->nonce[0]) {
            close(fd);
            f->a = i;
            return 0;
        }
    for (i = 0; i < MPSHM__SEGMENTS; i++)
        if (atomic_load(&control->segments[i].nonce[0]) == 0 && m->session.segments[i] == NULL)
            break;
    if (i == MPSHM__SEGMENTS) {
        err = -EUSERS;
        goto refuse;
    }
    struct mpshm__segment_entry *entry = &control->segments[i];
    atomic_store(&entry->strategy, f->strategy);
    atomic_store(&entry->owner, (uint32_t)m->slot_of[c]);
    atomic_store(&entry->owner_pid, atomic_load(&control->slots[m->slot_of[c]].pid));
    atomic_store(&entry->owner_fd, f->fd_number);
    atomic_store(&entry->size, f->size);
    atomic_store(&entry->created_ns, mpshm__now_ns());
    atomic_store(&entry->nonce[1], f->nonce[1]);
    atomic_store(&entry->nonce[0], f->nonce[0]);
    err = mpshm__reaper_map_segment(m, i, fd);
    if (err < 0) {
        atomic_store(&entry->nonce[0], 0);
        goto refuse;
    }
    f->a = i;
    return 0;

refuse:
    if (fd >= 0)
        close(fd);
    return err;
}

/* Serve one frame. Returns 0, or an error after which the connection is closed. */
int mpshm__client_serve(struct manager *m, int c)
{
    struct mpshm__frame f;
    int fd = -1, answer_fd = -1, reopened = -1;
    int err = mpshm__recv_frame(m->fds[c].fd, &f, &fd, 0);

    if (err == -EAGAIN)
        return 0;
    if (err < 0)
        return err;
    if (m->slot_of[c] == STRANGER) {
        err = f.op == MPSHM__MEMBER && mpshm__fd_is(&m->session.control_fd, fd) ? 0 : -EACCES;
        if (fd >= 0)
            close(fd);
        m->slot_of[c] = err == 0 ? -1 : STRANGER;
        return err;
    }
    switch (f.op) {
    case MPSHM__HELLO:
        f.err = hello(m, c, f.a);
        break;
    case MPSHM__CHILD:
        child(m, c, f.a, fd);
        mpshm__folder_repair(m);
        return 0;
    case MPSHM__REGISTER:
        f.err = registered(m, c, &f, fd);
        fd = -1;
        break;
    case MPSHM__GET:
        if (f.a >= MPSHM__SEGMENTS)
            f.err = -EBADMSG;
        else if (m->session.segments[f.a] == NULL)
            f.err = -ENOENT;
        else
            f.err = 0, answer_fd = mpshm__fd_get(&m->session.segments[f.a]->fd);
        break;
    case MPSHM__CONTROL: /* with a new description, so that the locks of the two processes differ */
        answer_fd = reopened = mpshm__control_lock(mpshm__control_open_again(&m->session));
        f.err = reopened < 0 ? reopened : 0;
        break;
    case MPSHM__ADOPT:
        f.err = mpshm__orphan_hand_over(m, c, &f, &answer_fd);
        break;
    default:
        f.err = -EBADMSG;
    }
    if (fd >= 0)
        close(fd);
    f.op = MPSHM__ANSWER;
    err = mpshm__send_frame(m->fds[c].fd, &f, answer_fd, 0);
    if (reopened >= 0)
        close(reopened);
    return f.err == -EBADMSG ? -EBADMSG : err;
}

void mpshm__client_disconnected(struct manager *m, int c)
{
    int slot = m->slot_of[c];

    close(m->fds[c].fd);
    m->top--;
    m->fds[c] = m->fds[m->top];
    m->slot_of[c] = m->slot_of[m->top];
    /* Its process may also have been killed between taking a slot and saying so, or its child
     * may have. */
    if (slot != STRANGER)
        mpshm__reaper_discover(m);
    if (slot >= 0)
        mpshm__reaper_watch(m, slot);
}

/* Answer -EMFILE, and not with silence, to a client for which there is no descriptor. */
static void refuse_one(struct manager *m, int listener)
{
    struct mpshm__frame f = {.magic = MPSHM__WIRE, .op = MPSHM__ANSWER, .err = -EMFILE};

    if (m->spare < 0)
        return;
    close(m->spare);
    int sock = accept4(m->fds[listener].fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (sock >= 0) {
        mpshm__send_frame(sock, &f, -1, 0);
        close(sock);
    }
    m->spare = (int)MPSHM__RETRY(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

int mpshm__client_add(struct manager *m, int sock)
{
    if (m->top == FIRST + CLIENTS) {
        close(sock);
        return -EUSERS;
    }
    m->fds[m->top] = (struct pollfd){.fd = sock, .events = POLLIN};
    m->slot_of[m->top] = -1;
    return m->top++;
}

void mpshm__strangers_drop(struct manager *m)
{
    for (int c = m->top - 1; c >= FIRST; c--)
        if (m->slot_of[c] == STRANGER)
            mpshm__client_disconnected(m, c);
}

/* A process of the session has sent its descriptor by the time that others have come. One that was
 * slower connects again. */
static void add_stranger(struct manager *m, int sock)
{
    enum { MOST = 8 };
    int count = 0;

    for (int c = FIRST; c < m->top; c++)
        count += m->slot_of[c] == STRANGER;
    if (count >= MOST)
        mpshm__strangers_drop(m);
    int c = mpshm__client_add(m, sock);
    if (c >= 0)
        m->slot_of[c] = STRANGER;
}

void mpshm__client_accept(struct manager *m, int listener)
{
    int sock = accept4(m->fds[listener].fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (sock < 0 && (errno == EMFILE || errno == ENFILE))
        refuse_one(m, listener);
    else if (sock < 0 && errno != EINTR && errno != EAGAIN && errno != ECONNABORTED)
        m->pause_admitting = 1; /* polling the listener again would not help */
    if (sock < 0)
        return;
    if (listener == FOR_OTHERS)
        add_stranger(m, sock);
    else if (mpshm__peer_uid(sock) != (long)geteuid())
        close(sock);
    else
        mpshm__client_add(m, sock);
}
