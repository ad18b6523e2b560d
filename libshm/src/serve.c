/* What clients ask of the manager, and what it answers. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "manager.h"

/* The newcomer locks and signs it. Until then its connection vouches for it. */
static int take_slot(struct manager *m)
{
    for (int i = 0; i < MPSHM__SLOTS; i++) {
        struct mpshm__slot *s = &m->tree.control->slots[i];
        /* Locked and free: its last user was swept by mistake and lives. Leave it alone. */
        if (atomic_load(&s->state) != MPSHM__SLOT_FREE ||
            mpshm__slot_is_locked(m->tree.control_fd, i))
            continue;
        atomic_store(&s->pid, 0);
        atomic_store(&s->start_time, 0);
        atomic_store(&s->making[0], 0);
        atomic_store(&s->joined_ns, mpshm__now_ns());
        atomic_store(&s->state, MPSHM__SLOT_TAKEN);
        return i;
    }
    return -EUSERS;
}

static int peer_pid(int sock)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);

    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 ? 0 : peer.pid;
}

static int hello(struct manager *m, int c, struct mpshm__frame *f)
{
    int slot;

    if (m->slot_of[c] >= 0)
        return -EBADMSG;
    if (f->op == MPSHM__HELLO && f->a != MPSHM__NO_SLOT) {
        /* One that comes back, to this manager or to the next: the control file must know it. */
        if (f->a >= MPSHM__SLOTS ||
            atomic_load(&m->tree.control->slots[f->a].state) != MPSHM__SLOT_TAKEN)
            return -EPERM;
        slot = (int)f->a;
        /* While another connection speaks for the slot, only its process may put a new one in its
         * place. (In another pid namespace the numbers differ; then the old one must go first.) */
        if (mpshm__keeper_is_attached(m, slot) &&
            atomic_load(&m->tree.control->slots[slot].pid) != peer_pid(m->fds[c].fd))
            return -EPERM;
        mpshm__keeper_unwatch(m, slot);
        mpshm__keeper_detach(m, slot);
    } else {
        slot = take_slot(m);
    }
    if (slot < 0)
        return slot;
    m->slot_of[c] = slot;
    f->a = (uint32_t)slot;
    return 0;
}
/* Takes `fd` over. */
static int registered(struct manager *m, int c, struct mpshm__frame *f, int fd)
{
    struct mpshm__control *control = m->tree.control;
    uint32_t i = f->a;
    int err;

    if (fd < 0 || m->slot_of[c] < 0 || f->nonce[0] == 0 ||
        (f->strategy != MPSHM_FILE_DESCRIPTOR && f->strategy != MPSHM_FILE_SYSTEM)) {
        err = -EBADMSG;
        goto refuse;
    }
    if (i != MPSHM__NO_SLOT) { /* again, to a manager that may be new */
        if (i >= MPSHM__ARENAS || atomic_load(&control->arenas[i].nonce[0]) != f->nonce[0]) {
            err = -ESTALE;
            goto refuse;
        }
        if (m->tree.arenas[i] != NULL) {
            close(fd);
            return 0;
        }
        err = mpshm__keeper_map(m, i, fd);
        if (err < 0)
            goto refuse;
        mpshm__keeper_catch_up(m, i);
        return 0;
    }
    /* Asked before, and the answer was lost: the row is there. */
    for (i = 0; i < m->tree.arena_top; i++)
        if (m->tree.arenas[i] != NULL && m->tree.arenas[i]->nonce[0] == f->nonce[0]) {
            close(fd);
            f->a = i;
            return 0;
        }
    for (i = 0; i < MPSHM__ARENAS; i++)
        if (atomic_load(&control->arenas[i].nonce[0]) == 0 && m->tree.arenas[i] == NULL)
            break;
    if (i == MPSHM__ARENAS) {
        err = -EUSERS;
        goto refuse;
    }
    struct mpshm__arena_row *row = &control->arenas[i];
    atomic_store(&row->strategy, f->strategy);
    atomic_store(&row->owner, (uint32_t)m->slot_of[c]);
    atomic_store(&row->owner_pid, atomic_load(&control->slots[m->slot_of[c]].pid));
    atomic_store(&row->owner_fd, f->fd_number);
    atomic_store(&row->size, f->size);
    atomic_store(&row->born_ns, mpshm__now_ns());
    atomic_store(&row->nonce[1], f->nonce[1]);
    atomic_store(&row->nonce[0], f->nonce[0]);
    err = mpshm__keeper_map(m, i, fd);
    if (err < 0) {
        atomic_store(&row->nonce[0], 0);
        goto refuse;
    }
    f->a = i;
    return 0;

refuse:
    if (fd >= 0)
        close(fd);
    return err;
}

/* One frame of one client. Returns 0 to keep it, otherwise it is shown the door. */
int mpshm__serve(struct manager *m, int c)
{
    struct mpshm__frame f;
    int fd = -1, answer_fd = -1;
    int err = mpshm__recv_frame(m->fds[c].fd, &f, &fd);

    if (err == -EAGAIN)
        return 0;
    if (err < 0)
        return err;
    switch (f.op) {
    case MPSHM__HELLO:
    case MPSHM__HELLO_CHILD:
        f.err = hello(m, c, &f);
        break;
    case MPSHM__REGISTER:
        f.err = registered(m, c, &f, fd);
        fd = -1;
        break;
    case MPSHM__GET:
        if (m->slot_of[c] < 0 || f.a >= MPSHM__ARENAS)
            f.err = -EBADMSG;
        else if (m->tree.arenas[f.a] == NULL)
            f.err = -ENOENT;
        else
            f.err = 0, answer_fd = m->tree.arenas[f.a]->fd;
        break;
    case MPSHM__ADOPT:
        f.err = mpshm__keeper_adopt(m, c, &f, &answer_fd);
        break;
    default:
        f.err = -EBADMSG;
    }
    if (fd >= 0)
        close(fd);
    f.op = MPSHM__ANSWER;
    err = mpshm__send_frame(m->fds[c].fd, &f, answer_fd);
    return f.err == -EBADMSG ? -EBADMSG : err;
}

void mpshm__lost(struct manager *m, int c)
{
    int slot = m->slot_of[c];

    close(m->fds[c].fd);
    m->fds[LISTENER].events = POLLIN;
    m->top--;
    m->fds[c] = m->fds[m->top];
    m->slot_of[c] = m->slot_of[m->top];
    if (slot < 0)
        return;
    if (mpshm__keeper_is_alive(m, slot))
        mpshm__keeper_watch(m, slot);
    else
        mpshm__keeper_sweep(m, slot);
}

void mpshm__admit(struct manager *m)
{
    struct timeval limit = {.tv_sec = 1};
    int sock = accept4(m->fds[LISTENER].fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (sock < 0) {
        /* No descriptor left: let somebody go before the next is admitted. */
        m->fds[LISTENER].events = 0;
        return;
    }
    /* An answer that a client does not read must not stop everybody: the socket does not block. */
    setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (mpshm_peer_uid(sock) != (long)geteuid() || m->top == FIRST + CLIENTS) {
        close(sock);
        return;
    }
    m->fds[m->top] = (struct pollfd){.fd = sock, .events = POLLIN};
    m->slot_of[m->top++] = -1;
}
