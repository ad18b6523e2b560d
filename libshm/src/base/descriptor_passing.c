/* One descriptor and a few bytes over one Unix socket, whole or not at all. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"

/* Room for more than the one descriptor we want, so that a peer who sends several is noticed. The
 * union gives the buffer the alignment that CMSG_FIRSTHDR expects. */
enum { MPSHM__MAX_FDS = 4 };

union control {
    struct cmsghdr align;
    char buf[CMSG_SPACE(MPSHM__MAX_FDS * sizeof(int))];
};

int mpshm_send_fd(int sock, int fd, const void *data, size_t len)
{
    union control control = {0};
    struct iovec iov = {.iov_base = (void *)data, .iov_len = len};
    struct msghdr msg = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.buf,
        .msg_controllen = CMSG_SPACE(sizeof(int)),
    };
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);

    if (len == 0)
        return -EINVAL; /* a stream socket cannot carry a descriptor without a byte to carry it on
                         */
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(cmsg), &fd, sizeof(int));

    while (iov.iov_len > 0) {
        long sent = mpshm__sendmsg(sock, &msg);
        if (sent < 0)
            return -errno;
        iov.iov_base = (char *)iov.iov_base + sent;
        iov.iov_len -= (size_t)sent;
        /* The descriptor left with the first byte: the rest of a short write goes without it. */
        msg.msg_control = NULL;
        msg.msg_controllen = 0;
    }
    return 0;
}

/* Move the descriptors of one message into `fds`; returns how many it holds now. */
static int collect(struct msghdr *msg, int *fds, int count)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t here = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < here; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (count < MPSHM__MAX_FDS)
                fds[count++] = fd;
            else
                close(fd);
        }
    }
    return count;
}

int mpshm_recv_fd(int sock, void *data, size_t len, int *fd)
{
    int fds[MPSHM__MAX_FDS];
    int count = 0;
    int truncated = 0;
    int err = 0;

    for (size_t got = 0; got < len && err == 0;) {
        union control control;
        struct iovec iov = {.iov_base = (char *)data + got, .iov_len = len - got};
        struct msghdr msg = {
            .msg_iov = &iov,
            .msg_iovlen = 1,
            .msg_control = control.buf,
            .msg_controllen = sizeof(control.buf),
        };
        long n = mpshm__recvmsg(sock, &msg);

        if (n < 0) {
            err = -errno;
        } else if (n == 0) {
            err = -ECONNRESET;
        } else {
            got += (size_t)n;
            truncated |= msg.msg_flags & MSG_CTRUNC;
            count = collect(&msg, fds, count);
        }
    }
    /* We left room for more than one, so control data that did not fit was cut because this process
     * may have no more descriptors. */
    if (err == 0 && truncated)
        err = -EMFILE;
    if (err == 0 && count != 1)
        err = -EBADMSG;
    if (err == 0) {
        *fd = fds[0];
        return 0;
    }
    for (int i = 0; i < count; i++)
        close(fds[i]);
    return err;
}
