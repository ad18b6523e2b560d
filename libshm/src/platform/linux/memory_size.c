/* The memory of this machine, from sysinfo(2) and /proc. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "platform/linux/memory_size.h"
#include "platform/platform.h"

uint64_t mpshm__memory_bytes(void)
{
    static _Atomic uint64_t known; /* cached, because every allocation reads it */
    uint64_t bytes = atomic_load_explicit(&known, memory_order_relaxed);
    struct sysinfo info;

    if (bytes == 0) {
        bytes = sysinfo(&info) == 0 ? (uint64_t)info.totalram * info.mem_unit : (uint64_t)1 << 30;
        atomic_store_explicit(&known, bytes, memory_order_relaxed);
    }
    return bytes;
}

uint64_t mpshm__memory_available(void)
{
    char name[64];
    unsigned long long kb, available = 0;
    FILE *file = fopen("/proc/meminfo", "re");

    while (file != NULL && fscanf(file, "%63s %llu kB", name, &kb) == 2)
        if (strcmp(name, "MemAvailable:") == 0)
            available = kb * 1024;
    if (file != NULL)
        fclose(file);
    return available;
}

int mpshm__strict_overcommit(void)
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
