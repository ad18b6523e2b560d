/* Closing all descriptors from a number on. A loop over the numbers takes 10 ms where a process may
 * have 65536 of them. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

#include "platform/platform.h"

#ifndef SYS_close_range
#define SYS_close_range 436 /* since Linux 5.9, the same on all machines */
#endif

void mpshm__close_from(int first)
{
    enum { MOST = 65536 };

    if (syscall(SYS_close_range, (unsigned)first, ~0u, 0) == 0)
        return;
    long end = sysconf(_SC_OPEN_MAX);
    for (long fd = end > 0 && end < MOST ? end : MOST; fd >= first; fd--)
        close((int)fd);
}
