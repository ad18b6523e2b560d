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

#include "manager/manager.h"

static int sooner(int a, int b)
{
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

enum { WANTED_FILES = 65536, LINGER_MS = 1000, TOUCH_MS = 3600 * 1000 };

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

/* As many descriptors and as much address space as the system lets it have: it maps everybody's
 * arenas and may have to reserve in them. */
static void raise_limits(void)
{
    static const int RAISED[] = {RLIMIT_NOFILE, RLIMIT_AS, RLIMIT_FSIZE};
    struct rlimit limit;

    for (int i = 0; i < 3; i++) {
        if (getrlimit(RAISED[i], &limit) < 0)
            continue;
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RAISED[i], &limit);
        /* A process of root may go beyond; one that may not is refused, and goes on. */
        if (RAISED[i] == RLIMIT_NOFILE && limit.rlim_max < WANTED_FILES) {
            limit.rlim_cur = limit.rlim_max = WANTED_FILES;
            setrlimit(RAISED[i], &limit);
        }
    }
}

/* Enter the tree, as the one manager that it has. */
static int enter(struct manager *m, int control_fd, const char *folder)
{
    const char *name = strrchr(folder, '/');
    int err;

    if (name == NULL || !mpshm__parse_id(name + 1, m->tree.id))
        return -EINVAL;
    err = control_fd >= 0 ? mpshm__tree_enter_by(&m->tree, control_fd)
                          : mpshm__tree_enter(&m->tree, 1);
    if (err == 0)
        err = mpshm__lock_byte(m->tree.control_fd.number, MPSHM__MANAGER_BYTE);
    return err < 0 ? err : 0;
}

/* Nobody is left but the process that has become the manager's parent, because it is the first of
 * its pid namespace or asked to be given orphans: it may be waiting for all its children to end. It
 * keeps its own memory, so the manager leaves, and is started again when it is needed. */
static int only_the_parent_is_left(const struct manager *m)
{
    int parent = getppid(), others = 0, found = 0;

    if (m->orphans || m->watching || parent <= 0)
        return 0;
    for (int slot = 0; slot < MPSHM__SLOTS; slot++) {
        const struct mpshm__slot *s = &m->tree.control->slots[slot];
        if (atomic_load(&s->state) != MPSHM__SLOT_TAKEN)
            continue;
        if (atomic_load(&s->pid) == parent)
            found = 1;
        else
            others = 1;
    }
    for (int c = FIRST; c < m->top; c++)
        others |= m->slot_of[c] < 0;
    return found && !others;
}

/* -1 to sleep until something happens, otherwise milliseconds. */
static int patience(struct manager *m)
{
    int wait = only_the_parent_is_left(m) ? LINGER_MS : TOUCH_MS;

    if (m->watching || m->pause_admitting || m->refused || m->broken)
        wait = TICK_MS;
    return sooner(wait, sooner(mpshm__orphans_timeout(m), mpshm__cache_timeout(m)));
}

/* The loop, until nobody is in the tree (0), or the one that is left must not be kept waiting (1).
 */
static int loop(struct manager *m, struct waiter *w)
{
    uint64_t touched = mpshm__now_ns(), one = 1;

    for (;;) {
        int wait = patience(m);
        m->fds[LISTENER].events = m->pause_admitting ? 0 : POLLIN;
        int n = poll(m->fds, (nfds_t)m->top, wait);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0 || !only_the_parent_is_left(m))
            m->lonely_since = 0;
        else if (m->lonely_since == 0)
            m->lonely_since = mpshm__now_ns();
        else if (mpshm__now_ns() - m->lonely_since > LINGER_MS * 1000000ull)
            return 1;
        m->pause_admitting = 0;
        if (n < 0)
            continue; /* the events are of the last time */
        for (int c = m->top - 1; c >= FIRST;
             c--) /* downwards: mpshm__lost() moves the last one in */
            if (m->fds[c].revents != 0 && mpshm__serve(m, c) < 0)
                mpshm__lost(m, c);
        if (m->fds[FOLDER].revents)
            mpshm__folder_changed(m);
        else if (m->broken)
            mpshm__heal(m);
        if (m->fds[LISTENER].revents)
            mpshm__admit(m);
        mpshm__keeper_look(m);
        if (m->orphans)
            mpshm__keeper_reclaim(m);
        mpshm__cache_look(m);
        if (mpshm__now_ns() - touched > TOUCH_MS * 1000000ull) {
            touched = mpshm__now_ns();
            mpshm__touch_folder(m);
        }
        if (m->refused) { /* a tick later: a lock that is not there must not keep us busy */
            m->refused = 0;
            if (write(w->go_fd, &one, sizeof(one)) < 0)
                return -errno;
        }
        if (m->fds[EMPTY].revents) {
            if (read(w->event_fd, &one, sizeof(one)) != sizeof(one))
                return -errno;
            if (m->top == FIRST && !mpshm__keeper_expects(m))
                return 0; /* with the exclusive lock in hand: nobody can come in now */
            flock(w->control_fd, LOCK_UN);
            m->refused = 1;
        }
    }
}

static void remove_everything(struct manager *m)
{
    struct mpshm__control *control = m->tree.control;

    for (uint32_t i = 0; i < MPSHM__ARENAS; i++) {
        const struct mpshm__arena_row *row = &control->arenas[i];
        uint64_t nonce[2] = {atomic_load(&row->nonce[0]), atomic_load(&row->nonce[1])};
        if (i < m->tree.arena_top && m->tree.arenas[i] != NULL)
            mpshm__keeper_forget(m, i);
        else if (nonce[0] != 0 && atomic_load(&row->strategy) == MPSHM_FILE_SYSTEM)
            mpshm__object_unlink(nonce);
    }
    for (int slot = 0; slot < MPSHM__SLOTS; slot++)
        mpshm__object_unlink_unfinished(control, &control->slots[slot]);
    mpshm__tree_remove(m->tree.id);
}

int mpshm_manager_run(int listener, int control_fd, const char *folder)
{
    struct manager *m = calloc(1, sizeof(*m));
    struct waiter w;
    pthread_t thread;
    int err;

    if (m == NULL)
        return -ENOMEM;
    raise_limits();
    m->tree.sock = m->tree.control_fd = MPSHM__NO_FD;
    m->tree.slot = m->folder_fd = -1;
    err = enter(m, control_fd, folder);
    if (err < 0) {
        free(m);
        return err;
    }
    struct mpshm__control *control = m->tree.control;
    if (atomic_load(&control->ready) != 1) {
        atomic_store(&control->ready, 1);
    } else {
        mpshm__keeper_resume(m);
    }

    err = mpshm__cache_begin(m);
    if (err < 0)
        return err;
    /* Another descriptor of its own, so that the manager's own hold is not what it waits for; the
     * hold by which it entered is given up. */
    w.control_fd = mpshm__tree_reopen(&m->tree, 0);
    w.event_fd = eventfd(0, EFD_CLOEXEC);
    w.go_fd = eventfd(1, EFD_CLOEXEC);
    m->spare = (int)MPSHM__RETRY(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (w.control_fd < 0 || w.event_fd < 0 || w.go_fd < 0)
        return -EMFILE;
    flock(w.control_fd, LOCK_UN);
    if (pthread_create(&thread, NULL, wait_until_empty, &w) != 0)
        return -errno;
    flock(m->tree.control_fd.number, LOCK_UN);
    mpshm__tree_sweep_folders();

    m->fds[LISTENER] = (struct pollfd){.fd = listener, .events = POLLIN};
    m->fds[EMPTY] = (struct pollfd){.fd = w.event_fd, .events = POLLIN};
    m->fds[FOLDER] = (struct pollfd){.fd = -1};
    m->fds[CACHE] = (struct pollfd){.fd = mpshm__cache_fd(m), .events = POLLIN};
    m->top = FIRST;
    mpshm__watch_folder(m);
    mpshm__keeper_discover(m);
    err = loop(m, &w);
    if (err == 0)
        remove_everything(m);
    free(m);
    return err < 0 ? err : 0;
}
