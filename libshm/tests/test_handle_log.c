/* A reader that is killed after each single instruction, from the ring to the block, and a writer,
 * from the block to the ring: the message is there, or its memory is freed. */
#define _GNU_SOURCE
#include <sys/stat.h>
#include <sys/user.h>
#include <sys/wait.h>

#include "channel.h"
#include "channel/channel.h"
#include "memory.h"
#include "steps.h"
#include "reference/handle_log.h"
#include "segment/segment.h"
#include "session/session.h"

enum { NBYTES = 70000, FOREVER = -1, SECOND = 1000000000, SEVERAL = 8, EACH = 72 };
enum { MESSAGE = SEVERAL * EACH };

static int handles = 1; /* in a message */

static char arrived[MESSAGE];

static void *static_allocate(void *self, uint64_t nbytes)
{
    (void)self;
    CHECK_EQ(nbytes, MESSAGE);
    return arrived;
}

static mpshm_stats stats(void)
{
    mpshm_stats s;

    mpshm_get_stats(&s);
    return s;
}

static unsigned char bytes[MESSAGE];

/* Handle number `i` of the message; before it are bytes of something else. */
static unsigned char *handle(int i)
{
    return bytes + (i + 1) * EACH - MPSHM_HANDLE_SIZE;
}

static unsigned char *arrived_handle(int i)
{
    return (unsigned char *)arrived + (handle(i) - bytes);
}

static void leave(void *self)
{
    const unsigned char *all[SEVERAL];

    (void)self;
    for (int i = 0; i < handles; i++)
        all[i] = handle(i);
    mpshm_handle_log_drop(all, handles);
}

/* Those of the message, whose making is stepped through elsewhere. */
static mpshm_block blocks[SEVERAL];

static void send_blocks(struct line *line)
{
    mpshm_waiter waiter = *WAITER(NULL);

    for (int i = 0; i < handles; i++) {
        blocks[i] = make_block(MPSHM_FILE_DESCRIPTOR, NBYTES);
        CHECK_EQ(mpshm_block_send(&blocks[i], MPSHM_COPY | MPSHM_NOTED, handle(i)), 0);
        struct mpshm__segment *segment = blocks[i].segment;
        mpshm_block_release(&blocks[i]);
        blocks[i].segment = segment; /* where it is, as long as it is in flight */
    }
    waiter.carries = 1;
    waiter.leave = leave;
    CHECK_EQ(mpshm_channel_send(line->writer, line->to, bytes, MESSAGE, FOREVER, &waiter), 0);
}

/* Receive as a reader does: -errno, or 0 when it had the blocks. */
static int receive_blocks(struct line *line, int64_t timeout)
{
    uint64_t taken = 0;
    mpshm_waiter waiter = {NULL, static_allocate,        received_begin, received_end, NULL, NULL,
                           0,    mpshm_own_handle_log(), &taken,         NULL};
    mpshm_block block;

    int rc = mpshm_channel_receive(line->reader, line->from, timeout, &waiter);
    if (rc != 1)
        return rc;
    for (int i = 0; i < handles && rc >= 0; i++) {
        rc = mpshm_block_receive(arrived_handle(i), MPSHM_HANDLE_SIZE, 0, &block);
        if (rc == 0)
            mpshm_block_release(&block);
    }
    mpshm_handle_log_end(taken);
    return rc;
}

static int slot_of(pid_t pid)
{
    struct mpshm__control *control = mpshm__sessions[0]->control;

    for (int i = 0; i < MPSHM__SLOTS; i++)
        if (atomic_load(&control->slots[i].state) == MPSHM__SLOT_TAKEN &&
            atomic_load(&control->slots[i].pid) == pid)
            return i;
    return -1;
}

static int to_copy; /* MPSHM_COPY: the note is in the block's record; 0: in the process's log */
static int was_marked;

/* Start a process that runs `act` once it may be stepped: its slot. */
static int start(void (*act)(struct line *), struct line *line, pid_t *pid)
{
    *pid = fork();
    if (*pid == 0) {
        CHECK_EQ(mpshm_own_handle_log()->prepare(1), 0);
        await_steps();
        act(line);
        _exit(0);
    }
    begin_steps(*pid);
    int slot = slot_of(*pid);
    CHECK(slot >= 0);
    return slot;
}

/* Kill the process after so many instructions: its slot, which the reaper has cleared; -1 when it
 * ended before. `*held` tells whether its first note was HELD then. */
static int kill_after(long steps, void (*act)(struct line *), struct line *line, int *held)
{
    int status;
    pid_t pid;
    int slot = start(act, line, &pid);
    const struct mpshm__logged *note = mpshm__sessions[0]->control->handle_log[slot];

    if (!stepped(pid, steps))
        return -1;
    *held = atomic_load(&note->state) == MPSHM__HANDLE_HELD;
    const struct mpshm__segment *segment = blocks[0].segment;
    was_marked = atomic_load(&segment->sent[blocks[0].index].writer) == slot + 1;
    kill(pid, SIGKILL);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return slot;
}

static void await_reaper(int slot)
{
    EVENTUALLY(atomic_load(&mpshm__sessions[0]->control->slots[slot].state) == MPSHM__SLOT_FREE);
}

static int has_message(const struct line *line)
{
    const struct mpshm__ring *ring = line->reader->in.ring;

    return atomic_load(&ring->head) != atomic_load(&ring->tail);
}

static void receive_for_ever(struct line *line)
{
    CHECK_EQ(receive_blocks(line, FOREVER), 0);
}

/* The states of a reader that is killed. */
enum { ENDED, LEFT, NOTED, RECEIVED, BETWEEN };

static int reader_killed_after(long steps, struct line *line, uint64_t leaked)
{
    int held, slot = kill_after(steps, receive_for_ever, line, &held);

    if (slot < 0)
        return ENDED;
    await_reaper(slot);
    if (has_message(line))
        return LEFT;
    if (stats().in_flight_bytes == leaked)
        return held ? NOTED : RECEIVED;
    CHECK(!held);
    return BETWEEN;
}

static void send_it(struct line *line)
{
    mpshm_waiter waiter = *WAITER(NULL);

    for (int i = 0; i < handles; i++)
        CHECK_EQ(mpshm_block_send(&blocks[i], to_copy | MPSHM_NOTED, handle(i)), 0);
    waiter.carries = 1;
    waiter.leave = leave;
    CHECK_EQ(mpshm_channel_send(line->writer, line->to, bytes, MESSAGE, FOREVER, &waiter), 0);
}

static void a_killed_writer_leaves_the_message_or_frees_its_memory(int flags)
{
    const char *soak = getenv("MP_SOAK");
    long stride = soak != NULL && strcmp(soak, "1") == 0 ? 3 : 17, sent = 0, noted = 0, between = 0;
    int slot = 0;

    to_copy = flags;
    for (long step = 0; slot >= 0; step += stride) {
        struct line line = line_open(0);
        int held = 0;
        for (int i = 0; i < handles; i++)
            blocks[i] = make_block(MPSHM_FILE_DESCRIPTOR, NBYTES);
        uint64_t before = stats().in_flight_bytes;
        slot = kill_after(step, send_it, &line, &held);
        if (to_copy)
            held = slot >= 0 && was_marked;
        if (slot >= 0)
            await_reaper(slot);
        /* A reader also publishes what a dead writer had begun: see wakeup.c. */
        int rc = receive_blocks(&line, 0);
        CHECK(rc == 0 || rc == -EAGAIN);
        sent += rc == 0;
        noted += held;
        CHECK(!held || rc != 0);
        if (stats().in_flight_bytes != before) {
            between++;
            CHECK(!held);
        }
        for (int i = 0; i < handles; i++)
            mpshm_block_release(&blocks[i]);
        line_close(&line);
    }
    if (getenv("V"))
        fprintf(stderr, "%ld sent, %ld noted, %ld between two stores\n", sent, noted, between);
    CHECK(sent > 0 && noted > 0);
    CHECK(between * stride <= 200);
}

static void a_killed_reader_leaves_the_message_or_frees_its_memory(void)
{
    const char *soak = getenv("MP_SOAK");
    long stride = soak != NULL && strcmp(soak, "1") == 0 ? 5 : 37, counts[BETWEEN + 1] = {0};
    uint64_t leaked = stats().in_flight_bytes;
    int state = LEFT;

    for (long step = 0; state != ENDED; step += stride) {
        struct line line = line_open(0);
        send_blocks(&line);
        state = reader_killed_after(step, &line, leaked);
        counts[state]++;
        if (state == LEFT)
            CHECK_EQ(receive_blocks(&line, SECOND), 0);
        if (state == BETWEEN)
            leaked = stats().in_flight_bytes;
        CHECK_EQ(stats().in_flight_bytes, leaked);
        /* The ring goes on. */
        send_blocks(&line);
        CHECK_EQ(receive_blocks(&line, SECOND), 0);
        line_close(&line);
    }
    if (getenv("V"))
        fprintf(stderr, "%ld left, %ld noted, %ld received, %ld between two stores\n", counts[LEFT],
                counts[NOTED], counts[RECEIVED], counts[BETWEEN]);
    CHECK(counts[LEFT] > 0 && counts[NOTED] > 0 && counts[RECEIVED] > 0);
    /* Between two stores there are some instructions, and not a system call. */
    CHECK(counts[BETWEEN] * stride <= 200);
}

/* Whether a kill at this moment would leave a block of the message in flight. */
static int would_leak(const struct line *line, int slot)
{
    const struct mpshm__logged *notes = mpshm__sessions[0]->control->handle_log[slot];
    int leaks = 0;

    if (has_message(line) || mpshm__wakeup_is_begun(line->reader->in.ring))
        return 0;
    for (int i = 0; i < handles && !leaks; i++) {
        const struct mpshm__segment *segment = blocks[i].segment;
        uint32_t index = blocks[i].index;
        int is_noted = atomic_load(&segment->sent[index].writer) == slot + 1;
        for (int k = 0; k < MPSHM__LOGGED && !is_noted; k++)
            is_noted = atomic_load(&notes[k].state) == MPSHM__HANDLE_HELD &&
                       atomic_load(&notes[k].block) == index;
        const struct mpshm__block *block = &segment->blocks[index];
        leaks = !is_noted && atomic_load(&block->state) & MPSHM__LIVE &&
                atomic_load(&block->in_flight) != 0;
    }
    return leaks;
}

static long count_leaks(void (*act)(struct line *), struct line *line)
{
    long leaks = 0, all = 0;
    pid_t pid;
    int slot = start(act, line, &pid);
    cpu_set_t everywhere = together(pid);

    for (; step(pid); all++)
        leaks += would_leak(line, slot);
    apart(pid, everywhere);
    if (getenv("V"))
        fprintf(stderr, "%d handles: %ld of %ld instructions\n", handles, leaks, all);
    await_reaper(slot);
    return leaks;
}

/* Neither a system call nor a search for a note is between the two stores of a handle. */
static void each_handle_adds_few_instructions_in_which_a_kill_leaks(void)
{
    enum { MESSAGES = 3, OF_A_HANDLE = 30 };
    long one[MESSAGES];

    for (handles = 1; handles <= SEVERAL; handles += SEVERAL - 1)
        for (int i = 0; i < MESSAGES; i++) {
            struct line line = line_open(0);
            long leaks;
            if (i == MESSAGES - 1) {
                send_blocks(&line);
                leaks = count_leaks(receive_for_ever, &line);
            } else {
                to_copy = i == 0 ? MPSHM_COPY : 0;
                for (int k = 0; k < handles; k++)
                    blocks[k] = make_block(MPSHM_FILE_DESCRIPTOR, NBYTES);
                leaks = count_leaks(send_it, &line);
                CHECK_EQ(receive_blocks(&line, 0), 0);
                for (int k = 0; k < handles; k++)
                    mpshm_block_release(&blocks[k]);
            }
            if (handles == 1)
                one[i] = leaks;
            else
                CHECK(leaks - one[i] <= (SEVERAL - 1) * OF_A_HANDLE);
            line_close(&line);
        }
    handles = 1;
}

static void handles_that_are_kept_for_later_stay_in_flight(void)
{
    struct line line = line_open(0);
    uint64_t taken = 0;
    mpshm_waiter waiter = {NULL, static_allocate,        received_begin, received_end, NULL, NULL,
                           0,    mpshm_own_handle_log(), &taken,         NULL};
    uint64_t before = stats().in_flight_bytes;
    int status, told[2];

    CHECK_EQ(pipe(told), 0);
    send_blocks(&line);
    pid_t pid = fork();
    if (pid == 0) {
        CHECK_EQ(mpshm_channel_receive(line.reader, line.from, FOREVER, &waiter), 1);
        CHECK(taken != 0);
        mpshm_handle_log_end(taken);
        int slot = slot_of(getpid());
        CHECK_EQ(write(told[1], arrived_handle(0), MPSHM_HANDLE_SIZE), MPSHM_HANDLE_SIZE);
        CHECK_EQ(write(told[1], &slot, sizeof(slot)), sizeof(slot));
        raise(SIGKILL);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    unsigned char told_handle[MPSHM_HANDLE_SIZE];
    mpshm_block block;
    int slot;
    CHECK_EQ(read(told[0], told_handle, sizeof(told_handle)), sizeof(told_handle));
    CHECK_EQ(read(told[0], &slot, sizeof(slot)), sizeof(slot));
    close(told[0]);
    close(told[1]);
    EVENTUALLY(atomic_load(&mpshm__sessions[0]->control->slots[slot].state) == MPSHM__SLOT_FREE);
    CHECK_EQ(stats().in_flight_bytes, before + NBYTES);
    CHECK_EQ(mpshm_block_receive(told_handle, sizeof(told_handle), 0, &block), 0);
    mpshm_block_release(&block);
    CHECK_EQ(stats().in_flight_bytes, before);
    line_close(&line);
}

static struct line *in_parts;
static char whole[3 * MPSHM__RING_BYTES];

static void *whole_allocate(void *self, uint64_t nbytes)
{
    (void)self;
    CHECK_EQ(nbytes, sizeof(whole));
    return whole;
}

static int prepare_nothing(int may_wait)
{
    (void)may_wait;
    return 0;
}

static uint64_t begin_in_the_ring(const void *data, uint64_t nbytes)
{
    CHECK(data == whole);
    CHECK_EQ(nbytes, sizeof(whole));
    CHECK_EQ(mpshm_channel_has_rest(in_parts->writer), 1);
    return 1;
}

static void commit_beyond_it(uint64_t number)
{
    CHECK_EQ(number, 1);
    CHECK_EQ(mpshm_channel_has_rest(in_parts->writer), 0);
}

static void a_message_in_parts_is_noted_before_its_last_part_is_taken(void)
{
    static const mpshm_handle_log log = {prepare_nothing, begin_in_the_ring, commit_beyond_it};
    struct line line = line_open(0);
    uint64_t taken = 0;
    mpshm_waiter waiter = {NULL, whole_allocate, received_begin, received_end, NULL, NULL,
                           0,    &log,           &taken,         NULL};
    int status;

    in_parts = &line;
    pid_t pid = fork();
    if (pid == 0) {
        mpshm_waiter sender = *WAITER(NULL);
        sender.carries = 1;
        _exit(mpshm_channel_send(line.writer, line.to, whole, sizeof(whole), FOREVER, &sender));
    }
    CHECK_EQ(mpshm_channel_receive(line.reader, line.from, FOREVER, &waiter), 1);
    CHECK_EQ(taken, 1);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    line_close(&line);
}

static void each_note_is_used_again(void)
{
    struct line line = line_open(0);
    uint64_t before = stats().in_flight_bytes;

    for (int i = 0; i < 100; i++) {
        send_blocks(&line);
        CHECK_EQ(receive_blocks(&line, SECOND), 0);
    }
    CHECK_EQ(stats().in_flight_bytes, before);
    int slot = mpshm__sessions[0]->slot;
    for (int i = 0; i < MPSHM__LOGGED; i++)
        CHECK_EQ(atomic_load(&mpshm__sessions[0]->control->handle_log[slot][i].state),
                 MPSHM__HANDLE_FREE);
    line_close(&line);
}

static void only_the_logs_of_taken_slots_have_memory(void)
{
    struct mpshm__session *session = mpshm__sessions[0];
    struct stat file;

    CHECK(session->slot >= 0);
    CHECK_EQ(fstat(mpshm__fd_get(&session->control_fd), &file), 0);
    CHECK_EQ(file.st_size, sizeof(struct mpshm__control));
    off_t reserved = file.st_blocks * 512;
    CHECK(reserved >= (off_t)offsetof(struct mpshm__control, handle_log[1]));
    CHECK(reserved < file.st_size / 2);
}

int main(void)
{
    set_up();
    mpshm_block block = make_block(MPSHM_FILE_DESCRIPTOR, NBYTES);
    mpshm_block_release(&block);
    only_the_logs_of_taken_slots_have_memory();
    each_note_is_used_again();
    a_message_in_parts_is_noted_before_its_last_part_is_taken();
    handles_that_are_kept_for_later_stay_in_flight();
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    SKIP("a sanitizer multiplies the instructions to step through");
#endif
    if (is_emulated())
        SKIP("valgrind cannot be stepped");
    signal(SIGPIPE, SIG_IGN);
    each_handle_adds_few_instructions_in_which_a_kill_leaks();
    a_killed_reader_leaves_the_message_or_frees_its_memory();
    a_killed_writer_leaves_the_message_or_frees_its_memory(MPSHM_COPY);
    a_killed_writer_leaves_the_message_or_frees_its_memory(0);
    return 0;
}
