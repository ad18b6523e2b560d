/* Numbered messages of a channel: each is the receiver's or, taken back, the sender's again; also
 * when the receiver is stopped or killed after any single instruction. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <sys/user.h>

#include "channel.h"
#include "steps.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum { FOREVER = -1 };

static void a_message_is_claimed_once_and_in_order(void)
{
    struct line line = line_open(1);

    CHECK_EQ(mpshm_channel_claimed(line.writer), 0);
    CHECK_EQ(mpshm_channel_claim(line.reader, 0), 1);
    CHECK_EQ(mpshm_channel_claim(line.reader, 0), 0);
    CHECK_EQ(mpshm_channel_claim(line.reader, 1), 1);
    CHECK_EQ(mpshm_channel_claimed(line.writer), 2);
    line_close(&line);
}

static void what_was_taken_back_cannot_be_claimed(void)
{
    struct line line = line_open(1);

    CHECK_EQ(mpshm_channel_claim(line.reader, 0), 1);
    CHECK_EQ(mpshm_channel_take_back(line.writer, 3), 1);
    CHECK_EQ(mpshm_channel_take_back(line.writer, 3), 3);
    CHECK_EQ(mpshm_channel_take_back(line.writer, 2), 2);
    CHECK_EQ(mpshm_channel_claim(line.reader, 1), 0);
    CHECK_EQ(mpshm_channel_claim(line.reader, 2), 0);
    CHECK_EQ(mpshm_channel_claim(line.reader, 3), 1);
    CHECK_EQ(mpshm_channel_claimed(line.writer), 4);
    line_close(&line);
}

static void the_directions_of_a_channel_have_a_word_each(void)
{
    struct line line = line_open(1);

    CHECK_EQ(mpshm_channel_claim(line.reader, 0), 1);
    CHECK_EQ(mpshm_channel_claimed(line.reader), 0);
    CHECK_EQ(mpshm_channel_claim(line.writer, 0), 1);
    line_close(&line);
}

/* ---- two threads ---- */

enum { MESSAGES = 200000 };
static char claimed[MESSAGES], taken[MESSAGES];

static void *claim_all(void *of)
{
    struct line *line = of;

    for (uint64_t i = 0; i < MESSAGES; i++)
        claimed[i] = (char)mpshm_channel_claim(line->reader, i);
    return NULL;
}

static void each_message_has_one_owner(void)
{
    struct line line = line_open(1);
    pthread_t receiver;
    uint64_t until = 0;

    CHECK_EQ(pthread_create(&receiver, NULL, claim_all, &line), 0);
    while (until < MESSAGES) {
        until = mpshm_channel_claimed(line.writer) + 7;
        until = until < MESSAGES ? until : MESSAGES;
        for (uint64_t i = mpshm_channel_take_back(line.writer, until); i < until; i++)
            taken[i]++;
    }
    CHECK_EQ(pthread_join(receiver, NULL), 0);
    for (int i = 0; i < MESSAGES; i++)
        CHECK_EQ(claimed[i] + taken[i], 1);
    line_close(&line);
}

/* ---- a receiver that is stopped, and goes on or is killed ---- */

static int *outcome; /* shared: 1 when the child has claimed the message, 2 when it was refused */

static char arrived[4096];

static void *static_allocate(void *self, uint64_t nbytes)
{
    (void)self, (void)nbytes;
    return arrived;
}

static void receive_and_claim(struct line *line)
{
    mpshm_waiter waiter = {
        NULL, static_allocate, received_begin, received_end, NULL, NULL, 0, NULL, NULL, NULL};

    mpshm_channel_receive(line->reader, line->from, FOREVER, &waiter);
    *outcome = mpshm_channel_claim(line->reader, 0) ? 1 : 2;
}

/* A child that is stopped after that many instructions; 0 when it ended before. */
static pid_t stopped_after(long steps, struct line *line)
{
    pid_t pid = fork();

    if (pid == 0) {
        await_steps();
        receive_and_claim(line);
        _exit(0);
    }
    begin_steps(pid);
    return stepped(pid, steps) ? pid : 0;
}

static void a_stopped_receiver_keeps_no_message(int is_killed)
{
    int back = 0, kept = 0;

    for (long step = 0;; step += step < 2000 ? 3 : 50) {
        struct line line = line_open(1);
        int status;
        CHECK_EQ(send_number(&line, 5, 300, FOREVER), 0);
        *outcome = 0;
        pid_t pid = stopped_after(step, &line);
        int mine = mpshm_channel_take_back(line.writer, 1) == 0;
        if (pid != 0) {
            if (is_killed)
                kill(pid, SIGKILL);
            else
                CHECK_EQ(ptrace(PTRACE_DETACH, pid, NULL, NULL), 0);
            CHECK_EQ(waitpid(pid, &status, 0), pid);
        }
        if (!is_killed || pid == 0)
            CHECK_EQ(*outcome, mine ? 2 : 1);
        else
            CHECK(*outcome != (mine ? 1 : 2));
        back += mine;
        kept += !mine;
        line_close(&line);
        if (pid == 0)
            break;
    }
    CHECK(back > 0 && kept > 0);
}

int main(void)
{
    a_message_is_claimed_once_and_in_order();
    what_was_taken_back_cannot_be_claimed();
    the_directions_of_a_channel_have_a_word_each();
    each_message_has_one_owner();
    if (!SANITIZED && !is_emulated()) { /* a sanitizer multiplies the instructions */
        outcome =
            mmap(NULL, sizeof(*outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        struct line line = line_open(1); /* the children need not look up functions */
        CHECK_EQ(send_number(&line, 5, 300, FOREVER), 0);
        receive_and_claim(&line);
        line_close(&line);
        a_stopped_receiver_keeps_no_message(0);
        a_stopped_receiver_keeps_no_message(1);
    }
    return 0;
}
