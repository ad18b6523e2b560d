/* Channels: messages are ordered and whole, of any size; their ends are those of a pipe; a
 * descriptor that is selected is readable while there is a message. */
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <time.h>

#include "channel.h"
#include "channel/channel.h"

enum { FOREVER = -1, MILLISECOND = 1000000 };

static const uint64_t sizes[] = {8, 9, 100, 4000, 65536, 65537, 262144, 3000000};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static void test_order(int duplex)
{
    struct line line = line_open(duplex);

    for (uint64_t round = 0; round < 5000; round++) {
        int n = (int)(round % 7) + 1;
        for (int i = 0; i < n; i++)
            CHECK_EQ(send_number(&line, round * 10 + (uint64_t)i,
                                 8 + (round * 37 + (uint64_t)i) % 3000, FOREVER),
                     0);
        for (int i = 0; i < n; i++)
            CHECK_EQ(receive_number(&line, FOREVER), (int64_t)round * 10 + i);
    }
    CHECK_EQ(receive_number(&line, 0), -EAGAIN);
    CHECK_EQ(receive_number(&line, 5 * MILLISECOND), -EAGAIN);
    line_close(&line);
}

static void test_empty_message(void)
{
    struct line line = line_open(0);
    struct received received = {0};

    CHECK_EQ(mpshm_channel_send(line.writer, line.to, "", 0, FOREVER, WAITER(NULL)), 0);
    CHECK_EQ(mpshm_channel_receive(line.reader, line.from, FOREVER, WAITER(&received)), 1);
    CHECK_EQ(received.nbytes, 0);
    free(received.data);
    line_close(&line);
}

/* Both sides of a message get the same number, which no other message of the ring has. */
static void test_numbers(void)
{
    struct line line = line_open(0);
    uint64_t sent = 0, got = 0, before = 0;

    CHECK(mpshm_channel_ring_id(line.writer, 1) != 0 || mpshm_channel_ring_id(line.reader, 0) == 0);
    CHECK_EQ(mpshm_channel_ring_id(line.writer, 1), mpshm_channel_ring_id(line.reader, 0));
    CHECK_EQ(mpshm_channel_ring_id(line.writer, 0), 0);
    for (uint64_t i = 0; i < 300; i++) {
        struct received received = {0};
        char *data = message(i, 2000);
        mpshm_waiter to = {
            NULL, received_allocate, received_begin, received_end, NULL, &sent, 0, NULL, NULL,
            NULL};
        mpshm_waiter from = {
            &received, received_allocate, received_begin, received_end, NULL, &got, 0, NULL, NULL,
            NULL};
        CHECK_EQ(mpshm_channel_send(line.writer, line.to, data, 2000, FOREVER, &to), 0);
        CHECK_EQ(mpshm_channel_receive(line.reader, line.from, FOREVER, &from), 1);
        CHECK_EQ(sent, got);
        CHECK(sent > before);
        before = sent;
        free(data);
        free(received.data);
    }
    line_close(&line);
}

static void test_without_room(void)
{
    struct line line = line_open(0);
    uint64_t sent = 0;

    while (send_number(&line, sent, 5000, 0) == 0)
        sent++;
    CHECK(sent > 40);
    CHECK_EQ(send_number(&line, sent, 5000, MILLISECOND), -EAGAIN);
    CHECK_EQ(send_number(&line, sent, 100000, 0), -EAGAIN);
    for (uint64_t i = 0; i < sent; i++)
        CHECK_EQ(receive_number(&line, 0), (int64_t)i);
    line_close(&line);
}

/* A writer died in the middle of a large message, in front of a full ring, and so did the process
 * that ended the message for it. Its successor repairs again, and writes over no message. */
static void test_repaired_twice(void)
{
    struct line line = line_open(0);
    struct mpshm__view *out = &line.writer->out;
    uint64_t sent = 0;

    while (send_number(&line, sent, 1728, 0) == 0)
        sent++;
    CHECK_EQ(mpshm__ring_room(out->ring), 0);
    for (int died = 0; died < 3; died++) {
        out->ring->large = 1;
        mpshm__abort_message(out);
    }
    CHECK_EQ(mpshm__ring_room(out->ring), -MPSHM__RECORD);
    for (uint64_t i = 0; i < sent; i++)
        CHECK_EQ(receive_number(&line, 0), (int64_t)i);
    CHECK_EQ(receive_number(&line, 0), -EAGAIN);
    CHECK_EQ(send_number(&line, 7, 120, 0), 0);
    CHECK_EQ(receive_number(&line, 0), 7);
    line_close(&line);
}

/* A writer that was waiting for the lock while the last reading end was closed. */
struct sender {
    struct line *line;
    sem_t waits;
    int rc;
};

static void sender_waits(void *of)
{
    sem_post(&((struct sender *)of)->waits);
}

static void *send_behind_a_lock(void *of)
{
    struct sender *sender = of;
    mpshm_waiter waiter = {sender, NULL, sender_waits, received_end, NULL,
                           NULL,   0,    NULL,         NULL,         NULL};

    sender->rc =
        mpshm_channel_send(sender->line->writer, sender->line->to, "late", 4, FOREVER, &waiter);
    return NULL;
}

static void test_writer_sees_a_close_under_the_lock(void)
{
    struct line line = line_open(0);
    struct sender sender = {.line = &line};
    pthread_t thread;

    CHECK_EQ(send_number(&line, 1, 8, FOREVER), 0); /* the kernel was asked */
    CHECK_EQ(mpshm__channel_lock(line.reader, MPSHM__TO_CLOSE, line.from, FOREVER, WAITER(NULL)),
             0);
    sem_init(&sender.waits, 0, 0);
    CHECK_EQ(pthread_create(&thread, NULL, send_behind_a_lock, &sender), 0);
    sem_wait(&sender.waits);
    close(line.from);
    line.from = dup(line.to);
    atomic_fetch_add(&line.reader->mapping->header->closes, 1);
    mpshm__channel_unlock(line.reader, MPSHM__TO_CLOSE);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(sender.rc, -EPIPE);
    CHECK_EQ(receive_number(&line, 0), 1);
    CHECK(receive_number(&line, 0) < 0);
    line_close(&line);
}

/* A reader closes the last reading end while another process sends: what was sent without an error
 * is received before or taken after, and not one message stays in the ring. */
static void test_last_reader_takes_the_rest(uint64_t nbytes)
{
    _Atomic int64_t *sent =
        mmap(NULL, sizeof(*sent), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    for (int round = 0; round < 30; round++) {
        struct line line = line_open(0);
        int64_t received = 0;
        atomic_store(sent, 0);
        pid_t writer = fork();
        if (writer == 0) {
            close(line.from);
            while (send_number(&line, (uint64_t)atomic_load(sent), nbytes, FOREVER) == 0)
                atomic_fetch_add(sent, 1);
            _exit(0);
        }
        for (; received < round % 20 + 1; received++)
            CHECK_EQ(receive_number(&line, FOREVER), received);
        close(line.from);
        CHECK_EQ(mpshm_channel_stop_reading(line.reader, line.to, WAITER(NULL)), 0);
        line.from = line.to; /* the ring is read through any descriptor of the pipe */
        while (receive_number(&line, 0) == received)
            received++;
        int status;
        CHECK_EQ(waitpid(writer, &status, 0), writer);
        CHECK_EQ(status, 0);
        CHECK_EQ(received, atomic_load(sent));
        line.from = dup(line.to);
        line_close(&line);
    }
    munmap((void *)sent, sizeof(*sent));
}

/* Sizes on both sides of every limit, from another process. */
static void test_between_processes(int duplex)
{
    struct line line = line_open(duplex);
    enum { ROUNDS = 40 };
    pid_t pid = fork();

    if (pid == 0) {
        line_close_reader(&line);
        for (uint64_t i = 0; i < ROUNDS * SIZES; i++)
            CHECK_EQ(send_number(&line, i, sizes[i % SIZES], FOREVER), 0);
        exit(0);
    }
    line_close_writer(&line);
    for (int64_t i = 0; i < ROUNDS * SIZES; i++)
        CHECK_EQ(receive_number(&line, FOREVER), i);
    CHECK_EQ(receive_number(&line, FOREVER), -1);
    CHECK_EQ(receive_number(&line, 0), -1);
    CHECK_EQ(mpshm_channel_poll(line.reader, line.from, 0, WAITER(NULL)), 1);
    CHECK_EQ(reap(pid), 0);
    line_close(&line);
}

static void test_broken(int duplex)
{
    struct line line = line_open(duplex);

    CHECK_EQ(send_number(&line, 1, 8, FOREVER), 0);
    line_close_reader(&line);
    CHECK_EQ(send_number(&line, 2, 8, FOREVER), -EPIPE);
    CHECK_EQ(send_number(&line, 2, 100000, FOREVER), -EPIPE);
    line_close(&line);

    /* A writer that waits for room. */
    line = line_open(duplex);
    pid_t pid = fork();
    if (pid == 0) {
        line_close_writer(&line);
        CHECK_EQ(receive_number(&line, FOREVER), 0);
        exit(0);
    }
    close(line.from);
    int rc = 0;
    for (uint64_t i = 0; rc == 0; i++)
        rc = send_number(&line, i, 60000, FOREVER);
    CHECK_EQ(rc, -EPIPE);
    CHECK_EQ(reap(pid), 0);
    mpshm_channel_close(line.reader);
    line.reader = NULL;
    line_close(&line);
}

static void test_wrong_direction(void)
{
    struct line line = line_open(0);

    CHECK_EQ(mpshm_channel_send(line.reader, line.from, "", 0, 0, WAITER(NULL)), -EBADF);
    CHECK_EQ(mpshm_channel_receive(line.writer, line.to, 0, WAITER(NULL)), -EBADF);
    CHECK_EQ(mpshm_channel_poll(line.writer, line.to, 0, WAITER(NULL)), -EBADF);
    line_close(&line);
}

static void test_selected(int duplex, int late)
{
    struct line line = line_open(duplex);

    if (!late)
        mpshm_channel_selectable(line.reader, line.from);
    for (int round = 0; round < 100; round++) {
        for (int n = 0; n < round % 4; n++)
            CHECK_EQ(send_number(&line, (uint64_t)n, 50, FOREVER), 0);
        for (int n = 0; n < round % 4; n++) {
            CHECK(readable(line.from));
            CHECK_EQ(receive_number(&line, FOREVER), n);
        }
        if (late && round == 50) {
            CHECK_EQ(send_number(&line, 7, 50, FOREVER), 0);
            mpshm_channel_selectable(line.reader, line.from);
            CHECK(readable(line.from));
            CHECK_EQ(receive_number(&line, FOREVER), 7);
        }
        if (!late || round >= 50)
            CHECK(!readable(line.from));
    }
    line_close_writer(&line);
    struct pollfd poll_for = {.fd = line.from, .events = POLLIN};
    CHECK_EQ(poll(&poll_for, 1, 0), 1);
    line_close(&line);
}

static void test_poll(void)
{
    struct line line = line_open(0);

    CHECK_EQ(mpshm_channel_poll(line.reader, line.from, 0, WAITER(NULL)), 0);
    CHECK_EQ(mpshm_channel_poll(line.reader, line.from, 5 * MILLISECOND, WAITER(NULL)), 0);
    CHECK_EQ(send_number(&line, 3, 8, FOREVER), 0);
    CHECK_EQ(mpshm_channel_poll(line.reader, line.from, 0, WAITER(NULL)), 1);
    CHECK_EQ(mpshm_channel_poll(line.reader, line.from, FOREVER, WAITER(NULL)), 1);
    CHECK_EQ(receive_number(&line, 0), 3);
    CHECK_EQ(mpshm_channel_poll(line.reader, line.from, 0, WAITER(NULL)), 0);
    line_close(&line);
}

/* A caller that takes without a wait finds the descriptor readable when there is a message. */
static void test_take(int duplex)
{
    struct line line = line_open(duplex);
    struct received received = {0};

    for (uint64_t round = 0; round < 100; round++) {
        CHECK_EQ(mpshm_channel_take(line.reader, line.from, WAITER(&received)), -EAGAIN);
        CHECK(!readable(line.from));
        for (uint64_t n = 0; n <= round % 4; n++)
            CHECK_EQ(send_number(&line, n, 50, FOREVER), 0);
        CHECK(readable(line.from));
        for (uint64_t n = 0; n <= round % 4; n++) {
            CHECK_EQ(mpshm_channel_take(line.reader, line.from, WAITER(&received)), 1);
            CHECK_EQ(message_number(&received), n);
        }
    }
    /* A message in parts is left to a caller that may wait. */
    CHECK_EQ(send_number(&line, 5, 200000, FOREVER), 0);
    for (int look = 0; look < 2; look++)
        CHECK_EQ(mpshm_channel_take(line.reader, line.from, WAITER(&received)), -EMSGSIZE);
    CHECK_EQ(receive_number(&line, 0), 5);
    line_close_writer(&line);
    CHECK_EQ(mpshm_channel_take(line.reader, line.from, WAITER(&received)), 0);
    free(received.data);
    line_close(&line);
}

struct giving_up {
    struct line *line;
    _Atomic int waits, gives_up;
    int rc;
};

static void sender_begins_wait(void *self)
{
    atomic_store(&((struct giving_up *)self)->waits, 1);
}

static int sender_ends_wait(void *self)
{
    return atomic_load(&((struct giving_up *)self)->gives_up) ? -ECANCELED : 0;
}

static void *send_into_a_full_ring(void *of)
{
    struct giving_up *sender = of;
    mpshm_waiter waiter = {sender, NULL, sender_begins_wait, sender_ends_wait, NULL, NULL, 0, NULL,
                           NULL,   NULL};
    char *data = message(1, 50000);

    sender->rc =
        mpshm_channel_send(sender->line->writer, sender->line->to, data, 50000, FOREVER, &waiter);
    free(data);
    return NULL;
}

/* A sender that sleeps in a full ring gives up, and leaves no part of its message. */
static void test_wake_senders(void)
{
    struct line line = line_open(0);
    struct giving_up sender = {.line = &line};
    pthread_t thread;
    uint64_t sent = 0;

    while (send_number(&line, sent, 50000, 0) == 0)
        sent++;
    CHECK_EQ(pthread_create(&thread, NULL, send_into_a_full_ring, &sender), 0);
    while (!atomic_load(&sender.waits))
        sched_yield();
    atomic_store(&sender.gives_up, 1);
    mpshm_channel_wake_senders(line.writer);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(sender.rc, -ECANCELED);
    for (uint64_t n = 0; n < sent; n++)
        CHECK_EQ(receive_number(&line, 0), n);
    CHECK_EQ(receive_number(&line, 0), -EAGAIN);
    line_close(&line);
}

static void test_passed_to_another(void)
{
    struct line line = line_open(1);
    mpshm_channel *again;
    int object = mpshm_channel_object(line.reader), other;
    char nothing[64] = {0};

    CHECK(object >= 0);
    CHECK_EQ(mpshm_channel_open(dup(object), 1, &again), 0);
    CHECK_EQ(send_number(&line, 12, 90000 / 2, FOREVER), 0);
    mpshm_channel_close(line.reader);
    line.reader = again;
    CHECK_EQ(receive_number(&line, FOREVER), 12);
    CHECK_EQ(mpshm_channel_open(line.from, 1, &again), -EBADMSG);
    CHECK_EQ(mpshm_channel_open(object, 2, &again), -EINVAL);
    /* A file that anybody could truncate. */
    FILE *file = tmpfile();
    CHECK_EQ(fwrite(nothing, sizeof(nothing), 1, file), 1);
    other = fileno(file);
    CHECK_EQ(mpshm_channel_open(other, 1, &again), -EBADMSG);
    fclose(file);
    line_close(&line);
}

/* ---- several writers and readers, as threads and as processes ---- */

enum { WRITERS = 3, READERS = 3, EACH = 3000 };

struct load {
    struct line *line;
    uint64_t from;
    _Atomic int *seen;
};

static void *write_all(void *of)
{
    struct load *load = of;

    for (uint64_t i = 0; i < EACH; i++)
        CHECK_EQ(
            send_number(load->line, load->from + i, i % 500 == 0 ? 150000 : 8 + i % 200, FOREVER),
            0);
    return NULL;
}

static void *read_all(void *of)
{
    struct load *load = of;
    int64_t number;

    while ((number = receive_number(load->line, FOREVER)) < WRITERS * EACH)
        CHECK_EQ(load->seen[number]++, 0);
    return NULL;
}

static void test_many_threads(void)
{
    struct line line = line_open(0);
    static _Atomic int seen[WRITERS * EACH];
    pthread_t writers[WRITERS], readers[READERS];
    struct load loads[WRITERS];

    for (int i = 0; i < WRITERS; i++) {
        loads[i] = (struct load){&line, (uint64_t)i * EACH, seen};
        pthread_create(&writers[i], NULL, write_all, &loads[i]);
    }
    for (int i = 0; i < READERS; i++)
        pthread_create(&readers[i], NULL, read_all, &loads[0]);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(writers[i], NULL);
    for (int i = 0; i < READERS; i++)
        CHECK_EQ(send_number(&line, WRITERS * EACH, 8, FOREVER), 0);
    for (int i = 0; i < READERS; i++)
        pthread_join(readers[i], NULL);
    for (int i = 0; i < WRITERS * EACH; i++)
        CHECK_EQ(seen[i], 1);
    line_close(&line);
}

static void test_nothing_left(void)
{
    int before = open_descriptors();
    struct line line = line_open(0);

    CHECK_EQ(mpshm_channel_count(), 2);
    line_close(&line);
    CHECK_EQ(mpshm_channel_count(), 0);
    CHECK_EQ(open_descriptors(), before);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    for (int duplex = 0; duplex <= 1; duplex++) {
        test_order(duplex);
        test_between_processes(duplex);
        test_broken(duplex);
        test_selected(duplex, 0);
        test_selected(duplex, 1);
    }
    test_empty_message();
    test_numbers();
    test_without_room();
    test_repaired_twice();
    test_writer_sees_a_close_under_the_lock();
    test_last_reader_takes_the_rest(100);
    test_last_reader_takes_the_rest(70000);
    test_wrong_direction();
    test_poll();
    test_take(0);
    test_take(1);
    test_wake_senders();
    test_passed_to_another();
    test_many_threads();
    test_nothing_left();
    return 0;
}
