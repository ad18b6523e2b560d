/* The manager: it keeps descriptors and hands them out, notices deaths, and leaves with the last
 * process of the session, or when only its own parent is left.
 *
 * Memory stays valid without it. All that it knows is in the control file or can be asked for
 * again, so it may be killed at any line: the next manager, which a client starts, reads the
 * control file, finds the descriptors again, and goes on. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "manager/manager.h"
#include "platform/platform.h"
#include "segment/memory_object.h"
#include "session/connection.h"
#include "session/control_lock.h"
#include "session/manager_start.h"
#include "session/runtime_folder.h"
#include "session/process_slot.h"

static int sooner(int a, int b)
{
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

enum { WANTED_FILES = 65536, LINGER_MS = 1000, TOUCH_MS = 3600 * 1000 };

struct waiter {
    int control_fd, event_fd, go_fd;
};

/* Sleep in flock, and wake the loop when no process is in the session. */
static void *wait_until_empty(void *arg)
{
    struct waiter *w = arg;
    uint64_t one = 1;

    while (MPSHM__RETRY(read(w->go_fd, &one, sizeof(one))) == sizeof(one)) {
        if (mpshm__session_wait_empty(w->control_fd) < 0)
            break;
        one = 1;
        if (write(w->event_fd, &one, sizeof(one)) < 0)
            break;
    }
    return NULL;
}

/* Raise the limits on descriptors, address space and file size: the manager maps every segment
 * of the session and may have to reserve memory in them. */
static void raise_limits(void)
{
    static const int RAISED[] = {RLIMIT_NOFILE, RLIMIT_AS, RLIMIT_FSIZE};
    struct rlimit limit;

    for (int i = 0; i < 3; i++) {
        if (getrlimit(RAISED[i], &limit) < 0)
            continue;
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RAISED[i], &limit);
        /* A process of root may exceed the hard limit; for others the call fails, which is fine. */
        if (RAISED[i] == RLIMIT_NOFILE && limit.rlim_max < WANTED_FILES) {
            limit.rlim_cur = limit.rlim_max = WANTED_FILES;
            setrlimit(RAISED[i], &limit);
        }
    }
}

/* Enter the session as its one manager. */
static int enter(struct manager *m, int control_fd, const char *folder)
{
    const char *name = strrchr(folder, '/');
    int err;

    if (name == NULL || !mpshm__parse_id(name + 1, m->session.id))
        return -EINVAL;
    err = control_fd >= 0 ? mpshm__session_open_fd(&m->session, control_fd)
                          : mpshm__session_open(&m->session, 1);
    if (err == 0)
        err = mpshm__lock_byte(m->session.control_fd.number, MPSHM__MANAGER_BYTE);
    return err < 0 ? err : 0;
}

/* 1 when only the manager's parent is left. A process becomes its parent because it is the first
 * of its pid namespace or a subreaper, and may be waiting for all its children to end. It keeps
 * its own memory, so the manager leaves, and is started again when it is needed. */
static int only_the_parent_is_left(const struct manager *m)
{
    int parent = getppid(), others = 0, found = 0;

    if (m->orphans || m->watching || parent <= 0)
        return 0;
    for (int slot = 0; slot < MPSHM__SLOTS; slot++) {
        const struct mpshm__slot *s = &m->session.control->slots[slot];
        if (atomic_load(&s->state) != MPSHM__SLOT_TAKEN)
            continue;
        if (atomic_load(&s->pid) == parent)
            found = 1;
        else
            others = 1;
    }
    for (int c = FIRST; c < m->top; c++)
        others |= m->slot_of[c] == -1;
    return found && !others;
}

/* The timeout of poll(2): milliseconds, or -1. */
static int poll_timeout(struct manager *m)
{
    int wait = only_the_parent_is_left(m) ? LINGER_MS : TOUCH_MS;

    if (m->watching || m->pause_admitting || m->was_not_empty || m->broken)
        wait = TICK_MS;
    wait = sooner(wait, mpshm__messages_timeout(m));
    return sooner(wait, sooner(mpshm__orphans_timeout(m), mpshm__cache_limit_timeout(m)));
}

/* Only a process of root can have changed its user. A manager that was killed has the address for a
 * moment. Without the address, such a process is served only by the connection that it has. */
static int listen_for_others(const unsigned char *id)
{
    int fd = geteuid() == 0 ? -EADDRINUSE : -EPERM;

    for (int ms = 0; fd == -EADDRINUSE && ms < 20; ms++) {
        mpshm__sleep_ms(ms > 0);
        fd = mpshm__manager_listen_for_others(id);
    }
    return fd;
}

/* Loop until no process is in the session (0), only the parent is left (1), or a call fails
 * (-errno). */
static int loop(struct manager *m, struct waiter *w)
{
    uint64_t touched = mpshm__now_ns(), one = 1;

    for (;;) {
        int wait = poll_timeout(m);
        m->fds[LISTENER].events = m->fds[FOR_OTHERS].events = m->pause_admitting ? 0 : POLLIN;
        int n = poll(m->fds, (nfds_t)m->top, wait);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0 || !only_the_parent_is_left(m))
            m->only_parent_since = 0;
        else if (m->only_parent_since == 0)
            m->only_parent_since = mpshm__now_ns();
        else if (mpshm__now_ns() - m->only_parent_since > LINGER_MS * 1000000ull)
            return 1;
        m->pause_admitting = 0;
        if (n < 0)
            continue; /* the events are those of the last call */
        for (int c = m->top - 1; c >= FIRST;
             c--) /* downwards, because mpshm__client_disconnected() moves the last one in */
            if (m->fds[c].revents != 0 && mpshm__client_serve(m, c) < 0)
                mpshm__client_disconnected(m, c);
        if (m->fds[FOLDER].revents)
            mpshm__folder_changed(m);
        else if (m->broken)
            mpshm__folder_repair(m);
        for (int listener = LISTENER; listener <= FOR_OTHERS; listener++)
            if (m->fds[listener].revents)
                mpshm__client_accept(m, listener);
        mpshm__reaper_poll(m);
        mpshm__messages_expire(m);
        if (m->orphans)
            mpshm__orphans_reclaim(m);
        mpshm__cache_limit_poll(m);
        if (mpshm__now_ns() - touched > TOUCH_MS * 1000000ull) {
            touched = mpshm__now_ns();
            mpshm__folder_touch(m);
        }
        if (m->was_not_empty) {
            /* The thread waits for the lock again, a tick later: one that never blocks would keep
             * this loop busy. */
            m->was_not_empty = 0;
            if (write(w->go_fd, &one, sizeof(one)) < 0)
                return -errno;
        }
        if (m->fds[EMPTY].revents) {
            if (read(w->event_fd, &one, sizeof(one)) != sizeof(one))
                return -errno;
            mpshm__strangers_drop(m); /* who shows nothing holds nothing up */
            if (m->top == FIRST && !mpshm__reaper_has_pending(m))
                return 0; /* it has the exclusive lock, so no process can enter now */
            flock(w->control_fd, LOCK_UN);
            m->was_not_empty = 1;
        }
    }
}

static void remove_everything(struct manager *m)
{
    struct mpshm__control *control = m->session.control;

    for (uint32_t i = 0; i < MPSHM__SEGMENTS; i++) {
        const struct mpshm__segment_entry *entry = &control->segments[i];
        uint64_t nonce[2] = {atomic_load(&entry->nonce[0]), atomic_load(&entry->nonce[1])};
        if (i < m->session.segment_top && m->session.segments[i] != NULL)
            mpshm__drop_segment(m, i);
        else if (nonce[0] != 0 && atomic_load(&entry->strategy) == MPSHM_FILE_SYSTEM)
            mpshm__object_unlink(nonce);
    }
    for (int slot = 0; slot < MPSHM__SLOTS; slot++)
        mpshm__object_unlink_unfinished(control, &control->slots[slot]);
    mpshm__session_remove(m->session.id);
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
    m->session.sock = m->session.control_fd = MPSHM__NO_FD;
    m->session.slot = m->folder_fd = -1;
    err = enter(m, control_fd, folder);
    if (err < 0) {
        free(m);
        return err;
    }
    struct mpshm__control *control = m->session.control;
    atomic_fetch_add(&control->manager_starts, 1);
    if (atomic_exchange(&control->ready, 1) == 1)
        mpshm__reaper_resume(m);

    err = mpshm__cache_limit_begin(m);
    if (err < 0)
        return err;
    /* The thread waits through another descriptor, so that it does not wait for the manager's
     * own lock. The lock by which the manager entered is released. */
    w.control_fd = mpshm__control_lock(mpshm__control_open_again(&m->session));
    w.event_fd = eventfd(0, EFD_CLOEXEC);
    w.go_fd = eventfd(1, EFD_CLOEXEC);
    m->spare = (int)MPSHM__RETRY(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (w.control_fd < 0 || w.event_fd < 0 || w.go_fd < 0)
        return -EMFILE;
    flock(w.control_fd, LOCK_UN);
    err = pthread_create(&thread, NULL, wait_until_empty, &w);
    if (err != 0)
        return -err;
    flock(m->session.control_fd.number, LOCK_UN);
    mpshm__remove_dead_sessions();

    m->fds[LISTENER] = (struct pollfd){.fd = listener, .events = POLLIN};
    m->fds[FOR_OTHERS].fd = listen_for_others(m->session.id);
    m->fds[EMPTY] = (struct pollfd){.fd = w.event_fd, .events = POLLIN};
    m->fds[FOLDER] = (struct pollfd){.fd = -1};
    m->fds[CACHE] = (struct pollfd){.fd = mpshm__cache_limit_fd(m), .events = POLLIN};
    m->top = FIRST;
    mpshm__folder_watch(m);
    mpshm__reaper_discover(m);
    err = loop(m, &w);
    if (err == 0)
        remove_everything(m);
    free(m);
    return err < 0 ? err : 0;
}
