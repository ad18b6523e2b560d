/* Facts about processes and descriptors, read from /proc. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "platform/linux/process.h"
#include "platform/platform.h"

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
    /* The line is "pid (name) state ppid …". The name may contain any character, so the fields are
     * counted from the last parenthesis. The start time is field 22, the 20th after the name. */
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
    return strtoull(at, NULL, 10) + 1; /* + 1, so that it is never 0 for a living process */
}

int mpshm__reopen(int fd)
{
    char path[32];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int again = (int)MPSHM__RETRY(open(path, O_RDWR | O_CLOEXEC));
    return again < 0 ? -errno : again;
}
