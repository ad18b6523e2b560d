/* A queue among threads: never more than its bound, every message a task, reservations and all. */
#include <pthread.h>

#include "channel.h"

enum { BOUND = 5, EACH = 3000, WRITERS = 3, FOREVER = -1, SECOND = 1000000000 };

static struct line line;
static _Atomic int most;

/* Each other message is sent as by the thread for what the ring has no room for. */
static void *write_all(void *arg)
{
    mpshm_channel *end;
    char *data = message((uint64_t)(intptr_t)arg, 5000);

    CHECK_EQ(mpshm_channel_open_other(line.reader, &end), 0);
    mpshm_channel_begin_reservations(end);
    for (int i = 0; i < EACH; i++) {
        int rc = -EAGAIN;
        if (i % 2 == 0)
            rc = mpshm_channel_put(end, line.to, data, 5000, FOREVER, WAITER(NULL));
        if (rc == 0)
            continue;
        CHECK_EQ(rc, -EAGAIN); /* another thread has the lock */
        while (mpshm_channel_reserve(end, line.to, WAITER(NULL)) < 0)
            CHECK_EQ(mpshm_channel_wait_for_place(end, line.to, FOREVER, WAITER(NULL)), 0);
        int count = (int)mpshm_channel_messages(end, line.to, WAITER(NULL));
        CHECK(count <= BOUND);
        if (count > most)
            most = count;
        CHECK_EQ(mpshm_channel_send_reserved(end, line.to, data, 5000, WAITER(NULL)), 0);
    }
    mpshm_channel_end_reservations(end);
    mpshm_channel_close(end);
    free(data);
    return NULL;
}

static void *join_all(void *arg)
{
    (void)arg;
    CHECK_EQ(mpshm_channel_join(line.writer, line.to, FOREVER, WAITER(NULL)), 0);
    return NULL;
}

static void test_counts(void)
{
    pthread_t writers[WRITERS], joiner;

    line = line_open(0);
    mpshm_channel_set_bound(line.writer, BOUND);
    CHECK_EQ(mpshm_channel_join(line.writer, line.to, 0, WAITER(NULL)), 0);
    for (intptr_t i = 0; i < WRITERS; i++)
        pthread_create(&writers[i], NULL, write_all, (void *)i);
    while (mpshm_channel_messages(line.reader, -1, WAITER(NULL)) < BOUND)
        ;
    CHECK_EQ(mpshm_channel_join(line.writer, line.to, 1000, WAITER(NULL)), -EAGAIN);
    CHECK(mpshm_channel_tasks(line.writer, line.to) >= BOUND); /* one may be sent and reserved */
    pthread_create(&joiner, NULL, join_all, NULL);
    for (int i = 0; i < WRITERS * EACH; i++) {
        CHECK(receive_number(&line, 30LL * SECOND) >= 0);
        CHECK_EQ(mpshm_channel_task_done(i % 2 ? line.reader : line.writer), 0);
    }
    for (int i = 0; i < WRITERS; i++)
        pthread_join(writers[i], NULL);
    pthread_join(joiner, NULL);
    CHECK_EQ(mpshm_channel_task_done(line.writer), -EINVAL);
    CHECK_EQ(mpshm_channel_tasks(line.writer, line.to), 0);
    CHECK_EQ(mpshm_channel_messages(line.writer, line.to, WAITER(NULL)), 0);
    CHECK(most > 1);
    line_close(&line);
}

/* A process of more than MPSHM__RESERVERS counts its own reservations. */
__attribute__((unused)) static void test_more_processes_than_reservations(void)
{
    mpshm_channel *ends[300];

    line = line_open(0);
    mpshm_channel_set_bound(line.writer, 2);
    for (int i = 0; i < 300; i++) {
        CHECK_EQ(mpshm_channel_open_other(line.reader, &ends[i]), 0);
        mpshm_channel_begin_reservations(ends[i]);
    }
    CHECK_EQ(mpshm_channel_reserve(ends[299], line.to, WAITER(NULL)), 0);
    CHECK_EQ(mpshm_channel_messages(ends[299], line.to, WAITER(NULL)), 1);
    CHECK_EQ(mpshm_channel_messages(ends[0], line.to, WAITER(NULL)), 0);
    CHECK_EQ(mpshm_channel_reserve(ends[0], line.to, WAITER(NULL)), 0);
    CHECK_EQ(mpshm_channel_reserve(ends[299], line.to, WAITER(NULL)), -ENOSPC);
    for (int i = 0; i < 300; i++) {
        mpshm_channel_end_reservations(ends[i]);
        mpshm_channel_close(ends[i]);
    }
    CHECK_EQ(mpshm_channel_messages(line.writer, line.to, WAITER(NULL)), 0);
    line_close(&line);
}

static void *hold(void *which)
{
    CHECK_EQ(mpshm_channel_acquire(line.reader, 1, FOREVER, WAITER(NULL)), 0);
    *(int *)which += 1;
    CHECK_EQ(mpshm_channel_release(line.reader, 1), 0);
    return NULL;
}

static void test_locks(void)
{
    pthread_t thread;
    int held = 0;

    line = line_open(0);
    CHECK_EQ(mpshm_channel_release(line.writer, 1), -EPERM);
    CHECK_EQ(mpshm_channel_acquire(line.writer, 1, 0, WAITER(NULL)), 0);
    CHECK_EQ(mpshm_channel_acquire(line.reader, 1, 1000, WAITER(NULL)), -EAGAIN);
    CHECK_EQ(mpshm_channel_acquire(line.reader, 0, 0, WAITER(NULL)), 0);
    pthread_create(&thread, NULL, hold, &held);
    CHECK_EQ(mpshm_channel_release(line.writer, 1), 0);
    pthread_join(thread, NULL);
    CHECK_EQ(held, 1);
    line_close(&line);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    test_counts();
#ifndef __SANITIZE_THREAD__ /* which allows a thread 64 locks */
    test_more_processes_than_reservations();
#endif
    test_locks();
    return 0;
}
