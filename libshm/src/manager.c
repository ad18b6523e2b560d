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

#include "manager.h"

static int sooner(int a, int b)
{
    return a < 0 || (b >= 0 && b < a) ? b : a;
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
    char path[MPSHM__PATH];
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
        atomic_store(&control->ready, 1);
    } else {
        mpshm__keeper_resume(m);
    }
    err = mpshm__cache_begin(m);
    if (err < 0)
        return err;

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
    m->fds[CACHE] = (struct pollfd){.fd = mpshm__cache_fd(m), .events = POLLIN};
    m->top = FIRST;
    for (int refused = 0;;) {
        int idle = m->watching == 0 && m->fds[LISTENER].events != 0 && !refused;
        int timeout = sooner(mpshm__orphans_timeout(m), mpshm__cache_timeout(m));
        if (poll(m->fds, (nfds_t)m->top, sooner(idle ? -1 : TICK_MS, timeout)) < 0 && errno != EINTR)
            return -errno;
        for (int c = m->top - 1; c >= FIRST;
             c--) /* downwards: mpshm__lost() moves the last one in */
            if (m->fds[c].revents != 0 && mpshm__serve(m, c) < 0)
                mpshm__lost(m, c);
        if (m->fds[LISTENER].revents)
            mpshm__admit(m);
        mpshm__keeper_look(m);
        if (m->orphans)
            mpshm__keeper_reclaim(m);
        mpshm__cache_look(m);
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
            if (m->top == FIRST && !mpshm__keeper_expects(m))
                break; /* with the exclusive lock in hand: nobody can come in now */
            flock(w.control_fd, LOCK_UN);
            refused = 1;
        }
    }
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
    free(m);
    return 0;
}
