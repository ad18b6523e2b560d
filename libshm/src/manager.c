/* The manager: keeps descriptors, hands them out, notices deaths, and leaves when nobody is left.
 *
 * It is never needed for memory to stay valid. Everything that it knows is in the control file or
 * can be asked for again, so it may be killed at any line: the next one that a client starts reads
 * the control file, finds descriptors again, and goes on. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "internal.h"

enum {
    CLIENTS = 1024,
    TICK_MS = 100, /* while there is something to look after */
    LISTENER = 0,
    EMPTY = 1,
    FIRST = 2,
};

struct manager {
    struct mpshm__tree tree; /* the same view that a client has, without a slot */
    struct pollfd fds[FIRST + CLIENTS];
    int slot_of[FIRST + CLIENTS]; /* of a client, or -1 */
    int top;
    /* Slots whose connection is closed while their process lives: it closed a descriptor that was
     * not its own to close, or the manager was killed and it has not been back yet. */
    unsigned char watched[MPSHM__SLOTS];
    int watching;
    int orphans; /* arenas without an owner */
};

/* ---- arenas ---- */

static void forget_arena(struct manager *m, uint32_t i)
{
    struct mpshm__arena *arena = m->tree.arenas[i];
    struct mpshm__arena_row *row = &m->tree.control->arenas[i];

    atomic_fetch_sub(&m->tree.control->cached_bytes, atomic_load(&arena->header->cached));
    atomic_store(&row->nonce[0], 0);
    if (arena->strategy == MPSHM_FILE_SYSTEM)
        mpshm__object_unlink(arena->nonce);
    mpshm__arena_unmap(arena);
    m->tree.arenas[i] = NULL;
}

/* Nobody will allocate in it any more: what is free goes back to the system, and when nothing is in
 * use it goes as a whole. */
static int reclaim_orphan(struct manager *m, uint32_t i)
{
    struct mpshm__arena *arena = m->tree.arenas[i];
    uint32_t used = mpshm__used(arena);
    int live = 0;

    for (uint32_t k = 0; k < used; k++) {
        struct mpshm__block *block = &arena->blocks[k];
        if (atomic_load(&block->state) & MPSHM__LIVE) {
            live = 1;
            continue;
        }
        uint64_t size =
            mpshm__class_bytes(atomic_load(&arena->traits[k].size_class) % MPSHM__CLASSES);
        if (size >= MPSHM__SLAB_LIMIT && atomic_load(&arena->traits[k].warmth) == MPSHM__WARM &&
            mpshm__arena_punch(arena, (uint64_t)atomic_load(&block->where) * 64,
                               mpshm__pages(size))) {
            atomic_store(&arena->traits[k].warmth, MPSHM__PUNCHED);
            atomic_fetch_sub(&arena->header->cached, size);
            atomic_fetch_sub(&m->tree.control->cached_bytes, size);
        }
    }
    if (!live)
        forget_arena(m, i);
    return live;
}

static void reclaim_orphans(struct manager *m)
{
    m->orphans = 0;
    for (uint32_t i = 0; i < m->tree.arena_top; i++)
        if (m->tree.arenas[i] != NULL && atomic_load(&m->tree.arenas[i]->header->orphan))
            m->orphans += reclaim_orphan(m, i);
}

static void unwatch(struct manager *m, int slot)
{
    if (m->watched[slot]) {
        m->watched[slot] = 0;
        m->watching--;
    }
}

static int is_attached(const struct manager *m, int slot)
{
    for (int c = FIRST; c < m->top; c++)
        if (m->slot_of[c] == slot)
            return 1;
    return 0;
}

/* No connection speaks for `slot` any more: what hangs up later must not be taken for the death of
 * whoever has the slot by then. */
static void detach(struct manager *m, int slot)
{
    for (int c = FIRST; c < m->top; c++)
        if (m->slot_of[c] == slot)
            m->slot_of[c] = -1;
}

/* The process of `slot` is dead. */
static void sweep(struct manager *m, int slot)
{
    unwatch(m, slot);
    detach(m, slot);
    for (uint32_t i = 0; i < m->tree.arena_top; i++) {
        struct mpshm__arena *arena = m->tree.arenas[i];
        if (arena == NULL)
            continue;
        if (atomic_load(&m->tree.control->arenas[i].owner) == (uint32_t)slot) {
            atomic_store(&m->tree.control->arenas[i].owner, MPSHM__NO_SLOT);
            atomic_store(&arena->header->orphan, 1);
        }
        mpshm__forget_holder(m->tree.control, arena, slot);
    }
    atomic_store(&m->tree.control->slots[slot].pid, 0);
    atomic_store(&m->tree.control->slots[slot].state, MPSHM__SLOT_FREE);
    reclaim_orphans(m);
}

/* See layout.h, Note [Who is alive]. */
static int is_alive(const struct manager *m, int slot)
{
    const struct mpshm__slot *s = &m->tree.control->slots[slot];
    int pid = atomic_load(&s->pid);
    char path[256];

    if (mpshm__slot_is_locked(m->tree.control_fd, slot))
        return 1;
    if (pid <= 0)
        return 0;
    uint64_t started = mpshm__start_time(pid);
    if (started == 0 ||
        (started != MPSHM__UNKNOWN && atomic_load(&s->start_time) != MPSHM__UNKNOWN &&
         started != atomic_load(&s->start_time)))
        return 0;
    mpshm__tree_path(m->tree.id, "control", path, sizeof(path));
    return mpshm__has_mapped(pid, path) != 0;
}

static void look_at_watched(struct manager *m)
{
    for (int slot = 0; slot < MPSHM__SLOTS && m->watching > 0; slot++)
        if (m->watched[slot] && !is_alive(m, slot))
            sweep(m, slot);
}

static int somebody_watched_is_alive(const struct manager *m)
{
    for (int slot = 0; slot < MPSHM__SLOTS; slot++)
        if (m->watched[slot] && is_alive(m, slot))
            return 1;
    return 0;
}

static void watch(struct manager *m, int slot)
{
    if (!m->watched[slot]) {
        m->watched[slot] = 1;
        m->watching++;
    }
}

/* ---- answers ---- */

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
        if (is_attached(m, slot) &&
            atomic_load(&m->tree.control->slots[slot].pid) != peer_pid(m->fds[c].fd))
            return -EPERM;
        unwatch(m, slot);
        detach(m, slot);
    } else {
        slot = take_slot(m);
    }
    if (slot < 0)
        return slot;
    m->slot_of[c] = slot;
    f->a = (uint32_t)slot;
    return 0;
}

static int map_arena(struct manager *m, uint32_t i, int fd)
{
    struct mpshm__arena *arena;
    int err = mpshm__arena_map(fd, i, &m->tree.control->arenas[i], m->tree.id, &arena);

    if (err < 0)
        return err;
    arena->fd = fd;
    m->tree.arenas[i] = arena;
    if (i >= m->tree.arena_top)
        m->tree.arena_top = i + 1;
    return 0;
}

/* One that was out of reach while processes died: their bits are still in it, and maybe its owner
 * was one of them. */
static void catch_up(struct manager *m, uint32_t i)
{
    struct mpshm__control *control = m->tree.control;
    struct mpshm__arena_row *row = &control->arenas[i];
    uint32_t owner = atomic_load(&row->owner);

    if (owner >= MPSHM__SLOTS || atomic_load(&control->slots[owner].state) == MPSHM__SLOT_FREE ||
        atomic_load(&control->slots[owner].pid) != atomic_load(&row->owner_pid)) {
        atomic_store(&row->owner, MPSHM__NO_SLOT);
        atomic_store(&m->tree.arenas[i]->header->orphan, 1);
        m->orphans = 1; /* counted at the next tick */
    }
    for (int slot = 0; slot < MPSHM__SLOTS; slot++)
        if (atomic_load(&control->slots[slot].state) == MPSHM__SLOT_FREE)
            mpshm__forget_holder(control, m->tree.arenas[i], slot);
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
        err = map_arena(m, i, fd);
        if (err < 0)
            goto refuse;
        catch_up(m, i);
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
    err = map_arena(m, i, fd);
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
static int serve(struct manager *m, int c)
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
    default:
        f.err = -EBADMSG;
    }
    if (fd >= 0)
        close(fd);
    f.op = MPSHM__ANSWER;
    err = mpshm__send_frame(m->fds[c].fd, &f, answer_fd);
    return f.err == -EBADMSG ? -EBADMSG : err;
}

static void lost(struct manager *m, int c)
{
    int slot = m->slot_of[c];

    close(m->fds[c].fd);
    m->fds[LISTENER].events = POLLIN;
    m->top--;
    m->fds[c] = m->fds[m->top];
    m->slot_of[c] = m->slot_of[m->top];
    if (slot < 0)
        return;
    if (is_alive(m, slot))
        watch(m, slot);
    else
        sweep(m, slot);
}

static void admit(struct manager *m)
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

/* ---- beginning and end ---- */

/* A predecessor was killed: find again what the control file speaks of. */
static void resume(struct manager *m)
{
    struct mpshm__control *control = m->tree.control;

    for (uint32_t i = 0; i < MPSHM__ARENAS; i++) {
        struct mpshm__arena_row *row = &control->arenas[i];
        uint64_t nonce[2] = {atomic_load(&row->nonce[0]), atomic_load(&row->nonce[1])};
        char path[64];
        int fd;
        if (nonce[0] == 0)
            continue;
        if (atomic_load(&row->strategy) == MPSHM_FILE_SYSTEM) {
            fd = mpshm__object_open_name(nonce);
        } else {
            /* The owner, if it is still that process, has it open; where /proc may not be looked
             * into, it will register again. */
            uint32_t owner = atomic_load(&row->owner);
            if (owner >= MPSHM__SLOTS || !is_alive(m, (int)owner) ||
                atomic_load(&control->slots[owner].pid) != atomic_load(&row->owner_pid))
                continue;
            snprintf(path, sizeof(path), "/proc/%d/fd/%d", atomic_load(&row->owner_pid),
                     atomic_load(&row->owner_fd));
            struct stat st;
            if (stat(path, &st) < 0 || !S_ISREG(st.st_mode))
                continue;
            fd = (int)MPSHM__RETRY(open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
        }
        if (fd >= 0 && map_arena(m, i, fd) < 0)
            close(fd);
    }
    for (int slot = 0; slot < MPSHM__SLOTS; slot++)
        if (atomic_load(&control->slots[slot].state) == MPSHM__SLOT_TAKEN)
            watch(m, slot);
    look_at_watched(m);
    for (uint32_t i = 0; i < m->tree.arena_top; i++)
        if (m->tree.arenas[i] != NULL)
            catch_up(m, i);
    reclaim_orphans(m);
}

/* The number that a file begins with, UINT64_MAX when it has none ("max"). */
static uint64_t number_in(const char *path)
{
    unsigned long long number;
    FILE *file = fopen(path, "re");
    int good = file != NULL && fscanf(file, "%llu", &number) == 1;

    if (file != NULL)
        fclose(file);
    return good ? number : UINT64_MAX;
}

static uint64_t cache_limit(void)
{
    const char *text = getenv("MP_CACHE_BYTES");
    char *end;

    if (text != NULL && text[0] != 0) {
        uint64_t value = strtoull(text, &end, 10);
        if (*end == 0)
            return value;
    }
    uint64_t memory = mpshm__memory_bytes();
    uint64_t group = number_in("/sys/fs/cgroup/memory.max");
    return (group < memory ? group : memory) / 8;
}

struct waiter {
    int control_fd, event_fd, go_fd;
};

/* Sleeps in flock, and wakes the loop when nobody is in the tree. */
static void *wait_until_empty(void *arg)
{
    struct waiter *w = arg;
    uint64_t one = 1;

    while (MPSHM__RETRY(read(w->go_fd, &one, sizeof(one))) == sizeof(one)) {
        if (mpshm__tree_wait_empty(w->control_fd) < 0)
            break;
        one = 1;
        if (write(w->event_fd, &one, sizeof(one)) < 0)
            break;
    }
    return NULL;
}

int mpshm_manager_run(int listener, const char *folder)
{
    struct manager *m = calloc(1, sizeof(*m));
    struct waiter w;
    struct rlimit files;
    pthread_t thread;
    char path[256];
    int err;

    if (m == NULL)
        return -ENOMEM;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    /* It maps everybody's arenas and may have to reserve in them. */
    static const int OTHERS[] = {RLIMIT_AS, RLIMIT_FSIZE};
    for (int i = 0; i < 2; i++)
        if (getrlimit(OTHERS[i], &files) == 0) {
            files.rlim_cur = files.rlim_max;
            setrlimit(OTHERS[i], &files);
        }
    m->tree.sock = m->tree.slot = m->tree.control_fd = -1;
    const char *name = strrchr(folder, '/');
    err = name && mpshm__parse_id(name + 1, m->tree.id) ? mpshm__tree_enter(&m->tree, 1) : -EINVAL;
    if (err < 0) {
        free(m);
        return err;
    }
    struct mpshm__control *control = m->tree.control;
    if (atomic_load(&control->ready) != 1) {
        memcpy(control->tree, m->tree.id, MPSHM_ID_SIZE);
        atomic_store(&control->cache_limit, cache_limit());
        atomic_store(&control->ready, 1);
    } else {
        resume(m);
    }

    /* Another descriptor of its own, so that the manager's own hold is not what it waits for; the
     * hold by which it entered is given up. */
    mpshm__tree_path(m->tree.id, "control", path, sizeof(path));
    w.control_fd = (int)MPSHM__RETRY(open(path, O_RDWR | O_CLOEXEC));
    w.event_fd = eventfd(0, EFD_CLOEXEC);
    w.go_fd = eventfd(1, EFD_CLOEXEC);
    if (w.control_fd < 0 || w.event_fd < 0 || w.go_fd < 0 ||
        pthread_create(&thread, NULL, wait_until_empty, &w) != 0)
        return -errno;
    flock(m->tree.control_fd, LOCK_UN);
    mpshm__tree_sweep_folders();

    m->fds[LISTENER] = (struct pollfd){.fd = listener, .events = POLLIN};
    m->fds[EMPTY] = (struct pollfd){.fd = w.event_fd, .events = POLLIN};
    m->top = FIRST;
    for (int refused = 0;;) {
        int idle = m->watching == 0 && m->orphans == 0 && m->fds[LISTENER].events != 0 && !refused;
        if (poll(m->fds, (nfds_t)m->top, idle ? -1 : TICK_MS) < 0 && errno != EINTR)
            return -errno;
        for (int c = m->top - 1; c >= FIRST; c--) /* downwards: lost() moves the last one in */
            if (m->fds[c].revents != 0 && serve(m, c) < 0)
                lost(m, c);
        if (m->fds[LISTENER].revents)
            admit(m);
        look_at_watched(m);
        if (m->orphans)
            reclaim_orphans(m);
        m->fds[LISTENER].events = POLLIN;
        if (refused) { /* a tick later: a lock that is not there must not keep us busy */
            uint64_t one = 1;
            refused = 0;
            if (write(w.go_fd, &one, sizeof(one)) < 0)
                return -errno;
        }
        if (m->fds[EMPTY].revents) {
            uint64_t n;
            if (read(w.event_fd, &n, sizeof(n)) != sizeof(n))
                return -errno;
            if (m->top == FIRST && !somebody_watched_is_alive(m))
                break; /* with the exclusive lock in hand: nobody can come in now */
            flock(w.control_fd, LOCK_UN);
            refused = 1;
        }
    }
    for (uint32_t i = 0; i < MPSHM__ARENAS; i++) {
        const struct mpshm__arena_row *row = &control->arenas[i];
        uint64_t nonce[2] = {atomic_load(&row->nonce[0]), atomic_load(&row->nonce[1])};
        if (i < m->tree.arena_top && m->tree.arenas[i] != NULL)
            forget_arena(m, i);
        else if (nonce[0] != 0 && atomic_load(&row->strategy) == MPSHM_FILE_SYSTEM)
            mpshm__object_unlink(nonce);
    }
    mpshm__tree_remove(m->tree.id);
    free(m);
    return 0;
}
