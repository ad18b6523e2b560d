/* Find the manager of a session, or start it.
 *
 * A process that finds no listener takes the lock `start`, looks again, binds the socket itself
 * and passes the listening descriptor to the manager that it starts. So connections are queued
 * from the moment of bind, no process polls for a socket to appear, and if many processes need a
 * manager at once, one of them starts it.
 *
 * Note [Another user]
 *
 *   root's process               its child, which has called setuid
 *   starts the manager           may not open the folder
 *          |                              |
 *       "socket" ------> manager <--- "\0mpshm-<session>"  MEMBER, with the control file
 *
 *   A process that has changed its user may have no connection, because there was no manager when
 *   it started or because the program has closed it. The manager of root, who alone can make such
 *   children, also listens in the abstract namespace, which has no permissions. There it admits
 *   whoever sends a descriptor of the control file, which nobody else can open; and the client
 *   admits only the user of the control file as its manager. Without a manager such a process
 *   starts none, for the others would not admit one of its user: its arrays travel as bytes. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/failed_call.h"
#include "platform/platform.h"
#include "session/control_lock.h"
#include "session/manager_start.h"
#include "session/runtime_folder.h"
#include "session/process_slot.h"
#include "session/wire.h"

enum { HEALED_WITHIN_S = 2, BACKLOG = 256 };

static char manager_path[4096];

int mpshm_set_manager(const char *path)
{
    if (strlen(path) >= sizeof(manager_path))
        return -ENAMETOOLONG;
    strcpy(manager_path, path);
    return 0;
}

/* The address of the session's socket. An address has room for 107 bytes. A longer path goes
 * through a descriptor of its folder, which the caller closes afterwards (-1: none). */
static int socket_address(const unsigned char *id, struct sockaddr_un *address, int *folder)
{
    char path[MPSHM__PATH];
    int n;

    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    *folder = -1;
    mpshm__session_path(id, "socket", path, sizeof(path));
    if (strlen(path) < sizeof(address->sun_path)) {
        strcpy(address->sun_path, path);
        return 0;
    }
    mpshm__session_path(id, "", path, sizeof(path));
    *folder = (int)MPSHM__RETRY(open(path, O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (*folder < 0)
        return mpshm__failed("open");
    n = snprintf(address->sun_path, sizeof(address->sun_path), "/proc/self/fd/%d/socket", *folder);
    return n < (int)sizeof(address->sun_path) ? 0 : -ENAMETOOLONG;
}

/* See Note [Another user]. Returns the length. */
static socklen_t address_for_others(const unsigned char *id, struct sockaddr_un *address)
{
    static const char prefix[] = "\0mpshm-";

    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path, prefix, sizeof(prefix));
    mpshm__format_id(id, address->sun_path + sizeof(prefix) - 1);
    return offsetof(struct sockaddr_un, sun_path) + sizeof(prefix) - 1 + 2 * MPSHM_ID_SIZE;
}

static int is_other_user(const struct mpshm__session *session)
{
    return session->control != NULL && session->user != geteuid();
}

static int show_membership(struct mpshm__session *session, int sock)
{
    struct mpshm__frame frame = {.magic = MPSHM__WIRE, .op = MPSHM__MEMBER};
    int control = mpshm__fd_get(&session->control_fd);

    return control < 0 ? -ENOLINK : mpshm__send_frame(sock, &frame, control, 0);
}

/* Returns a connected socket. -EAGAIN: the listener's queue is full. */
int mpshm__manager_try(struct mpshm__session *session)
{
    struct sockaddr_un address;
    socklen_t length = sizeof(address);
    int sock, folder = -1, err = 0, other = is_other_user(session);

    if (other)
        length = address_for_others(session->id, &address);
    else
        err = socket_address(session->id, &address, &folder);
    if (err < 0)
        return err;
    do
        sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    while (sock < 0 && mpshm__fd_use_reserve(-errno));
    if (sock < 0)
        err = mpshm__failed("socket");
    else if (MPSHM__RETRY(connect(sock, (const struct sockaddr *)&address, length)) < 0)
        err = mpshm__failed("connect");
    if (folder >= 0)
        close(folder);
    if (err == 0) {
        long peer = mpshm__peer_uid(sock);
        if (peer == (long)session->user || (!other && peer == (long)geteuid()))
            err = other ? show_membership(session, sock) : 0;
        else
            err = peer < 0 ? -ENOPROTOOPT : -EACCES;
    }
    if (err == 0)
        return sock;
    if (sock >= 0)
        close(sock);
    return err;
}

static int nobody_listens(int err)
{
    return err == -ECONNREFUSED || err == -ENOENT;
}

/* A stopped manager accepts no connection, so the wait has a limit. */
static int connect_within(struct mpshm__session *session)
{
    uint64_t until = mpshm__now_ns() + MPSHM__ANSWER_WITHIN_S * 1000000000ull;

    for (;;) {
        int sock = mpshm__manager_try(session);
        if (sock != -EAGAIN)
            return sock;
        if (mpshm__now_ns() > until)
            return -ETIMEDOUT;
        mpshm__sleep_ms(2);
    }
}

/* The manager forks and its first process exits at once (see cmd/), so this wait is short. */
static int spawn_manager(int listener, int control, const char *folder)
{
    char *const argv[] = {"shm-manager", (char *)folder, NULL};
    extern char **environ;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, all;
    pid_t pid;
    int err, status;

    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attr);
    /* dup2 to another number also clears close-on-exec; dup2 from 3 to 3 would not. */
    int high = fcntl(listener, F_DUPFD_CLOEXEC, 10);
    int lack = errno == EINVAL ? EMFILE : errno; /* the limit is 10 or less */
    int higher = control >= 0 ? fcntl(control, F_DUPFD_CLOEXEC, 10) : -1;
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDWR, 0);
    posix_spawn_file_actions_adddup2(&actions, 0, 1);
    /* Stderr is not inherited, either: a reader that waits for its end would wait for the
     * manager. */
    posix_spawn_file_actions_adddup2(&actions, 0, 2);
    posix_spawn_file_actions_adddup2(&actions, high, 3);
    if (higher >= 0)
        posix_spawn_file_actions_adddup2(&actions, higher, 4);
    else
        posix_spawn_file_actions_addclose(&actions, 4);
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setflags(&attr,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
    err = high < 0 ? lack : posix_spawn(&pid, manager_path, &actions, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    if (high >= 0)
        close(high);
    if (higher >= 0)
        close(higher);
    if (err != 0) {
        errno = err;
        err = mpshm__failed(high < 0 ? "fcntl" : "posix_spawn (clone3, setsid, dup2, execve)");
        return err == -EAGAIN ? -ECHILD : err; /* no process is left (ulimit -u) */
    }
    /* ECHILD when the program ignores SIGCHLD. The result is unknown then, and connect will
     * tell. */
    if (MPSHM__RETRY(waitpid(pid, &status, 0)) != pid || status == 0)
        return 0;
    /* After a SIGKILL try again. A sandbox ends a process by another signal, each time. */
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? -ECONNRESET : -ECHILD;
}

static int lock_start(const struct mpshm__session *session)
{
    char path[MPSHM__PATH];
    int fd;

    mpshm__session_path(session->id, "start", path, sizeof(path));
    fd = (int)MPSHM__RETRY(open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (fd < 0)
        return mpshm__failed("open");
    for (uint64_t give_up = mpshm__now_ns() + MPSHM__ANSWER_WITHIN_S * 1000000000ull;;) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return fd;
        int err = errno != EWOULDBLOCK && errno != EINTR ? mpshm__failed("flock")
                  : mpshm__now_ns() > give_up            ? -ETIMEDOUT /* its holder is stopped */
                                                         : 0;
        if (err < 0) {
            close(fd);
            return err;
        }
        mpshm__sleep_ms(2);
    }
}

/* The manager may replace its listener between poll and accept, which must not wait then. */
static int listen_at(const struct sockaddr_un *address, socklen_t length)
{
    int err = 0, listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (listener < 0)
        return mpshm__failed("socket");
    if (bind(listener, (const struct sockaddr *)address, length) < 0)
        err = mpshm__failed("bind");
    else if (listen(listener, BACKLOG) < 0)
        err = mpshm__failed("listen");
    if (err < 0)
        close(listener);
    return err < 0 ? err : listener;
}

int mpshm__manager_listen(const unsigned char *id)
{
    struct sockaddr_un address;
    int folder = -1, err = mpshm__session_make_folder(id);

    if (err == 0)
        err = socket_address(id, &address, &folder);
    if (err < 0)
        return err;
    unlink(address.sun_path);
    /* The folder has mode 0700, so the mode of the socket does not matter. */
    err = listen_at(&address, sizeof(address));
    if (folder >= 0)
        close(folder);
    return err;
}

int mpshm__manager_listen_for_others(const unsigned char *id)
{
    struct sockaddr_un address;
    socklen_t length = address_for_others(id, &address);

    return listen_at(&address, length);
}

/* Start a manager. The caller has the lock `start`, and no process listens at the path. */
static int start_manager(const struct mpshm__session *session, int control)
{
    char folder[MPSHM__PATH];
    int err, listener = mpshm__manager_listen(session->id);

    if (listener < 0)
        return listener;
    mpshm__session_path(session->id, "", folder, sizeof(folder));
    err = spawn_manager(listener, control,
                        folder); /* pass the file, because the path may no longer lead to it */
    close(listener);
    return err;
}

static int is_exhausted(int err)
{
    return err == -EMFILE || err == -ENFILE;
}

/* A session has one manager, which has locked its byte. If it lives and does not listen at the
 * path, its socket or its folder was removed; the manager notices and creates them again. A
 * daemon that has closed the control file cannot start a manager when the path no longer leads
 * to the file: a manager of another file would know none of the processes. */
static int start(struct mpshm__session *session)
{
    int err, control, lock = lock_start(session);

    if (lock == -ENOENT && (err = mpshm__session_make_folder(session->id)) == 0)
        lock = lock_start(session);
    if (lock < 0)
        return lock;
    control = mpshm__control_lock(mpshm__control_open_again(session));
    uint64_t wait_s = control < 0 ? HEALED_WITHIN_S : MPSHM__ANSWER_WITHIN_S;
    uint64_t until = mpshm__now_ns() + wait_s * 1000000000ull;
    for (;;) {
        err = mpshm__manager_try(session); /* another process may have been faster */
        if (!nobody_listens(err))
            break;
        int locked = control >= 0 ? mpshm__byte_is_locked(control, MPSHM__MANAGER_BYTE) : 1;
        if (locked < 0) {
            err = locked;
            break;
        }
        if (locked == 0) {
            err = start_manager(session, control);
            if (err == 0)
                err = mpshm__manager_try(session);
            break;
        }
        if (mpshm__now_ns() > until) {
            err = control >= 0 ? -ETIMEDOUT : is_exhausted(control) ? control : -ENOLINK;
            break;
        }
        mpshm__sleep_ms(2);
    }
    if (control >= 0)
        close(control);
    else if (err == -ENOLINK)
        mpshm__session_remove_start(session->id); /* there is no manager to remove it later */
    close(lock);
    return err;
}

int mpshm__manager_connect(struct mpshm__session *session, int may_start)
{
    enum { ATTEMPTS = 10 };
    int attempt = 0, err = connect_within(session);

    if (may_start && nobody_listens(err))
        do
            err = is_other_user(session) ? -ENOLINK : start(session);
        while (err == -ENOENT && attempt++ < ATTEMPTS); /* the folder was removed meanwhile */
    return err;
}

int mpshm__manager_is_there(struct mpshm__session *session)
{
    int sock = mpshm__manager_try(session);

    if (sock >= 0)
        close(sock);
    return !nobody_listens(sock);
}
