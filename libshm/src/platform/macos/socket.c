/* Messages that carry descriptors, and the peer of a socket, on macOS.
 *
 * No flag receives a descriptor close-on-exec. It is set afterwards, so a child that another thread
 * forks and execs in between inherits the descriptor. */
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mpshm.h"
#include "platform/platform.h"

long mpshm__sendmsg(int sock, const struct msghdr *msg, int flags)
{
    int on = 1;

    if (setsockopt(sock, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof(on)) < 0)
        return -1;
    return MPSHM__RETRY(sendmsg(sock, msg, flags));
}

long mpshm__recvmsg(int sock, struct msghdr *msg, int flags)
{
    long n = MPSHM__RETRY(recvmsg(sock, msg, flags));

    if (n < 0)
        return n;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t here = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < here; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            fcntl(fd, F_SETFD, FD_CLOEXEC);
        }
    }
    return n;
}

long mpshm_peer_uid(int sock)
{
    uid_t uid;
    gid_t gid;

    return getpeereid(sock, &uid, &gid) < 0 ? -errno : (long)uid;
}
