/* Messages that carry descriptors, and who is at the other end, on Linux. */
#define _GNU_SOURCE
#include <sys/socket.h>

#include "internal.h"

long mpshm__sendmsg(int sock, const struct msghdr *msg)
{
    return MPSHM__RETRY(sendmsg(sock, msg, MSG_NOSIGNAL));
}

long mpshm__recvmsg(int sock, struct msghdr *msg)
{
    return MPSHM__RETRY(recvmsg(sock, msg, MSG_CMSG_CLOEXEC));
}

long mpshm_peer_uid(int sock)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);

    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return -errno;
    return (long)peer.uid;
}
