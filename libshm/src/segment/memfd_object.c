/* The file_descriptor strategy: a sealed memfd, attached by passing its descriptor. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/failed_call.h"
#include "platform/platform.h"
#include "segment/memory_object.h"

enum { NOEXEC_SEAL = 0x0008 }; /* MFD_NOEXEC_SEAL, since Linux 6.3 */

/* With these seals no process can truncate the file under another's mapping. */
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

int mpshm__memfd_create(uint64_t size)
{
    int err = 0;
    /* Not executable. Some systems require the flag, and older kernels do not know it. */
    int fd = memfd_create("mpshm", MFD_CLOEXEC | MFD_ALLOW_SEALING | NOEXEC_SEAL);

    if (fd < 0 && errno == EINVAL)
        fd = memfd_create("mpshm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) /* sandboxes without memfds fail with EPERM or ENOSYS */
        return errno == EPERM || errno == ENOSYS || errno == EACCES ? -EOPNOTSUPP
                                                                    : mpshm__failed("memfd_create");
    if (MPSHM__RETRY(ftruncate(fd, (off_t)size)) < 0)
        err = mpshm__failed("ftruncate");
    else if (fcntl(fd, F_ADD_SEALS, SEALS) < 0)
        err = mpshm__failed("fcntl");
    if (err < 0) {
        close(fd);
        return err;
    }
    return fd;
}

int mpshm__memfd_check(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);

    return seals >= 0 && (seals & SEALS) == SEALS ? 0 : -EBADMSG;
}
