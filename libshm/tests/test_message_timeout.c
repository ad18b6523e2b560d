/* Messages that expire: what is freed and what is not, and who dies meanwhile. */
#define _GNU_SOURCE
#include <pthread.h>

#include "base/clock.h"
#include "memory.h"
#include "reference/handle.h"
#include "session/session.h"

enum { NBYTES = 70000, HALF_A_SECOND = 500000000 };

static mpshm_stats stats(void)
{
    mpshm_stats s;

    mpshm_get_stats(&s);
    return s;
}

static void wait_until_late(const unsigned char *bytes)
{
    struct mpshm__handle handle;

    CHECK_EQ(mpshm__handle_parse(bytes, MPSHM_HANDLE_SIZE, &handle), 0);
    EVENTUALLY(mpshm__tick() >= handle.deadline);
}

static int received(const unsigned char *handle)
{
    mpshm_block got;
    int err = mpshm_block_receive(handle, MPSHM_HANDLE_SIZE, 0, &got);

    if (err == 0)
        mpshm_block_release(&got);
    return err;
}

static void send_and_drop(int strategy, int flags, unsigned char *handle)
{
    mpshm_block b = make_block(strategy, NBYTES);

    CHECK_EQ(mpshm_block_send(&b, flags, handle), 0);
    mpshm_block_release(&b);
}

static void an_unread_message_gives_its_memory_back(int strategy)
{
    unsigned char late[MPSHM_HANDLE_SIZE], lasting[MPSHM_HANDLE_SIZE], before[MPSHM_HANDLE_SIZE];

    send_and_drop(strategy, 0, before);
    mpshm_set_message_timeout(HALF_A_SECOND);
    send_and_drop(strategy, MPSHM_COPY, late);
    send_and_drop(strategy, MPSHM_LASTING, lasting);
    CHECK_EQ(stats().in_flight_bytes, 3 * NBYTES);
    EVENTUALLY(stats().in_flight_bytes == 2 * NBYTES);
    CHECK_EQ(received(late), -ETIME);
    char data[NBYTES];
    CHECK_EQ(mpshm_block_read(late, sizeof(late), data, NBYTES), -ETIME);
    CHECK_EQ(mpshm_block_discard(late, sizeof(late)), -ETIME);
    CHECK_EQ(mpshm_handle_alive(late, sizeof(late)), 0);
    /* The others were sent without a timeout. */
    CHECK_EQ(received(before), 0);
    CHECK_EQ(received(lasting), 0);
    EVENTUALLY(stats().in_flight_bytes == 0);
    CHECK_EQ(stats().live_bytes, 0);
    /* The memory is used again. */
    mpshm_block b = make_block(strategy, NBYTES);
    CHECK_EQ(stats().segments, 1);
    mpshm_block_release(&b);
}

static void a_message_that_is_read_in_time_arrives(int strategy)
{
    unsigned char handle[MPSHM_HANDLE_SIZE];
    mpshm_block got;

    mpshm_set_message_timeout(10 * (uint64_t)HALF_A_SECOND);
    send_and_drop(strategy, 0, handle);
    usleep(300000);
    CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &got), 0);
    CHECK_EQ(stats().live_blocks, 1);
    mpshm_set_message_timeout(0);
    mpshm_block_release(&got);
    send_and_drop(strategy, 0, handle);
    usleep(300000);
    CHECK_EQ(received(handle), 0);
}

static void a_block_that_a_process_holds_is_freed_when_that_drops_it(int strategy)
{
    unsigned char handle[MPSHM_HANDLE_SIZE];
    mpshm_block b = make_block(strategy, NBYTES);

    mpshm_set_message_timeout(1);
    memset(b.data, 7, NBYTES);
    CHECK_EQ(mpshm_block_send(&b, 0, handle), 0);
    wait_until_late(handle);
    usleep(300000); /* the manager has looked */
    CHECK_EQ(received(handle), -ETIME);
    for (int i = 0; i < NBYTES; i++)
        CHECK_EQ(((char *)b.data)[i], 7);
    mpshm_block_release(&b);
    EVENTUALLY(stats().in_flight_bytes == 0);
}

/* The latest deadline of a block counts, and one message without a timeout keeps it. */
static void a_later_message_of_the_same_block_arrives(int strategy)
{
    unsigned char first[MPSHM_HANDLE_SIZE], later[MPSHM_HANDLE_SIZE], last[MPSHM_HANDLE_SIZE];
    mpshm_block b = make_block(strategy, NBYTES);

    mpshm_set_message_timeout(1);
    CHECK_EQ(mpshm_block_send(&b, 0, first), 0);
    mpshm_set_message_timeout(100 * (uint64_t)HALF_A_SECOND);
    CHECK_EQ(mpshm_block_send(&b, 0, later), 0);
    mpshm_set_message_timeout(0);
    CHECK_EQ(mpshm_block_send(&b, 0, last), 0);
    mpshm_set_message_timeout(1);
    mpshm_block_release(&b);
    wait_until_late(first);
    usleep(300000);
    CHECK_EQ(received(first), -ETIME);
    CHECK_EQ(received(later), 0);
    CHECK_EQ(received(last), 0);
    /* The message that expired was never received, and the block has no deadline any more. */
    CHECK_EQ(stats().in_flight_bytes, NBYTES);
}

static void messages_beyond_the_mask_keep_their_block(int strategy)
{
    unsigned char handles[70][MPSHM_HANDLE_SIZE];
    mpshm_block b = make_block(strategy, NBYTES);

    mpshm_set_message_timeout(HALF_A_SECOND * 4ull);
    for (int i = 0; i < 70; i++)
        CHECK_EQ(mpshm_block_send(&b, 0, handles[i]), 0);
    mpshm_block_release(&b);
    for (int i = 64; i < 69; i++)
        CHECK_EQ(received(handles[i]), 0);
    wait_until_late(handles[69]);
    usleep(1500000);
    CHECK_EQ(stats().in_flight_bytes, NBYTES);
    CHECK_EQ(received(handles[69]), -ETIME);
}

static void a_killed_sender_changes_nothing(int strategy)
{
    mpshm_block own = make_block(strategy, 100); /* the manager stays */
    pid_t pid = forked();

    if (pid == 0) {
        unsigned char handle[MPSHM_HANDLE_SIZE];
        mpshm_set_message_timeout(HALF_A_SECOND);
        send_and_drop(strategy, 0, handle);
        kill(getpid(), SIGKILL);
    }
    CHECK_EQ(reap(pid), -SIGKILL);
    mpshm_info segments[8];
    EVENTUALLY(mpshm_list(segments, 8) == 1); /* its segment went with its last message */
    mpshm_block_release(&own);
}

/* Each fork looks for a manager. One that is still ending, for as long as a loaded machine takes,
 * is not replaced until the next. */
static int fork_starts_a_manager_that_frees_all(void)
{
    pid_t pid = forked();

    if (pid == 0)
        _exit(0);
    CHECK_EQ(reap(pid), 0);
    return stats().in_flight_bytes == 0;
}

static void the_manager_that_replaces_a_killed_one_goes_on(int strategy)
{
    unsigned char handle[MPSHM_HANDLE_SIZE];
    mpshm_block block = make_block(strategy, NBYTES);
    pid_t manager = manager_pid();

    CHECK(manager > 0);
    /* It must not free the message before it is killed, however slow this process is. */
    kill(manager, SIGSTOP);
    mpshm_set_message_timeout(HALF_A_SECOND);
    CHECK_EQ(mpshm_block_send(&block, 0, handle), 0);
    mpshm_block_release(&block);
    kill(manager, SIGKILL);
    wait_until_late(handle);
    CHECK_EQ(received(handle), -ETIME);
    CHECK_EQ(stats().in_flight_bytes, NBYTES);
    EVENTUALLY(fork_starts_a_manager_that_frees_all());
}

/* ---- at the deadline ---- */

enum { BLOCKS = 400 };

/* Processes receive at the very moment at which the manager frees, with a slot and without, and
 * check each byte while the owner fills the blocks that come free with something else. */
static void receiver(int from, int copies, unsigned char (*handles)[MPSHM_HANDLE_SIZE])
{
    char *data = malloc(NBYTES);
    int got = 0;

    wait_until_late(handles[0]); /* and some of the others are not late yet */
    for (int i = from; i < BLOCKS; i += 2) {
        mpshm_block b = {0};
        struct mpshm__handle handle;
        int err;
        mpshm__handle_parse(handles[i], MPSHM_HANDLE_SIZE, &handle);
        while (mpshm__tick() + 1 < handle.deadline)
            usleep(1000);
        err = copies ? mpshm_block_read(handles[i], MPSHM_HANDLE_SIZE, data, NBYTES)
                     : mpshm_block_receive(handles[i], MPSHM_HANDLE_SIZE, 0, &b);
        CHECK(err == 0 || err == -ETIME);
        if (err < 0)
            continue;
        got++;
        const char *bytes = copies ? data : b.data;
        for (int k = 0; k < NBYTES; k += 64)
            CHECK_EQ(bytes[k], (char)(1 + i % 100));
        usleep(2000);
        for (int k = 0; k < NBYTES; k += 64)
            CHECK_EQ(bytes[k], (char)(1 + i % 100));
        if (!copies)
            mpshm_block_release(&b);
    }
    free(data);
    _exit(got > 0 ? 0 : 1);
}

static void a_message_at_its_deadline_arrives_whole_or_not_at_all(int strategy)
{
    static unsigned char handles[BLOCKS][MPSHM_HANDLE_SIZE];
    pid_t readers[2];

    for (int i = 0; i < BLOCKS; i++) {
        mpshm_block b = make_block(strategy, NBYTES);
        memset(b.data, 1 + i % 100, NBYTES);
        mpshm_set_message_timeout(HALF_A_SECOND + (uint64_t)i * 5000000);
        CHECK_EQ(mpshm_block_send(&b, MPSHM_COPY, handles[i]), 0);
        mpshm_block_release(&b);
    }
    for (int i = 0; i < 2; i++)
        if ((readers[i] = forked()) == 0)
            receiver(i, i, handles);
    while (stats().in_flight_bytes != 0) { /* write to what comes free */
        mpshm_block b;
        if (mpshm_block_allocate(strategy, NBYTES, 0, &b) == 0) {
            memset(b.data, 0xff, NBYTES);
            mpshm_block_release(&b);
        }
        usleep(200);
    }
    for (int i = 0; i < 2; i++)
        CHECK_EQ(reap(readers[i]), 0);
    CHECK_EQ(stats().live_bytes, 0);
}

int main(void)
{
    set_up();
    run_in_a_session(an_unread_message_gives_its_memory_back);
    run_in_a_session(a_message_that_is_read_in_time_arrives);
    run_in_a_session(a_block_that_a_process_holds_is_freed_when_that_drops_it);
    run_in_a_session(a_later_message_of_the_same_block_arrives);
    run_in_a_session(messages_beyond_the_mask_keep_their_block);
    run_in_a_session(a_killed_sender_changes_nothing);
    run_in_a_session(the_manager_that_replaces_a_killed_one_goes_on);
    run_in_a_session(a_message_at_its_deadline_arrives_whole_or_not_at_all);
    tear_down();
    return 0;
}
