/* The file_descriptor strategy: a sealed memfd, met by passing its descriptor. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

/* With these, no holder of the descriptor can shorten the file under another's mapping. */
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* Under vm.overcommit_memory = 2 a page of a memfd is accounted when it is first touched, and a
 * refusal at that moment is a SIGBUS. Only there does a sparse memfd need reserving. */
static int strict_overcommit(void)
{
    char mode = '0';
    int fd = (int)MPSHM__RETRY(open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC));

    if (fd < 0)
        return 0;
    if (MPSHM__RETRY(read(fd, &mode, 1)) != 1)
        mode = '0';
    close(fd);
    return mode == '2';
}

int mpshm__memfd_create(uint64_t size)
{
    int err;
    int fd = memfd_create("mpshm", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return -errno;
    if (MPSHM__RETRY(ftruncate(fd, (off_t)size)) < 0) {
        err = -errno;
        goto fail;
    }
    if (strict_overcommit() && (err = mpshm__reserve(fd, size)) < 0)
        goto fail;
    if (fcntl(fd, F_ADD_SEALS, SEALS) < 0) {
        err = -errno;
        goto fail;
    }
    return fd;

fail:
    close(fd);
    return err;
}

int mpshm__memfd_check(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);

    return seals >= 0 && (seals & SEALS) == SEALS ? 0 : -EBADMSG;
}
