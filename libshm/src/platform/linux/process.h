/* Facts that Linux tells in /proc. */
#ifndef MPSHM_LINUX_PROCESS_H
#define MPSHM_LINUX_PROCESS_H

#include <stdint.h>

/* The time at which process `pid` started, in the kernel's ticks since boot; 0 when there is no
 * such process or it is a zombie; MPSHM__UNKNOWN when the kernel does not tell. A pid and a start
 * time together identify a process for ever. */
#define MPSHM__UNKNOWN UINT64_MAX
uint64_t mpshm__start_time(int pid);

/* Open the file behind descriptor `fd` again. The new descriptor has an open file description of
 * its own, so its locks are its own. Returns it, or -errno. */
int mpshm__reopen(int fd);

#endif
