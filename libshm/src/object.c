/* The memory object of an arena: which strategy makes it, checks it, and meets it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

static void name_of(const uint64_t nonce[2], char *name)
{
    snprintf(name, MPSHM_NAME_SIZE, "/mpshm-%016llx%016llx", (unsigned long long)nonce[0],
             (unsigned long long)nonce[1]);
}

int mpshm__object_create(int strategy, const uint64_t nonce[2], uint64_t size)
{
    char name[MPSHM_NAME_SIZE];

    switch (strategy) {
    case MPSHM_FILE_DESCRIPTOR:
        return mpshm__memfd_create(size);
    case MPSHM_FILE_SYSTEM:
        name_of(nonce, name);
        return mpshm__named_create(name, size);
    default:
        return -EINVAL;
    }
}

int mpshm__object_open_name(const uint64_t nonce[2])
{
    char name[MPSHM_NAME_SIZE];

    name_of(nonce, name);
    int fd = (int)MPSHM__RETRY(shm_open(name, O_RDWR | O_CLOEXEC, 0));
    return fd < 0 ? -errno : fd;
}

void mpshm__object_unlink(const uint64_t nonce[2])
{
    char name[MPSHM_NAME_SIZE];

    name_of(nonce, name);
    shm_unlink(name); /* one that has already gone is what we wanted */
}

void mpshm__object_unlink_unfinished(struct mpshm__control *control, struct mpshm__slot *maker)
{
    uint64_t nonce[2] = {atomic_load(&maker->making[0]), atomic_load(&maker->making[1])};

    if (nonce[0] == 0)
        return;
    for (int i = 0; i < MPSHM__ARENAS; i++)
        if (atomic_load(&control->arenas[i].nonce[0]) == nonce[0])
            return; /* registered after all, and looked after there */
    mpshm__object_unlink(nonce);
}

int mpshm__object_check(int strategy, int fd)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EBADMSG;
    /* Under file_system only its owner can cut it, and only a process of the same user gets here.
     */
    return strategy == MPSHM_FILE_DESCRIPTOR ? mpshm__memfd_check(fd)
                                             : (st.st_uid == geteuid() ? 0 : -EBADMSG);
}

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

int mpshm__object_must_reserve(int strategy)
{
    return strategy == MPSHM_FILE_SYSTEM || strict_overcommit();
}
