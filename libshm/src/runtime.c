/* The folder of a tree: where it is, who holds it, and when it goes.
 *
 *     <runtime>/mpshm-<uid>/            0700, ours or refused
 *         <tree, 32 hex digits>/
 *             control                   the control file; everybody in the tree holds it locked
 *             start                     locked by who is starting a manager
 *             socket                    the manager listens here
 *
 * Note [A lock that says who is there]
 *   Everybody in the tree holds a shared flock on `control`. The kernel gives it back when the last
 *   process that has the descriptor is gone, however it goes. So "nobody is in this tree" is a fact
 *   that can be asked for: an exclusive lock is granted. The manager waits for that before it
 *   leaves, and the folder of a tree whose manager was killed too is recognised as dead by it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

static const char *runtime_dir(void)
{
    const char *dir = getenv("MPSHM_RUNTIME_DIR");

    return dir && dir[0] ? dir : "/tmp";
}

static void user_path(char *path, size_t size)
{
    snprintf(path, size, "%s/mpshm-%u", runtime_dir(), (unsigned)geteuid());
}

void mpshm__tree_path(const unsigned char *id, const char *leaf, char *path, size_t size)
{
    char hex[2 * MPSHM_ID_SIZE + 1];

    for (int i = 0; i < MPSHM_ID_SIZE; i++)
        snprintf(hex + 2 * i, 3, "%02x", id[i]);
    snprintf(path, size, "%s/mpshm-%u/%s%s%s", runtime_dir(), (unsigned)geteuid(), hex,
             leaf[0] ? "/" : "", leaf);
}

/* A folder that is ours alone: made so, or found so, otherwise refused. */
static int private_dir(const char *path)
{
    struct stat st;

    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return -errno;
    if (lstat(path, &st) < 0)
        return -errno;
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0)
        return -EPERM;
    return 0;
}

/* Is what we have open still what the path says? Its manager may have removed it meanwhile. */
static int still_there(int fd, const char *path)
{
    struct stat a, b;

    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino &&
           a.st_dev == b.st_dev;
}

enum { TRIES = 100, LOCK_WITHIN_S = 5 };

/* Shared, but not waited for without end: who has it exclusively may be stopped. */
static int lock_shared(int fd)
{
    uint64_t give_up = mpshm__now_ns() + LOCK_WITHIN_S * 1000000000ull;

    while (flock(fd, LOCK_SH | LOCK_NB) < 0) {
        struct timespec pause = {.tv_nsec = 1000000};
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        if (mpshm__now_ns() > give_up)
            return -ETIMEDOUT;
        nanosleep(&pause, NULL);
    }
    return 0;
}

/* One attempt to have the control file open and held. -ENOENT: it went away meanwhile. */
static int hold_control(const unsigned char *id, int create)
{
    char path[MPSHM__PATH];
    int err, fd;

    user_path(path, sizeof(path));
    if (create && (err = private_dir(path)) < 0)
        return err;
    mpshm__tree_path(id, "", path, sizeof(path));
    if (create && (err = private_dir(path)) < 0)
        return err;
    mpshm__tree_path(id, "control", path, sizeof(path));
    fd = (int)MPSHM__RETRY(
        open(path, O_RDWR | (create ? O_CREAT : 0) | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (fd < 0)
        return -errno;
    err = lock_shared(fd);
    if (err == 0 && !still_there(fd, path))
        err = -ENOENT;
    if (err == 0)
        return fd;
    close(fd);
    return err;
}

int mpshm__tree_hold(const unsigned char *id)
{
    return hold_control(id, 0);
}

/* A file of a tree whose manager has not been there yet is empty; everybody may be the first. */
static int fill_up(int fd)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size == sizeof(struct mpshm__control) && st.st_blocks * 512 >= st.st_size)
        return 0;
    if (st.st_uid != geteuid())
        return -EPERM;
    return mpshm__reserve(fd, 0, sizeof(struct mpshm__control));
}

int mpshm__tree_enter(struct mpshm__tree *tree, int create)
{
    int err, fd = -ENOENT;

    if (tree->control != NULL)
        return 0;
    for (int i = 0; fd == -ENOENT && i < (create ? TRIES : 1); i++)
        fd = hold_control(tree->id, create);
    if (fd < 0) {
        if (create)
            mpshm__tree_sweep(tree->id);
        return fd == -ENOENT && !create ? -ESTALE : fd;
    }
    err = fill_up(fd);
    if (err == 0) {
        void *at =
            mmap(NULL, sizeof(struct mpshm__control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at != MAP_FAILED) {
            tree->control = at;
            tree->control_fd = fd;
            return 0;
        }
        err = -errno;
    }
    close(fd);
    if (create) /* what was begun here is taken away, unless somebody else is in it */
        mpshm__tree_sweep(tree->id);
    return err;
}

static struct flock byte_of(int slot)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
}

int mpshm__lock_slot(int control_fd, int slot)
{
    struct flock byte = byte_of(slot);

    if (MPSHM__RETRY(fcntl(control_fd, F_OFD_SETLK, &byte)) == 0)
        return 0;
    return errno == EINVAL ? 0 : -errno; /* no such locks here (valgrind): then the pid must do */
}

int mpshm__slot_is_locked(int control_fd, int slot)
{
    struct flock byte = byte_of(slot);

    /* When it cannot be told, it is; where there are no such locks, it is not. */
    if (MPSHM__RETRY(fcntl(control_fd, F_OFD_GETLK, &byte)) < 0)
        return errno != EINVAL;
    return byte.l_type != F_UNLCK;
}

void mpshm__sign_slot(struct mpshm__slot *slot, int pid)
{
    atomic_store(&slot->start_time, mpshm__start_time(pid));
    atomic_store(&slot->pid, pid);
}

int mpshm__tree_wait_empty(int control_fd)
{
    return MPSHM__RETRY(flock(control_fd, LOCK_EX)) < 0 ? -errno : 0;
}

void mpshm__tree_remove(const unsigned char *id)
{
    static const char *const LEAVES[] = {"socket", "start", "control", ""};
    char path[MPSHM__PATH];

    for (int i = 0; i < 4; i++) {
        mpshm__tree_path(id, LEAVES[i], path, sizeof(path));
        if (LEAVES[i][0])
            unlink(path);
        else
            rmdir(path);
    }
    user_path(path, sizeof(path));
    rmdir(path); /* only when it is empty */
}

/* A tree that nobody is in has no manager that will ever clean up: take its names away. */
static void sweep_tree(const unsigned char *id, void *unused)
{
    char path[MPSHM__PATH];
    struct stat st;
    int fd;
    (void)unused;

    mpshm__tree_path(id, "control", path, sizeof(path));
    fd = (int)MPSHM__RETRY(open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (fd < 0) {
        /* Killed between the folder and the file. Whoever is between the two now begins again. */
        mpshm__tree_path(id, "", path, sizeof(path));
        if (errno == ENOENT || errno == EMFILE)
            rmdir(path); /* only when it is empty */
        user_path(path, sizeof(path));
        rmdir(path);
        return;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && still_there(fd, path)) {
        if (fstat(fd, &st) == 0 && st.st_size >= (off_t)sizeof(struct mpshm__control)) {
            struct mpshm__control *control =
                mmap(NULL, sizeof(*control), PROT_READ, MAP_SHARED, fd, 0);
            if (control != MAP_FAILED) {
                for (int slot = 0; slot < MPSHM__SLOTS; slot++)
                    mpshm__object_unlink_unfinished(control, &control->slots[slot]);
                for (int i = 0; i < MPSHM__ARENAS; i++) {
                    uint64_t nonce[2] = {atomic_load(&control->arenas[i].nonce[0]),
                                         atomic_load(&control->arenas[i].nonce[1])};
                    if (nonce[0] && atomic_load(&control->arenas[i].strategy) == MPSHM_FILE_SYSTEM)
                        mpshm__object_unlink(nonce);
                }
                munmap(control, sizeof(*control));
            }
        }
        mpshm__tree_remove(id);
    }
    close(fd);
}

void mpshm__tree_sweep(const unsigned char *id)
{
    sweep_tree(id, NULL);
}

void mpshm__for_each_tree(void (*act)(const unsigned char *id, void *arg), void *arg)
{
    char path[MPSHM__PATH];
    struct dirent *entry;
    DIR *dir;

    user_path(path, sizeof(path));
    dir = opendir(path);
    if (dir == NULL)
        return;
    while ((entry = readdir(dir)) != NULL) {
        unsigned char id[MPSHM_ID_SIZE];
        if (mpshm__parse_id(entry->d_name, id))
            act(id, arg);
    }
    closedir(dir);
}

int mpshm__parse_id(const char *hex, unsigned char *id)
{
    int good = strlen(hex) == 2 * MPSHM_ID_SIZE;

    for (int i = 0; good && i < MPSHM_ID_SIZE; i++) {
        unsigned byte;
        good = sscanf(hex + 2 * i, "%2x", &byte) == 1;
        id[i] = (unsigned char)byte;
    }
    return good;
}

void mpshm__tree_sweep_folders(void)
{
    mpshm__for_each_tree(sweep_tree, NULL);
}
