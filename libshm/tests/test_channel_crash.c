/* A process that is killed after each single instruction of a send or a receive: the others get
 * whole messages, each at most once, and go on. */
#define _GNU_SOURCE
#include <sys/user.h>
#include <time.h>

#include "channel.h"
#include "steps.h"
#include "channel/channel.h"

enum { FOREVER = -1, SECOND = 1000000000 };

/* Run `act` in a child up to its `steps`-th instruction after the stop, then kill it. Returns 1
 * when it was killed, 0 when it had ended before. */
static int killed_after(long steps, void (*act)(struct line *), struct line *line)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        await_steps();
        act(line);
        _exit(0);
    }
    begin_steps(pid);
    if (!stepped(pid, steps))
        return 0;
    kill(pid, SIGKILL);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return 1;
}

/* Messages that the child sends are made before it is stepped. */
static char *small, *large;
enum { SMALL = 300, LARGE_BYTES = 65600, CHILDS = 7, AFTER = 8 };

static void act_send_small(struct line *line)
{
    mpshm_channel_send(line->writer, line->to, small, SMALL, FOREVER, WAITER(NULL));
}

static void act_send_large(struct line *line)
{
    mpshm_channel_send(line->writer, line->to, large, LARGE_BYTES, FOREVER, WAITER(NULL));
}

static char arrived[LARGE_BYTES + 1];

static void *static_allocate(void *self, uint64_t nbytes)
{
    (void)self, (void)nbytes;
    return arrived;
}

static void act_receive(struct line *line)
{
    mpshm_waiter waiter = {
        NULL, static_allocate, received_begin, received_end, NULL, NULL, 0, NULL, NULL, NULL};

    mpshm_channel_receive(line->reader, line->from, FOREVER, &waiter);
}

/* Each of the first instructions with MP_SOAK=1, otherwise every 11th; and later fewer: a large
 * copy has one for each byte. */
static long stride(long step, long dense)
{
    const char *soak = getenv("MP_SOAK");
    int all = soak != NULL && strcmp(soak, "1") == 0;

    return step < dense ? (all ? 1 : 11) : step < 2000 ? 37 : step / (all ? 6 : 2);
}

/* A writer is killed: its message is there whole or not at all, and the next one arrives. A reader
 * that selects is woken for each. */
static void writer_killed(void (*act)(struct line *), int selected, int duplex, long dense)
{
    for (long step = 0;; step += stride(step, dense)) {
        struct line line = line_open(duplex);
        if (selected)
            mpshm_channel_selectable(line.reader, line.from);
        int killed = killed_after(step, act, &line);
        int there = mpshm_channel_poll(line.reader, line.from, 0, WAITER(NULL));
        int64_t number = receive_number(&line, 0);
        CHECK_EQ(there, number == CHILDS);
        CHECK(number == CHILDS || number == -EAGAIN);
        if (!killed)
            CHECK_EQ(number, CHILDS);
        CHECK_EQ(send_number(&line, AFTER, 100, FOREVER), 0);
        if (selected)
            CHECK(readable(line.from));
        int64_t next = receive_number(&line, SECOND);
        if (next == CHILDS && number != CHILDS) /* the next writer has published it */
            next = receive_number(&line, SECOND);
        CHECK_EQ(next, AFTER);
        CHECK_EQ(receive_number(&line, 0), -EAGAIN);
        if (selected)
            CHECK(!readable(line.from));
        CHECK_EQ(send_number(&line, AFTER + 1, LARGE_BYTES, FOREVER), 0);
        CHECK_EQ(receive_number(&line, SECOND), AFTER + 1);
        line_close(&line);
        if (!killed) {
            if (getenv("V"))
                fprintf(stderr, "%s: %ld instructions\n", __func__, step);
            return;
        }
    }
}

/* A sleeping reader gets each published message of a writer that is killed, or the end of the file
 * when there is none. */
static void writer_killed_before_a_sleeper(long dense)
{
    for (long step = 0;; step += 5 * stride(step, dense)) {
        struct line line = line_open(0);
        int status;
        pid_t reader = fork();
        if (reader == 0) {
            line_close_writer(&line);
            int64_t number = receive_number(&line, 10LL * SECOND);
            exit(number == CHILDS || number == -1 ? 0 : 1);
        }
        int killed = killed_after(step, act_send_small, &line);
        line_close_writer(&line);
        CHECK_EQ(waitpid(reader, &status, 0), reader);
        CHECK_EQ(status, 0);
        line_close(&line);
        if (!killed) {
            if (getenv("V"))
                fprintf(stderr, "%s: %ld instructions\n", __func__, step);
            return;
        }
    }
}

/* A reader is killed: the message is there or was taken, and the next ones arrive in order. */
static void reader_killed(uint64_t nbytes, int selected, long dense)
{
    for (long step = 0;; step += stride(step, dense)) {
        struct line line = line_open(0);
        if (selected)
            mpshm_channel_selectable(line.reader, line.from);
        CHECK_EQ(send_number(&line, CHILDS, nbytes, FOREVER), 0);
        int killed = killed_after(step, act_receive, &line);
        CHECK_EQ(send_number(&line, AFTER, 100, FOREVER), 0);
        if (selected)
            CHECK(readable(line.from));
        int64_t number = receive_number(&line, SECOND);
        if (number == CHILDS)
            number = receive_number(&line, SECOND);
        CHECK_EQ(number, AFTER);
        CHECK_EQ(receive_number(&line, 0), -EAGAIN);
        if (selected)
            CHECK(!readable(line.from));
        line_close(&line);
        if (!killed) {
            if (getenv("V"))
                fprintf(stderr, "%s: %ld instructions\n", __func__, step);
            return;
        }
    }
}

/* ---- queues ---- */

enum { BOUND = 3 };

static void act_put(struct line *line)
{
    mpshm_channel_put(line->writer, line->to, small, SMALL, FOREVER, WAITER(NULL));
}

/* As the thread that sends what the ring has no room for. */
static void act_put_reserved(struct line *line)
{
    mpshm_channel_begin_reservations(line->writer);
    mpshm_channel_reserve(line->writer, line->to, WAITER(NULL));
    mpshm_channel_reserve(line->writer, line->to, WAITER(NULL));
    mpshm_channel_send_reserved(line->writer, line->to, large, LARGE_BYTES, WAITER(NULL));
    mpshm_channel_unreserve(line->writer);
    mpshm_channel_end_reservations(line->writer);
}

static void act_task_done(struct line *line)
{
    mpshm_channel_task_done(line->writer);
}

static int put_number(struct line *line, uint64_t number, int64_t timeout)
{
    char *data = message(number, 100);
    int rc = mpshm_channel_put(line->writer, line->to, data, 100, timeout, WAITER(NULL));

    free(data);
    return rc;
}

/* Whoever is killed, the queue counts what can be received, has all its other places, and has each
 * of the messages and no other as a task. */
static void user_of_a_queue_killed(void (*act)(struct line *), int before, long dense)
{
    for (long step = 0;; step += stride(step, dense)) {
        struct line line = line_open(0);
        int64_t count = 0, tasks = before;
        mpshm_channel_set_bound(line.writer, BOUND);
        for (int i = 0; i < before; i++)
            CHECK_EQ(put_number(&line, AFTER, 0), 0);
        int killed = killed_after(step, act, &line);
        /* Who puts first finds out what the dead one has left. */
        if (step % 2 == 0)
            count = mpshm_channel_messages(line.writer, line.to, WAITER(NULL));
        int put = 0;
        while (put_number(&line, AFTER, 0) == 0)
            put++;
        if (step % 2 == 0)
            CHECK_EQ(count + put, BOUND);
        CHECK_EQ(mpshm_channel_messages(line.writer, line.to, WAITER(NULL)), BOUND);
        for (count = 0; count < BOUND; count++) {
            int64_t number = receive_number(&line, 0);
            CHECK(number == AFTER || number == CHILDS);
            tasks += number == CHILDS;
        }
        CHECK_EQ(receive_number(&line, 0), -EAGAIN);
        CHECK_EQ(mpshm_channel_messages(line.writer, line.to, WAITER(NULL)), 0);
        tasks += put;
        for (count = 0; mpshm_channel_task_done(line.writer) == 0; count++)
            ;
        CHECK(count == tasks || (act == act_task_done && count == tasks - 1));
        CHECK_EQ(mpshm_channel_join(line.writer, line.to, 0, WAITER(NULL)), 0);
        line_close(&line);
        if (!killed) {
            if (getenv("V"))
                fprintf(stderr, "%s: %ld instructions\n", __func__, step);
            return;
        }
    }
}

static void a_message_that_its_dead_writer_has_sent_whole_counts(void)
{
    struct line line = line_open(0);
    int status;

    mpshm_channel_set_bound(line.writer, BOUND);
    pid_t pid = fork();
    if (pid == 0) {
        struct mpshm__ring *ring = line.writer->out.ring;
        mpshm_channel_begin_reservations(line.writer);
        mpshm_channel_reserve(line.writer, line.to, WAITER(NULL));
        mpshm_channel_send_reserved(line.writer, line.to, large, LARGE_BYTES, WAITER(NULL));
        mpshm_channel_end_reservations(line.writer);
        pthread_mutex_lock(&ring->write_lock);
        ring->large = 1; /* as it is until the send has woken the reader */
        raise(SIGKILL);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(put_number(&line, AFTER, 0), 0);
    CHECK_EQ(mpshm_channel_messages(line.writer, line.to, WAITER(NULL)), 2);
    CHECK_EQ(receive_number(&line, 0), CHILDS);
    CHECK_EQ(receive_number(&line, 0), AFTER);
    CHECK_EQ(mpshm_channel_messages(line.writer, line.to, WAITER(NULL)), 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(mpshm_channel_task_done(line.writer), 0);
    CHECK_EQ(mpshm_channel_join(line.writer, line.to, 0, WAITER(NULL)), 0);
    line_close(&line);
}

int main(void)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    SKIP("a sanitizer multiplies the instructions to step through");
#endif
    if (is_emulated())
        SKIP("valgrind cannot be stepped");
    signal(SIGPIPE, SIG_IGN);
    small = message(CHILDS, SMALL);
    large = message(CHILDS, LARGE_BYTES);
    /* The children need not look up functions. */
    for (int duplex = 0; duplex <= 1; duplex++) {
        struct line line = line_open(duplex);
        act_send_large(&line);
        act_receive(&line);
        mpshm_channel_set_bound(line.writer, BOUND);
        act_put(&line);
        act_receive(&line);
        act_put_reserved(&line);
        act_task_done(&line);
        line_close(&line);
    }
    writer_killed(act_send_small, 1, 0, 1000000);
    writer_killed(act_send_small, 0, 0, 0);
    writer_killed(act_send_small, 1, 1, 0);
    writer_killed(act_send_large, 1, 0, 200);
    writer_killed_before_a_sleeper(1000000);
    reader_killed(SMALL, 1, 1000000);
    reader_killed(SMALL, 0, 0);
    reader_killed(LARGE_BYTES, 1, 200);
    a_message_that_its_dead_writer_has_sent_whole_counts();
    user_of_a_queue_killed(act_put, 0, 1000000);
    user_of_a_queue_killed(act_put, 2, 0);
    user_of_a_queue_killed(act_put_reserved, 0, 5000);
    user_of_a_queue_killed(act_receive, 2, 1000000);
    user_of_a_queue_killed(act_task_done, 1, 1000000);
    return 0;
}
