/* A writer that is stopped after each single instruction of a send: the descriptor is readable
 * while there is a message and not otherwise, and its reader waits for nobody. All of it where a
 * sandbox refuses ioctl. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

#include "channel.h"
#include "steps.h"

enum { FOREVER = -1, SMALL = 300, EARLIER = 6, CHILDS = 7, AFTER = 8 };

/* A child that sends a message, stopped after that many instructions. 0 when it ended before. */
static pid_t stopped_after(long steps, struct line *line, const char *data, uint64_t nbytes)
{
    pid_t pid = fork();

    if (pid == 0) {
        await_steps();
        mpshm_channel_send(line->writer, line->to, data, nbytes, FOREVER, WAITER(NULL));
        _exit(0);
    }
    begin_steps(pid);
    return stepped(pid, steps) ? pid : 0;
}

/* A program that selects, and receives when it is told to: the number, or -EAGAIN. */
static int64_t receive_if_ready(struct line *line)
{
    int ready = readable(line->from);

    CHECK_EQ(mpshm_channel_poll(line->reader, line->from, 0, WAITER(NULL)), ready);
    int64_t number = receive_number(line, 0);
    CHECK_EQ(number != -EAGAIN, ready);
    return number;
}

static void refuse_ioctl(void) /* where there are seccomp filters */
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(rules) / sizeof(rules[0]), .filter = rules};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static long stride(long step)
{
    const char *soak = getenv("MP_SOAK");

    return soak != NULL && strcmp(soak, "1") == 0 ? 1 : step < 300 ? 7 : 31;
}

/* With `earlier`, a message lies in the ring while the writer sends. */
static void writer_stopped(int duplex, int earlier)
{
    char *data = message(CHILDS, SMALL);
    pid_t pid = 1;

    for (long step = 0; pid != 0; step += stride(step)) {
        struct line line = line_open(duplex);
        mpshm_channel_selectable(line.reader, line.from);
        if (earlier)
            CHECK_EQ(send_number(&line, EARLIER, SMALL, FOREVER), 0);
        pid = stopped_after(step, &line, data, SMALL);
        if (earlier)
            CHECK_EQ(receive_if_ready(&line), EARLIER);
        int64_t number = receive_if_ready(&line);
        CHECK(number == CHILDS || number == -EAGAIN);
        if (number == CHILDS)
            CHECK_EQ(receive_if_ready(&line), -EAGAIN);
        if (pid != 0) {
            CHECK_EQ(ptrace(PTRACE_DETACH, pid, NULL, NULL), 0);
            CHECK_EQ(reap(pid), 0);
        }
        if (number != CHILDS)
            CHECK_EQ(receive_if_ready(&line), CHILDS);
        CHECK_EQ(receive_if_ready(&line), -EAGAIN);
        CHECK_EQ(send_number(&line, AFTER, SMALL, FOREVER), 0);
        CHECK_EQ(receive_if_ready(&line), AFTER);
        CHECK_EQ(receive_if_ready(&line), -EAGAIN);
        line_close(&line);
    }
    free(data);
}

int main(void)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    SKIP("a sanitizer multiplies the instructions to step through");
#endif
    if (is_emulated())
        SKIP("valgrind cannot be stepped");
    signal(SIGPIPE, SIG_IGN);
    refuse_ioctl();
    /* The children need not look up functions. */
    struct line line = line_open(0);
    CHECK_EQ(send_number(&line, 1, SMALL, FOREVER), 0);
    CHECK_EQ(receive_number(&line, 0), 1);
    line_close(&line);
    for (int duplex = 0; duplex <= 1; duplex++)
        for (int earlier = 0; earlier <= 1; earlier++)
            writer_stopped(duplex, earlier);
    return 0;
}
