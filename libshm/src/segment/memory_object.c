/* The memory object of a segment: created, checked and opened by strategy. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/failed_call.h"
#include "platform/linux/memory_size.h"
#include "platform/platform.h"
#include "segment/memory_object.h"

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
    return fd < 0 ? mpshm__failed("open") : fd;
}

void mpshm__object_unlink(const uint64_t nonce[2])
{
    char name[MPSHM_NAME_SIZE];

    name_of(nonce, name);
    shm_unlink(name); /* it may have gone already */
}

void mpshm__object_unlink_unfinished(struct mpshm__control *control, struct mpshm__slot *maker)
{
    uint64_t nonce[2] = {atomic_load(&maker->making[0]), atomic_load(&maker->making[1])};

    if (nonce[0] == 0)
        return;
    for (int i = 0; i < MPSHM__SEGMENTS; i++)
        if (atomic_load(&control->segments[i].nonce[0]) == nonce[0])
            return; /* it was registered after all, and belongs to its entry */
    mpshm__object_unlink(nonce);
}

int mpshm__object_from_owner(const struct mpshm__segment_entry *entry)
{
    int pid = atomic_load(&entry->owner_pid), number = atomic_load(&entry->owner_fd), fd;
    struct stat st;
    char path[64];

    /* The caller checks the file against the entry before it uses it. */
    if (atomic_load(&entry->strategy) != MPSHM_FILE_DESCRIPTOR || pid <= 0 || number < 0)
        return -ENOENT;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, number);
    if (stat(path, &st) < 0)
        return mpshm__failed("stat");
    if (!S_ISREG(st.st_mode))
        return -ENOENT;
    do
        fd = (int)MPSHM__RETRY(open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    while (fd < 0 && mpshm__fd_use_reserve(-errno));
    return fd < 0 ? mpshm__failed("open") : fd;
}

int mpshm__object_check(int strategy, int fd, uint32_t user)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return mpshm__failed("fstat");
    if (!S_ISREG(st.st_mode))
        return -EBADMSG;
    if (strategy == MPSHM_FILE_DESCRIPTOR)
        return mpshm__memfd_check(fd);
    /* A named object can be truncated only by its owner, and only processes of the session get
     * here. */
    return st.st_uid == geteuid() || st.st_uid == user ? 0 : -EBADMSG;
}

/* Under vm.overcommit_memory = 2 the kernel accounts a page of a memfd when it is first touched,
 * and refuses with a SIGBUS. Only then must a memfd be reserved. */
int mpshm__object_must_reserve(int strategy)
{
    return strategy == MPSHM_FILE_SYSTEM || mpshm__strict_overcommit();
}
