/* The control file of a session: opened, locked and mapped.
 *
 * Note [A lock that says who is there]
 *   Every process of the session has a shared flock on `control`. The kernel releases it when the
 *   last process with the descriptor has gone, however it ended. So the fact "no process is in this
 *   session" can be tested: an exclusive lock is granted. The manager waits for that lock before it
 *   leaves. By the same test a manager recognises the folder of a session whose own manager was
 *   killed as well. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/failed_call.h"
#include "platform/linux/process.h"
#include "platform/platform.h"
#include "segment/memory_object.h"
#include "segment/reserve.h"
#include "session/control_lock.h"
#include "session/runtime_folder.h"

/* 1 when the open file is still the one at the path. Its manager may have removed it meanwhile. */
static int still_there(int fd, const char *path)
{
    struct stat a, b;

    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino &&
           a.st_dev == b.st_dev;
}

enum { LOCK_WITHIN_S = 5 };

/* Take a shared lock, with a time limit, because the holder of an exclusive lock may be stopped. */
static int lock_shared(int fd)
{
    uint64_t give_up = mpshm__now_ns() + LOCK_WITHIN_S * 1000000000ull;

    while (flock(fd, LOCK_SH | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return mpshm__failed("flock");
        if (mpshm__now_ns() > give_up)
            return -ETIMEDOUT;
        mpshm__sleep_ms(1);
    }
    return 0;
}

int mpshm__control_hold(const unsigned char *id, int create)
{
    char path[MPSHM__PATH];
    int err, fd;

    if (create && (err = mpshm__session_make_folder(id)) < 0)
        return err;
    mpshm__session_path(id, "control", path, sizeof(path));
    fd = (int)MPSHM__RETRY(
        open(path, O_RDWR | (create ? O_CREAT : 0) | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (fd < 0)
        return mpshm__failed("open");
    err = lock_shared(fd);
    if (err == 0 && !still_there(fd, path))
        err = -ENOENT;
    if (err == 0)
        return fd;
    close(fd);
    return err;
}

/* ---- the control file ---- */

static char others_version[sizeof(((struct mpshm__control *)0)->version)];

const char *mpshm_refused_version(void)
{
    return others_version;
}

/* The magic number, 0 if there is none. Not by a mapping: of a file that was never reserved, on a
 * full tmpfs, a read there ends the process. */
static int read_magic(int fd, uint64_t *magic)
{
    *magic = 0;
    return pread(fd, magic, sizeof(*magic), offsetof(struct mpshm__control, magic)) < 0
               ? mpshm__failed("pread")
               : 0;
}

/* An empty file is new, and any process may be the first to fill it. A file of another version
 * is neither changed nor read. */
static int fill_up(int fd)
{
    char version[sizeof(others_version)] = "";
    uint64_t magic;
    struct stat st;

    if (fstat(fd, &st) < 0)
        return mpshm__failed("fstat");
    /* The magic number first; the creator writes it last. Only the header: the whole file may not
     * fit on a thread's stack. */
    if (read_magic(fd, &magic) < 0 ||
        pread(fd, version, sizeof(version) - 1, offsetof(struct mpshm__control, version)) < 0)
        return mpshm__failed("pread");
    /* Of another release with the same layout: what its handles carry is not libshm's alone. */
    if (magic == 0 ? st.st_size > (off_t)sizeof(struct mpshm__control)
                   : magic != MPSHM__MAGIC ||
                         strncmp(version, mpshm_version(), sizeof(version) - 1) != 0) {
        strcpy(others_version, magic == 0 ? "" : version);
        return -EPROTO;
    }
    /* The logs of the slots are most of the file; each is reserved when its slot is taken. */
    if (st.st_size == sizeof(struct mpshm__control) &&
        st.st_blocks * 512 >= (off_t)offsetof(struct mpshm__control, handle_log))
        return 0;
    int err = mpshm__file_size_allowed(sizeof(struct mpshm__control));
    if (err < 0)
        return err;
    if (MPSHM__RETRY(ftruncate(fd, sizeof(struct mpshm__control))) < 0)
        return mpshm__failed("ftruncate");
    return mpshm__reserve(fd, 0, offsetof(struct mpshm__control, handle_log));
}

/* The file is small, but core dumps leave it out. A disk's read-ahead would read and clear all of
 * it at the first touch. */
static void advise(struct mpshm__control *at)
{
    madvise(at, sizeof(*at), MADV_DONTDUMP);
    madvise(at, sizeof(*at), MADV_RANDOM);
}

/* Write the constant part. Two processes that begin at one time write the same. */
static int begin_control(struct mpshm__control *control, const unsigned char *id)
{
    if (atomic_load(&control->magic) == 0) {
        memcpy(control->session, id, MPSHM_ID_SIZE);
        snprintf(control->version, sizeof(control->version), "%s", mpshm_version());
        atomic_store(&control->magic, MPSHM__MAGIC);
    }
    return memcmp(control->session, id, MPSHM_ID_SIZE) == 0 ? 0 : -ESTALE;
}

int mpshm__control_enter(struct mpshm__session *session, int fd)
{
    struct mpshm__control *at;
    struct stat st;
    int err = fill_up(fd);

    if (err < 0)
        return err;
    if (fstat(fd, &st) < 0)
        return mpshm__failed("fstat");
    at = mmap(NULL, sizeof(*at), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return mpshm__failed("mmap");
    advise(at);
    err = begin_control(at, session->id);
    if (err < 0) {
        munmap(at, sizeof(*at));
        return err;
    }
    session->control = at;
    session->user = st.st_uid;
    mpshm__fd_set(&session->control_fd, fd);
    return 0;
}

int mpshm__session_open_fd(struct mpshm__session *session, int fd)
{
    int err = fd < 0 ? -EBADF : lock_shared(fd);

    if (err == 0)
        err = mpshm__control_enter(session, fd);
    if (err < 0 && fd >= 0)
        close(fd);
    return err;
}

int mpshm__control_open_again(struct mpshm__session *session)
{
    int fd = mpshm__fd_get(&session->control_fd), got = -1;
    char path[MPSHM__PATH];

    if (fd >= 0) /* also works after the path was removed */
        do
            got = mpshm__reopen(fd);
        while (mpshm__fd_use_reserve(got));
    if (got < 0) {
        mpshm__session_path(session->id, "control", path, sizeof(path));
        got = (int)MPSHM__RETRY(open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
        if (got < 0)
            got = mpshm__failed("open");
    }
    if (got >= 0 && !mpshm__fd_is(&session->control_fd, got)) {
        close(got);
        got = -ENOENT; /* the path leads to another session's file, or to a copy */
    }
    return got;
}

int mpshm__control_lock(int fd)
{
    int err = fd < 0 ? fd : lock_shared(fd);

    if (err == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return err;
}

int mpshm__session_remap(struct mpshm__session *session, int fd)
{
    void *at = mmap(session->control, sizeof(*session->control), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED, fd, 0);

    if (at == MAP_FAILED) /* the old mapping is still there */
        return mpshm__failed("mmap");
    advise(at);
    mpshm__fd_close(&session->control_fd);
    mpshm__fd_set(&session->control_fd, fd);
    return 0;
}

int mpshm__session_wait_empty(int control_fd)
{
    return MPSHM__RETRY(flock(control_fd, LOCK_EX)) < 0 ? mpshm__failed("flock") : 0;
}

/* Remove the names of a session that no process is in. It has no manager that would do it. */
static void remove_if_dead(const unsigned char *id, void *unused)
{
    char path[MPSHM__PATH];
    uint64_t magic;
    struct stat st;
    int fd;
    (void)unused;

    mpshm__session_path(id, "control", path, sizeof(path));
    fd = (int)MPSHM__RETRY(open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (fd < 0) {
        /* A process was killed between creating the folder and the file. A process that is
         * between the two at this moment begins again. */
        mpshm__session_remove_empty(id);
        return;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && still_there(fd, path)) {
        if (fstat(fd, &st) == 0 && st.st_size == (off_t)sizeof(struct mpshm__control) &&
            read_magic(fd, &magic) == 0 && magic == MPSHM__MAGIC) {
            struct mpshm__control *control =
                mmap(NULL, sizeof(*control), PROT_READ, MAP_SHARED, fd, 0);
            if (control != MAP_FAILED) {
                for (int slot = 0; slot < MPSHM__SLOTS; slot++)
                    mpshm__object_unlink_unfinished(control, &control->slots[slot]);
                for (int i = 0; i < MPSHM__SEGMENTS; i++) {
                    uint64_t nonce[2] = {atomic_load(&control->segments[i].nonce[0]),
                                         atomic_load(&control->segments[i].nonce[1])};
                    if (nonce[0] &&
                        atomic_load(&control->segments[i].strategy) == MPSHM_FILE_SYSTEM)
                        mpshm__object_unlink(nonce);
                }
                munmap(control, sizeof(*control));
            }
        }
        mpshm__session_remove(id);
    }
    close(fd);
}

void mpshm__session_remove_if_dead(const unsigned char *id)
{
    remove_if_dead(id, NULL);
}

void mpshm__remove_dead_sessions(void)
{
    mpshm__for_each_session(remove_if_dead, NULL);
}
