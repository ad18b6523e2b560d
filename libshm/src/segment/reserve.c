/* Reserve the bytes of a file before a process can touch them, so that a full file system is an
 * error code and not a SIGBUS. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>

#include "base/failed_call.h"
#include "platform/linux/cgroup.h"
#include "platform/platform.h"
#include "segment/memory_object.h"
#include "segment/reserve.h"

/* One call reserves at most this much. A signal makes posix_fallocate give up and free its whole
 * range, so a large request in one piece might never finish under a profiler's timer. */
enum { STEP = 64 << 20 };

enum { POPULATE_WRITE = 23 }; /* MADV_POPULATE_WRITE, since Linux 5.14 */

/* 1 when this would exceed the mount, or all memory where the mount has no size. The check comes
 * first, because the kernel would allocate page by page before it refuses. */
static int exceeds_mount(int fd, uint64_t size)
{
    struct statvfs fs;
    struct sysinfo info;

    if (MPSHM__RETRY(fstatvfs(fd, &fs)) == 0 && fs.f_blocks != 0)
        return size / fs.f_frsize > fs.f_blocks;
    if (sysinfo(&info) == 0)
        return size / info.mem_unit > (uint64_t)info.totalram + info.totalswap;
    return 0;
}

/* 1 when a process would be killed for it. The file may have memory there already: how much is not
 * known, so all that it has counts. */
static int exceeds_groups(int fd, uint64_t size)
{
    struct stat st;
    uint64_t has = fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;

    return size > has && !mpshm__groups_have_room(size - has);
}

int mpshm__file_size_allowed(uint64_t size)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        size > limit.rlim_cur)
        return -EFBIG;
    return 0;
}

/* A file that has this length already may be filled. */
static int may_grow(int fd, uint64_t size)
{
    struct stat st;

    return fstat(fd, &st) == 0 && (uint64_t)st.st_size >= size ? 0 : mpshm__file_size_allowed(size);
}

int mpshm__reserve(int fd, uint64_t at, uint64_t size)
{
    uint64_t start = at, end = at + size, step = STEP;

    if (may_grow(fd, end) < 0)
        return -EFBIG;
    if (size >= STEP && exceeds_mount(fd, size))
        return -ENOSPC;
    if (size >= STEP && exceeds_groups(fd, size))
        return -ENOMEM;
    while (at < end) {
        uint64_t len = end - at < step ? end - at : step;
        /* It returns its error and leaves errno alone. */
        int err = posix_fallocate(fd, (off_t)at, (off_t)len);
        if (err == EINTR) {
            if (step > MPSHM__PAGE)
                step /= 2;
            continue;
        }
        if (err != 0) {
            if (at > start)
                fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)start,
                          (off_t)(at - start));
            errno = err;
            return mpshm__failed("fallocate");
        }
        at += len;
    }
    return 0;
}

/* The program may have closed the descriptor (see descriptor.c). A named object can be opened
 * again. Otherwise madvise creates the pages through the mapping, and fails with EFAULT where a
 * plain write would be a SIGBUS. */
int mpshm__segment_reserve(struct mpshm__segment *segment, uint64_t at, uint64_t size)
{
    int fd = mpshm__fd_get(&segment->fd);

    if (fd < 0 && segment->strategy == MPSHM_FILE_SYSTEM) {
        mpshm__fd_set(&segment->fd, mpshm__object_open_name(segment->nonce));
        fd = mpshm__fd_get(&segment->fd);
    }
    if (fd >= 0)
        return mpshm__reserve(fd, at, size);
    uint64_t first = at & ~(uint64_t)(MPSHM__PAGE - 1);
    if (madvise((char *)segment->header + first, mpshm__pages(at + size - first), POPULATE_WRITE) ==
        0)
        return 0;
    return errno == EFAULT ? -ENOSPC : mpshm__failed("madvise");
}
