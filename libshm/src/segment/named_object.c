/* The file_system strategy: a POSIX shared memory object whose name is 128 random bits. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/failed_call.h"
#include "platform/platform.h"
#include "segment/memory_object.h"

int mpshm__named_create(const char *name, uint64_t size)
{
    /* A collision of 128 random bits is an attack or a broken generator. O_EXCL makes it an
     * error, and there is no retry. */
    int fd = (int)MPSHM__RETRY(shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));

    if (fd < 0) /* these errors concern /dev/shm and no other folder */
        return errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == EROFS ||
                       errno == EPERM || errno == ENOSYS
                   ? -ENODEV
                   : mpshm__failed("open");
    /* The file is sparse. Memory is reserved before it is handed out: see allocator.c. */
    if (MPSHM__RETRY(ftruncate(fd, (off_t)size)) < 0) {
        int err = mpshm__failed("ftruncate");
        shm_unlink(name);
        close(fd);
        return err;
    }
    return fd;
}
