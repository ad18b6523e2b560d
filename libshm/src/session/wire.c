/* Frames between client and manager. Each is one datagram, so a frame is never received in part. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor_passing.h"
#include "base/failed_call.h"
#include "session/wire.h"

/* Wait until the socket is ready, at most until that time however many signals arrive. */
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
            return mpshm__failed("poll");
    }
}

int mpshm__send_frame(int sock, const struct mpshm__frame *frame, int fd, uint64_t until)
{
    long sent;
    int err;

    while ((sent = mpshm__send_message(sock, frame, sizeof(*frame), fd, MSG_DONTWAIT)) == -EAGAIN)
        if ((err = wait_for(sock, POLLOUT, until)) < 0)
            return err;
    if (sent < 0)
        return sent == -EPIPE ? -ECONNRESET : (int)sent;
    return sent == sizeof(*frame) ? 0 : -EIO;
}

int mpshm__recv_frame(int sock, struct mpshm__frame *frame, int *fd, uint64_t until)
{
    int got = -1, err;
    long n;

    while ((n = mpshm__receive_message(sock, frame, sizeof(*frame), &got, MSG_DONTWAIT)) == -EAGAIN)
        if ((err = wait_for(sock, POLLIN, until)) < 0)
            return err;
    if (n < 0)
        return (int)n;
    if (n == sizeof(*frame) && frame->magic == MPSHM__WIRE) {
        *fd = got;
        return 0;
    }
    err = n == 0 && got < 0 ? -ECONNRESET : -EBADMSG;
    if (got >= 0)
        close(got);
    return err;
}

/* recv(2) would not do: it gives ECONNRESET when the peer left frames unread, and returns what it
 * sent before. */
int mpshm__has_hung_up(int sock)
{
    struct pollfd p = {.fd = sock};

    return poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)) != 0;
}
