/* One wait for many channels and descriptors: what it finds, and that it misses nothing. */
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>

#include "channel.h"
#include "steps.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum { FOREVER = -1, LINES = 4, SECOND = 1000000000 };

static struct line lines[LINES];
static mpshm_awaited_channel awaited[LINES];

static void open_lines(void)
{
    for (int i = 0; i < LINES; i++) {
        lines[i] = line_open(1);
        awaited[i] = (mpshm_awaited_channel){.end = lines[i].reader, .fd = lines[i].from};
    }
}

static void close_lines(void)
{
    for (int i = 0; i < LINES; i++)
        line_close(&lines[i]);
}

static int wait_for(const int *fds, int m, unsigned char *readable, int64_t timeout)
{
    return mpshm_channel_wait_any(awaited, LINES, fds, m, readable, timeout, WAITER(NULL));
}

/* The number of a message that is there, or -errno. */
static int64_t next(int i)
{
    struct received received = {0};
    int rc = mpshm_channel_next(lines[i].reader, lines[i].from, WAITER(&received));
    int64_t number = rc == 1 ? (int64_t)message_number(&received) : rc;

    free(received.data);
    return number;
}

static void a_wait_finds_the_channels_with_a_message(void)
{
    open_lines();
    CHECK_EQ(wait_for(NULL, 0, NULL, 0), 0);
    CHECK_EQ(next(0), -EAGAIN);
    CHECK_EQ(send_number(&lines[1], 11, 100, FOREVER), 0);
    CHECK_EQ(send_number(&lines[3], 13, 100, FOREVER), 0);
    CHECK_EQ(wait_for(NULL, 0, NULL, FOREVER), 2);
    for (int i = 0; i < LINES; i++)
        CHECK_EQ(awaited[i].ready, i % 2 ? MPSHM_HAS_MESSAGE : 0);
    CHECK_EQ(next(1), 11);
    CHECK_EQ(next(1), -EAGAIN);
    CHECK_EQ(wait_for(NULL, 0, NULL, FOREVER), 1);
    CHECK_EQ(next(3), 13);
    CHECK_EQ(wait_for(NULL, 0, NULL, 1000), 0);
    close_lines();
}

static void the_last_messages_come_before_the_end(void)
{
    open_lines();
    CHECK_EQ(send_number(&lines[2], 7, 100, FOREVER), 0);
    line_close_writer(&lines[2]);
    CHECK_EQ(wait_for(NULL, 0, NULL, FOREVER), 1);
    CHECK_EQ(awaited[2].ready, MPSHM_HAS_MESSAGE);
    CHECK_EQ(next(2), 7);
    CHECK_EQ(wait_for(NULL, 0, NULL, FOREVER), 1);
    CHECK_EQ(awaited[2].ready, MPSHM_HUNG_UP);
    close_lines();
}

static void a_descriptor_ends_a_wait(void)
{
    int fds[2], many[2];
    unsigned char readable[2];

    open_lines();
    CHECK_EQ(pipe(fds), 0);
    many[0] = lines[0].to; /* never readable */
    many[1] = fds[0];
    CHECK_EQ(write(fds[1], "", 1), 1);
    CHECK_EQ(wait_for(many, 2, readable, FOREVER), 1);
    CHECK(!readable[0] && readable[1]);
    close(fds[0]);
    close(fds[1]);
    close_lines();
}

/* ---- no message is missed ---- */

enum { MESSAGES = 20000 };

static void *send_many(void *of)
{
    struct line *line = of;
    unsigned chance = (unsigned)(uintptr_t)of;

    for (uint64_t i = 0; i < MESSAGES; i++) {
        CHECK_EQ(send_number(line, i, 16, FOREVER), 0);
        /* Also long enough for the reader to fall asleep. */
        if (rand_r(&chance) % 64 == 0) {
            struct timespec pause = {.tv_nsec = rand_r(&chance) % 200000};
            nanosleep(&pause, NULL);
        }
    }
    return NULL;
}

static void each_message_of_many_writers_ends_a_wait(void)
{
    pthread_t writers[LINES];
    int64_t expected[LINES] = {0};
    int left = LINES * MESSAGES;

    open_lines();
    for (int i = 0; i < LINES; i++)
        CHECK_EQ(pthread_create(&writers[i], NULL, send_many, &lines[i]), 0);
    while (left > 0) {
        CHECK(wait_for(NULL, 0, NULL, 60LL * SECOND) > 0);
        for (int i = 0; i < LINES; i++) {
            int64_t number;
            if (awaited[i].ready == 0)
                continue;
            while ((number = next(i)) >= 0) {
                CHECK_EQ(number, expected[i]++);
                left--;
            }
            CHECK_EQ(number, -EAGAIN);
        }
    }
    for (int i = 0; i < LINES; i++)
        CHECK_EQ(pthread_join(writers[i], NULL), 0);
    close_lines();
}

/* ---- a writer that is stopped or killed after each instruction ---- */

static pid_t stopped_after(long steps, struct line *line, const char *data)
{
    pid_t pid = fork();

    if (pid == 0) {
        await_steps();
        mpshm_channel_send(line->writer, line->to, data, 300, FOREVER, WAITER(NULL));
        _exit(0);
    }
    begin_steps(pid);
    return stepped(pid, steps) ? pid : 0;
}

static void a_stopped_writer_delays_no_other(int is_killed)
{
    char *data = message(5, 300);

    for (long step = 0;; step += step < 1500 ? 7 : 50) {
        int status;
        open_lines();
        wait_for(NULL, 0, NULL, 0); /* arms */
        pid_t pid = stopped_after(step, &lines[0], data);
        CHECK_EQ(send_number(&lines[1], 6, 100, FOREVER), 0);
        CHECK(wait_for(NULL, 0, NULL, 10LL * SECOND) > 0);
        CHECK_EQ(next(1), 6);
        int64_t number = next(0);
        CHECK(number == 5 || number == -EAGAIN);
        if (pid != 0) {
            if (is_killed)
                kill(pid, SIGKILL);
            else
                CHECK_EQ(ptrace(PTRACE_DETACH, pid, NULL, NULL), 0);
            CHECK_EQ(waitpid(pid, &status, 0), pid);
        }
        if (number != 5 && (!is_killed || pid == 0)) {
            CHECK(wait_for(NULL, 0, NULL, 10LL * SECOND) > 0);
            CHECK_EQ(next(0), 5);
        }
        /* The next writer, after the death of the last one, is heard. */
        CHECK_EQ(send_number(&lines[0], 8, 100, FOREVER), 0);
        CHECK(wait_for(NULL, 0, NULL, 10LL * SECOND) > 0);
        number = next(0);
        CHECK_EQ(number == 5 ? next(0) : number, 8);
        close_lines();
        if (pid == 0)
            break;
    }
    free(data);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    a_wait_finds_the_channels_with_a_message();
    the_last_messages_come_before_the_end();
    a_descriptor_ends_a_wait();
    each_message_of_many_writers_ends_a_wait();
    if (!SANITIZED && !is_emulated()) { /* a sanitizer multiplies the instructions */
        a_stopped_writer_delays_no_other(0);
        a_stopped_writer_delays_no_other(1);
    }
    return 0;
}
