/* The file_system strategy: a POSIX shared memory object with 128 random bits in its name. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "internal.h"

int mpshm__named_create(uint64_t size, char *name)
{
    unsigned char bits[16];
    int fd;
    int err;
    int at = snprintf(name, MPSHM_NAME_SIZE, "/mpshm-");

    if (MPSHM__RETRY(getrandom(bits, sizeof(bits), 0)) != sizeof(bits))
        return -EIO;
    for (size_t i = 0; i < sizeof(bits); i++)
        at += snprintf(name + at, (size_t)(MPSHM_NAME_SIZE - at), "%02x", bits[i]);

    /* With 128 random bits a name that exists is an attack or a broken generator, not bad luck:
     * O_EXCL turns it into an error and there is no retry. */
    fd = (int)MPSHM__RETRY(shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (fd < 0)
        return -errno;
    err = mpshm__reserve(fd, size);
    if (err < 0) {
        shm_unlink(name);
        close(fd);
        return err;
    }
    return fd;
}
