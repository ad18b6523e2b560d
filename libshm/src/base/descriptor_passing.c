/* Messages with a descriptor over a Unix socket. No other file builds control messages. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptor_passing.h"
#include "base/failed_call.h"
#include "platform/platform.h"

/* The buffer has space for more than one descriptor, so that a peer that sends several is noticed.
 * The union gives it the alignment that CMSG_FIRSTHDR expects. */
enum { MAX_FDS = 4 };

union control {
    struct cmsghdr align;
    char buf[CMSG_SPACE(MAX_FDS * sizeof(int))];
};

long mpshm__send_message(int sock, const void *data, size_t len, int fd, int flags)
{
    union control control = {0};
    struct iovec iov = {.iov_base = (void *)data, .iov_len = len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fd >= 0) {
        msg.msg_control = control.buf;
        msg.msg_controllen = CMSG_SPACE(sizeof(int));
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(cmsg), &fd, sizeof(int));
    }
    long sent = mpshm__sendmsg(sock, &msg, flags);
    return sent < 0 ? mpshm__failed("sendmsg") : sent;
}

/* Returns the number of descriptors in the message. The first goes to `fd`, the others are closed.
 */
static int collect(struct msghdr *msg, int *fd)
{
    int count = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t here = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < here; i++) {
            int one;
            memcpy(&one, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (count++ == 0)
                *fd = one;
            else
                close(one);
        }
    }
    return count;
}

long mpshm__receive_message(int sock, void *data, size_t len, int *fd, int flags)
{
    union control control;
    struct iovec iov = {.iov_base = data, .iov_len = len};
    struct msghdr msg = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.buf,
        .msg_controllen = sizeof(control.buf),
    };
    long n = mpshm__recvmsg(sock, &msg, flags), err = 0;
    int got = -1, count;

    if (n < 0)
        return mpshm__failed("recvmsg");
    count = collect(&msg, &got);
    if (count > 1 || (msg.msg_flags & MSG_TRUNC))
        err = -EBADMSG;
    else if (msg.msg_flags & MSG_CTRUNC)
        err = -EMFILE; /* the buffer has space for more, so this process has no descriptor left */
    if (err < 0 && got >= 0)
        close(got);
    if (err == 0)
        *fd = got;
    return err < 0 ? err : n;
}
