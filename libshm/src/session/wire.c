/* Frames between client and manager: one datagram each, so there is no half of one. */
#define _GNU_SOURCE
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"

union control_room {
    struct cmsghdr align;
    char buf[CMSG_SPACE(4 * sizeof(int))];
};

/* Until the socket is ready, but not beyond that time: a signal does not begin it anew. */
static int wait_for(int sock, short what, uint64_t until)
{
    for (;;) {
        struct pollfd p = {.fd = sock, .events = what};
        uint64_t now = mpshm__now_ns();
        if (until == 0)
            return -EAGAIN;
        if (now >= until)
            return -ETIMEDOUT;
        int n = poll(&p, 1, (int)((until - now) / 1000000 + 1));
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -errno;
    }
}

int mpshm__send_frame(int sock, const struct mpshm__frame *frame, int fd, uint64_t until)
{
    union control_room room = {0};
    struct iovec iov = {.iov_base = (void *)frame, .iov_len = sizeof(*frame)};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    long sent;
    int err;

    if (fd >= 0) {
        msg.msg_control = room.buf;
        msg.msg_controllen = CMSG_SPACE(sizeof(int));
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(cmsg), &fd, sizeof(int));
    }
    do {
        sent = MPSHM__RETRY(sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT));
        if (sent < 0 && errno == EAGAIN && (err = wait_for(sock, POLLOUT, until)) < 0)
            return err;
    } while (sent < 0 && errno == EAGAIN);
    if (sent < 0)
        return errno == EPIPE ? -ECONNRESET : -errno;
    return sent == sizeof(*frame) ? 0 : -EIO;
}

int mpshm__recv_frame(int sock, struct mpshm__frame *frame, int *fd, uint64_t until)
{
    union control_room room;
    struct iovec iov = {.iov_base = frame, .iov_len = sizeof(*frame)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = room.buf,
                         .msg_controllen = sizeof(room.buf)};
    int count = 0, got = -1, err = 0;
    long n;

    while ((n = MPSHM__RETRY(recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT))) < 0) {
        if (errno != EAGAIN)
            return -errno;
        if ((err = wait_for(sock, POLLIN, until)) < 0)
            return err;
    }
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c != NULL; c = CMSG_NXTHDR(&msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t here = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < here; i++) {
            int one;
            memcpy(&one, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (count++ == 0)
                got = one;
            else
                close(one);
        }
    }
    if (n == 0 && count == 0)
        err = -ECONNRESET;
    else if (n != sizeof(*frame) || (msg.msg_flags & MSG_TRUNC) || frame->magic != MPSHM__WIRE ||
             count > 1)
        err = -EBADMSG;
    else if (msg.msg_flags & MSG_CTRUNC)
        err = -EMFILE; /* this process has no descriptor left to receive it in */
    if (err < 0) {
        if (got >= 0)
            close(got);
        return err;
    }
    *fd = got;
    return 0;
}
