/* Messages that carry descriptors, and the peer of a socket, on Linux. */
#define _GNU_SOURCE
#include <sys/socket.h>

#include "platform/platform.h"

long mpshm__sendmsg(int sock, const struct msghdr *msg, int flags)
{
    return MPSHM__RETRY(sendmsg(sock, msg, flags | MSG_NOSIGNAL));
}

long mpshm__recvmsg(int sock, struct msghdr *msg, int flags)
{
    return MPSHM__RETRY(recvmsg(sock, msg, flags | MSG_CMSG_CLOEXEC));
}

long mpshm__peer_uid(int sock)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);

    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return -errno;
    return (long)peer.uid;
}
