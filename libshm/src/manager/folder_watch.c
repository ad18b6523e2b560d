/* The folder and the socket by which new processes find the manager.
 *
 * Note [A folder that others clean]
 *   Others clean /tmp: by age (systemd-tmpfiles, tmpreaper) and by hand. The processes of the
 *   session need nothing in the folder, because they have the control file open and mapped, and
 *   their connections. Only *new* processes need it. So
 *     - the manager locks the folder, which systemd-tmpfiles respects, and touches the files
 *       every hour;
 *     - it watches the folder (inotify), checks it when a client introduces a child, and creates
 *       the folder and a socket again when its socket has gone;
 *     - a client that finds no listener at the path while a manager has locked its byte of the
 *       control file waits for that (manager_start.c).
 *   The control file itself cannot get its name back. The manager passes descriptors of it to
 *   clients that ask over the socket. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "manager/manager.h"
#include "platform/platform.h"
#include "session/manager_start.h"
#include "session/runtime_folder.h"

static const char *const LEAVES[] = {"", "socket", "control", "start"};

void mpshm__folder_touch(const struct manager *m)
{
    char path[MPSHM__PATH];

    for (size_t i = 0; i < sizeof(LEAVES) / sizeof(LEAVES[0]); i++) {
        mpshm__session_path(m->session.id, LEAVES[i], path, sizeof(path));
        utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW);
    }
}

/* systemd-tmpfiles leaves a locked folder alone. The lock lasts until the manager ends, or the
 * folder is created again. */
static void lock_folder(struct manager *m)
{
    char path[MPSHM__PATH];

    if (m->folder_fd >= 0)
        close(m->folder_fd);
    mpshm__session_path(m->session.id, "", path, sizeof(path));
    m->folder_fd = (int)MPSHM__RETRY(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (m->folder_fd >= 0)
        flock(m->folder_fd, LOCK_SH | LOCK_NB);
}

void mpshm__folder_watch(struct manager *m)
{
    char path[MPSHM__PATH];
    struct stat st;

    lock_folder(m);
    if (m->fds[FOLDER].fd < 0)
        m->fds[FOLDER] =
            (struct pollfd){.fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK), .events = POLLIN};
    mpshm__session_path(m->session.id, "", path, sizeof(path));
    /* If there are no more watches, the change is noticed when a child is introduced. */
    if (m->fds[FOLDER].fd >= 0)
        inotify_add_watch(m->fds[FOLDER].fd, path,
                          IN_DELETE | IN_MOVED_FROM | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR);
    /* A path leads elsewhere also when the folder of the user was renamed. */
    mpshm__session_path(m->session.id, "..", path, sizeof(path));
    if (m->fds[FOLDER].fd >= 0)
        inotify_add_watch(m->fds[FOLDER].fd, path, IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR);
    /* After the watch: this sees a removal before it, and the watch sees later ones. */
    mpshm__session_path(m->session.id, "socket", path, sizeof(path));
    m->socket_inode = lstat(path, &st) == 0 ? st.st_ino : 0;
    m->broken = m->socket_inode == 0; /* tried again at the next tick */
}

/* No process is in the session, and none can enter it: its folder has been removed by a process that
 * found it dead, and this manager is about to leave. A shared lock shows that a process is in it, and
 * not the thread that waits until it is empty. */
static int is_deserted(const struct manager *m)
{
    int fd = m->session.control_fd.number;

    if (m->top > FIRST)
        return 0;
    int empty = flock(fd, LOCK_EX | LOCK_NB) == 0 || flock(fd, LOCK_SH | LOCK_NB) < 0;
    flock(fd, LOCK_UN);
    return empty;
}

void mpshm__folder_repair(struct manager *m)
{
    char path[MPSHM__PATH];
    struct stat st;
    int listener;

    mpshm__session_path(m->session.id, "socket", path, sizeof(path));
    if (lstat(path, &st) == 0 && st.st_ino == m->socket_inode) {
        m->broken = 0;
        return;
    }
    listener = is_deserted(m) ? -1 : mpshm__manager_listen(m->session.id);
    if (listener < 0) {
        m->broken = 1; /* tried again at the next tick */
        return;
    }
    close(m->fds[LISTENER].fd);
    m->fds[LISTENER].fd = listener;
    mpshm__folder_watch(m);
}

/* Repair at the next tick, so that a process that is removing the folder finds it empty. */
void mpshm__folder_changed(struct manager *m)
{
    char events[4096];

    while (read(m->fds[FOLDER].fd, events, sizeof(events)) > 0)
        ;
    m->broken = 1;
}
