/* Messages with a descriptor: it arrives, is missing, is one too many, or finds no place. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/descriptor_passing.h"
#include "check.h"
#include "platform/platform.h"

static int left, right;

static void connect_pair(void)
{
    int sv[2];

    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) == 0);
    left = sv[0];
    right = sv[1];
}

static void a_descriptor_arrives_close_on_exec(void)
{
    int p[2], got = -1;
    char data[5], byte;

    connect_pair();
    CHECK(pipe(p) == 0);
    CHECK_EQ(mpshm__send_message(left, "hello", 5, p[1], 0), 5);
    CHECK_EQ(mpshm__receive_message(right, data, 5, &got, 0), 5);
    CHECK(memcmp(data, "hello", 5) == 0);
    CHECK(fcntl(got, F_GETFD) & FD_CLOEXEC);
    CHECK_EQ(write(got, "x", 1), 1);
    CHECK_EQ(read(p[0], &byte, 1), 1);
    close(got), close(p[0]), close(p[1]), close(left), close(right);
}

static void a_peer_that_leaves_is_the_end_or_an_error(void)
{
    int got = -1;
    char data[8];

    connect_pair();
    close(left);
    CHECK_EQ(mpshm__receive_message(right, data, 8, &got, 0), 0);
    CHECK_EQ(got, -1);
    close(right);

    connect_pair();
    close(right);
    CHECK_EQ(mpshm__send_message(left, "abc", 3, 0, 0), -EPIPE);
    close(left);
}

static void bytes_without_a_descriptor_arrive_alone(void)
{
    int got = 5;
    char data[3];

    connect_pair();
    CHECK_EQ(write(left, "abc", 3), 3);
    CHECK_EQ(mpshm__receive_message(right, data, 3, &got, 0), 3);
    CHECK_EQ(got, -1);
    close(left), close(right);
}

static void surplus_descriptors_are_closed(void)
{
    int fds[2] = {0, 1}, got = -1, before;
    char data[1];
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(fds))];
    } control;
    struct iovec iov = {.iov_base = (void *)"x", .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.buf,
                         .msg_controllen = sizeof(control.buf)};

    connect_pair();
    memset(&control, 0, sizeof(control));
    CMSG_FIRSTHDR(&msg)->cmsg_level = SOL_SOCKET;
    CMSG_FIRSTHDR(&msg)->cmsg_type = SCM_RIGHTS;
    CMSG_FIRSTHDR(&msg)->cmsg_len = CMSG_LEN(sizeof(fds));
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&msg)), fds, sizeof(fds));
    before = open_descriptors();
    CHECK_EQ(sendmsg(left, &msg, 0), 1);
    CHECK_EQ(mpshm__receive_message(right, data, 1, &got, 0), -EBADMSG);
    CHECK_EQ(open_descriptors(), before);
    close(left), close(right);
}

static void a_full_descriptor_table_is_emfile(void)
{
    struct rlimit was, now;
    int got = -1;
    char data[1];

    connect_pair();
    CHECK_EQ(mpshm__send_message(left, "x", 1, 0, 0), 1);
    CHECK(getrlimit(RLIMIT_NOFILE, &was) == 0);
    now = was;
    now.rlim_cur = (rlim_t)dup(0); /* the lowest free number, which is now above the limit */
    close((int)now.rlim_cur);
    CHECK(setrlimit(RLIMIT_NOFILE, &now) == 0);
    CHECK_EQ(mpshm__receive_message(right, data, 1, &got, 0), -EMFILE);
    CHECK(setrlimit(RLIMIT_NOFILE, &was) == 0);
    close(left), close(right);
}

static void the_peer_has_a_user(void)
{
    connect_pair();
    CHECK_EQ(mpshm__peer_uid(left), getuid());
    CHECK_EQ(mpshm__peer_uid(0x7fff), -EBADF);
    close(left), close(right);
}

int main(void)
{
    a_descriptor_arrives_close_on_exec();
    a_peer_that_leaves_is_the_end_or_an_error();
    bytes_without_a_descriptor_arrive_alone();
    surplus_descriptors_are_closed();
    if (!is_emulated())
        a_full_descriptor_table_is_emfile();
    the_peer_has_a_user();
    return 0;
}
