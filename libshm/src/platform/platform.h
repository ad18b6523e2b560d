/* The functions of the platform, which linux/ implements. */
#ifndef MPSHM_PLATFORM_H
#define MPSHM_PLATFORM_H

#include <errno.h>

/* A slow system call fails with EINTR when a signal handler returns. A caller of the library could
 * only call again, so the retry happens here. close() is not retried: on Linux the descriptor is
 * closed even when close() fails with EINTR, and a second close could hit a descriptor that another
 * thread has just opened. */
#define MPSHM__RETRY(expr)                                                                         \
    ({                                                                                             \
        long mpshm__rc;                                                                            \
        do                                                                                         \
            mpshm__rc = (long)(expr);                                                              \
        while (mpshm__rc == -1 && errno == EINTR);                                                 \
        mpshm__rc;                                                                                 \
    })

struct msghdr;

/* sendmsg(2) and recvmsg(2) with more `flags`. They retry EINTR, raise no SIGPIPE and receive
 * descriptors close-on-exec. They return -1 and set errno. */
long mpshm__sendmsg(int sock, const struct msghdr *msg, int flags);
long mpshm__recvmsg(int sock, struct msghdr *msg, int flags);

/* The user id of the process at the other end of a connected Unix socket, or -errno. */
long mpshm__peer_uid(int sock);

/* Close all descriptors from `first` on. */
void mpshm__close_from(int first);

/* Call `function` in a thread that can open descriptors although the process has none left: what it
 * opens is closed when it returns. Its result, or -EMFILE. */
int mpshm__call_with_own_descriptors(int (*function)(void *), void *argument);

#endif
