/* What time it is, and which process a pid is. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

uint64_t mpshm__now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t mpshm__start_time(int pid)
{
    char path[32], stat[1024];
    long n;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    fd = (int)MPSHM__RETRY(open(path, O_RDONLY | O_CLOEXEC));
    if (fd < 0)
        return errno == ENOENT || errno == ESRCH ? 0 : MPSHM__UNKNOWN;
    n = MPSHM__RETRY(read(fd, stat, sizeof(stat) - 1));
    close(fd);
    if (n <= 0)
        return n < 0 && errno == ESRCH ? 0 : MPSHM__UNKNOWN;
    stat[n] = 0;
    /* "pid (name) state ppid …": the name may hold anything, so count from the last parenthesis.
     * The start time is the 22nd field, that is the 20th behind the name. */
    char *at = strrchr(stat, ')');
    if (at == NULL || at[1] != ' ')
        return MPSHM__UNKNOWN;
    at += 2;
    if (*at == 'Z' || *at == 'X')
        return 0;
    for (int field = 3; field < 22; field++) {
        at = strchr(at, ' ');
        if (at == NULL)
            return MPSHM__UNKNOWN;
        at++;
    }
    return strtoull(at, NULL, 10) + 1; /* never 0 for a process that lives */
}

uint64_t mpshm__memory_bytes(void)
{
    static _Atomic uint64_t known; /* asked once: every allocation looks at it */
    uint64_t bytes = atomic_load_explicit(&known, memory_order_relaxed);
    struct sysinfo info;

    if (bytes == 0) {
        bytes = sysinfo(&info) == 0 ? (uint64_t)info.totalram * info.mem_unit : (uint64_t)1 << 30;
        atomic_store_explicit(&known, bytes, memory_order_relaxed);
    }
    return bytes;
}
