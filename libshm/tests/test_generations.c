/* Generations of workers: each makes a result, sends it to its parent and ends. The processes that
 * live bound segments, address space and memory, and not those that have lived.
 *
 * MP_SOAK=1: 100 000 of them. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/mman.h>

#include "memory.h"

enum { RESULT = 40000, KEPT = 100 };

static uint64_t status_kb(const char *field)
{
    char line[256];
    uint64_t kb = 0;
    FILE *file = fopen("/proc/self/status", "r");

    while (fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, field, strlen(field)) == 0)
            kb = strtoull(line + strlen(field) + 1, NULL, 10);
    fclose(file);
    return kb;
}

static void fill(void *data, uint64_t nbytes, uint64_t seed)
{
    for (uint64_t k = 0; k < nbytes / 8; k++)
        ((uint64_t *)data)[k] = seed * 0x9e3779b97f4a7c15u + k;
}

static void verify(const void *data, uint64_t nbytes, uint64_t seed)
{
    for (uint64_t k = 0; k < nbytes / 8; k++)
        CHECK_EQ(((const uint64_t *)data)[k], seed * 0x9e3779b97f4a7c15u + k);
}

/* A worker: a result of `nbytes`, some other memory that it uses, and an exit or a SIGKILL. The
 * result stays in its segment. */
static mpshm_block result_of_a_worker(int strategy, uint64_t nbytes, uint64_t seed)
{
    unsigned char handle[MPSHM_HANDLE_SIZE];
    mpshm_block got;
    int p[2];

    CHECK(pipe(p) == 0);
    pid_t pid = forked();
    if (pid == 0) {
        mpshm_block b, other;
        CHECK_EQ(mpshm_block_allocate(strategy, nbytes, 0, &b), 0);
        fill(b.data, b.nbytes, seed);
        for (int i = 0; i < 3; i++) {
            CHECK_EQ(mpshm_block_allocate(strategy, seed % 2 ? 100 : 300000, 0, &other), 0);
            memset(other.data, 0xee, other.nbytes);
            mpshm_block_release(&other);
        }
        CHECK_EQ(mpshm_block_send(&b, 0, handle), 0);
        put_all(p[1], handle, sizeof(handle));
        if (seed % 3 == 0)
            kill(getpid(), SIGKILL);
        _exit(0);
    }
    get_all(p[0], handle, sizeof(handle));
    close(p[0]), close(p[1]);
    CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &got), 0);
    reap(pid);
    return got;
}

static int segments(void)
{
    return mpshm_list(NULL, 0);
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void each_generation_reuses_the_memory_of_the_last(int strategy)
{
    static mpshm_block kept[KEPT];
    int soak = getenv("MP_SOAK") != NULL, n = soak ? 100000 : 3 * KEPT;
    uint64_t virtual = 0, started = now_ns();

    for (int g = 0; g < n; g++) {
        mpshm_block *b = &kept[g % KEPT];
        if (g >= KEPT) {
            verify(b->data, b->nbytes, (uint64_t)(g - KEPT));
            mpshm_block_release(b);
        }
        *b = result_of_a_worker(strategy, RESULT, (uint64_t)g);
        if (g == KEPT)
            virtual = status_kb("VmSize:");
    }
    if (soak)
        fprintf(stderr, "%d generations: %.0f us each, %d segments, VmSize %llu kB\n", n,
                (double)(now_ns() - started) / 1000 / n, segments(),
                (unsigned long long)status_kb("VmSize:"));
    CHECK(segments() <= 8);
    CHECK(status_kb("VmSize:") <= virtual + (1 << 19)); /* 512 MiB: some segments, not hundreds */
    for (int g = n - KEPT; g < n; g++) {
        verify(kept[g % KEPT].data, RESULT, (uint64_t)g);
        mpshm_block_release(&kept[g % KEPT]);
    }
    EVENTUALLY(segments() == 0); /* while this process lives */
}

/* ---- an adopter has no block twice ---- */

enum { SLOTS = 64 };

/* The parent releases blocks of a worker that is killed at any moment, and of the worker that
 * adopts its segment. If a block were in two lists, two results would have the same bytes. */
static void blocks_freed_while_their_owner_is_killed_are_used_once(int strategy)
{
    static const uint64_t SIZES[] = {64, 1000, 40000, 300000};
    struct {
        mpshm_block block;
        uint64_t seed;
    } have[SLOTS] = {0};
    uint64_t seed = 1;
    struct message {
        unsigned char handle[MPSHM_HANDLE_SIZE];
        uint64_t seed;
    } message;

    for (int g = 0; g < (getenv("MP_SOAK") ? 2000 : 40); g++) {
        int p[2];
        CHECK(pipe(p) == 0);
        pid_t pid = forked();
        if (pid == 0) {
            close(p[0]);
            signal(SIGPIPE, SIG_DFL);
            for (uint64_t k = 0;; k++) {
                mpshm_block b;
                message.seed = seed + k;
                CHECK_EQ(mpshm_block_allocate(strategy, SIZES[k % 4], 0, &b), 0);
                fill(b.data, b.nbytes, message.seed);
                mpshm_block_send(&b, 0, message.handle);
                put_all(p[1], &message, sizeof(message));
                mpshm_block_release(&b);
            }
        }
        close(p[1]);
        for (int k = 0, n = 1 + g * 37 % 100; k < n; k++) {
            int at = (int)(seed * 7919 % SLOTS);
            get_all(p[0], &message, sizeof(message));
            if (have[at].block.segment != NULL) {
                verify(have[at].block.data, have[at].block.nbytes, have[at].seed);
                mpshm_block_release(&have[at].block);
            }
            CHECK_EQ(
                mpshm_block_receive(message.handle, sizeof(message.handle), 0, &have[at].block), 0);
            have[at].seed = message.seed;
            seed++;
        }
        kill(pid, SIGKILL); /* it is filling the next ones */
        CHECK_EQ(reap(pid), -SIGKILL);
        seed += 1000000;
        close(p[0]); /* other messages are lost, as with any queue that is dropped */
    }
    for (int at = 0; at < SLOTS; at++)
        if (have[at].block.segment != NULL) {
            verify(have[at].block.data, have[at].block.nbytes, have[at].seed);
            mpshm_block_release(&have[at].block);
        }
    CHECK(segments() <= 8);
}

/* ---- memory of dead processes returns while others live ---- */

static uint64_t shared_kb(void)
{
    return status_kb("RssShmem:");
}

static void the_memory_of_a_dead_worker_is_back_within_two_seconds(int strategy)
{
    uint64_t before = shared_kb(), deadline;
    mpshm_block small = result_of_a_worker(strategy, 1000, 1);
    mpshm_block large = result_of_a_worker(strategy, 50 << 20, 2);

    verify(large.data, large.nbytes, 2); /* so that its pages are mapped here */
    CHECK(shared_kb() >= before + (50 << 10));
    mpshm_block_release(&large);
    deadline = now_ns() + 20000000000u; /* on a slow machine */
    while (shared_kb() > before + 2048 && now_ns() < deadline)
        usleep(10000);
    CHECK(shared_kb() <= before + 2048); /* although a block beside it is in use */
    verify(small.data, small.nbytes, 1);
    mpshm_block_release(&small);
    EVENTUALLY(segments() == 0);
}

static void slabs_of_a_dead_worker_are_purged_beside_a_live_block(int strategy)
{
    unsigned char handle[MPSHM_HANDLE_SIZE];
    enum { N = 20000 };
    mpshm_block held;
    uint64_t before = shared_kb();
    int p[2];

    CHECK(pipe(p) == 0);
    pid_t pid = forked();
    if (pid == 0) {
        static mpshm_block b[N];
        for (int i = 0; i < N; i++) {
            CHECK_EQ(mpshm_block_allocate(strategy, 1000, 0, &b[i]), 0);
            memset(b[i].data, 0x77, 1000);
        }
        mpshm_block_send(&b[N / 2], 0, handle);
        put_all(p[1], handle, sizeof(handle));
        _exit(0);
    }
    get_all(p[0], handle, sizeof(handle));
    CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &held), 0);
    CHECK_EQ(reap(pid), 0);
    /* Attach everything, so that this process sees what stays. */
    mpshm_info info;
    CHECK_EQ(mpshm_list(&info, 1), 1);
    EVENTUALLY(mpshm_list(&info, 1) == 1 && info.cached_bytes < 1 << 20);
    for (int i = 0; i < 1000; i++)
        CHECK_EQ(((unsigned char *)held.data)[i], 0x77);
    CHECK(shared_kb() <= before + 8192);
    mpshm_block_release(&held);
    EVENTUALLY(segments() == 0);
    close(p[0]), close(p[1]);
}

static void run(void (*test)(int))
{
    for (int i = 0; i < 2; i++) {
        pid_t pid = fork(); /* each round is a session of its own */
        CHECK(pid >= 0);
        if (pid == 0) {
            CHECK_EQ(mpshm_attach(), 0);
            test(STRATEGIES[i]);
            _exit(0);
        }
        CHECK_EQ(reap(pid), 0);
    }
}

int main(void)
{
    set_up();
    run(each_generation_reuses_the_memory_of_the_last);
    run(blocks_freed_while_their_owner_is_killed_are_used_once);
    run(the_memory_of_a_dead_worker_is_back_within_two_seconds);
    run(slabs_of_a_dead_worker_are_purged_beside_a_live_block);
    tear_down();
    return 0;
}
