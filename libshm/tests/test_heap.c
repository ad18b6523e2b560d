/* Memory by address: ownership, frees by other threads, the thread cache, and forks. */
#define _GNU_SOURCE
#include <pthread.h>

#include "memory.h"

static uint64_t at_first; /* live bytes at the beginning of a test */

static const uint64_t SIZES[] = {MPSHM_HEAP_LEAST, 100000, 1 << 20, 3 << 20};

static unsigned char *take(int strategy, uint64_t nbytes, int flags)
{
    void *at = NULL;

    CHECK_EQ(mpshm_heap_allocate(strategy, nbytes, flags, &at), 0);
    CHECK_EQ((uintptr_t)at % 4096, 0);
    return at;
}

static int all_are(const unsigned char *at, uint64_t nbytes, int value)
{
    for (uint64_t k = 0; k < nbytes; k++)
        if (at[k] != value)
            return 0;
    return 1;
}

static void foreign_memory_is_left_alone(int strategy)
{
    unsigned char *ours = take(strategy, 100000, 0);
    void *theirs = malloc(100000);
    uint64_t before;
    mpshm_block block;
    void *none;

    CHECK_EQ(mpshm_heap_free(theirs), 0);
    CHECK_EQ(mpshm_heap_free(NULL), 0);
    CHECK_EQ(mpshm_heap_resize(theirs, 5, &before), -ENOENT);
    CHECK_EQ(mpshm_block_at(theirs, 0, &block), -ENOENT);
    CHECK_EQ(mpshm_heap_allocate(strategy, 10, 0, &none), -EINVAL);
    free(theirs);
    CHECK_EQ(mpshm_heap_free(ours), 1);
    CHECK_EQ(mpshm_block_at(ours, 0, &block), -ENOENT);
    CHECK_EQ(live_bytes(), at_first);
}

static void freed_memory_is_reused_and_zeroed_when_asked(int strategy)
{
    for (int i = 0; i < 4; i++) {
        unsigned char *at = take(strategy, SIZES[i], 0);
        memset(at, 0xff, SIZES[i]);
        CHECK_EQ(mpshm_heap_free(at), 1);
        CHECK(take(strategy, SIZES[i], 0) == at);
        CHECK_EQ(mpshm_heap_free(at), 1);
        at = take(strategy, SIZES[i], MPSHM_ZEROED);
        CHECK(all_are(at, SIZES[i], 0));
        CHECK_EQ(mpshm_heap_free(at), 1);
    }
    CHECK_EQ(live_bytes(), at_first);
}

static void many_of_many_sizes_are_apart(int strategy)
{
    enum { N = 100 };
    static unsigned char *at[N];

    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++)
            memset(at[i] = take(strategy, 40000 + (uint64_t)i * 7001, i % 2), i + round,
                   40000 + i * 7001);
        for (int i = 0; i < N; i++)
            CHECK(all_are(at[i], 40000 + i * 7001, i + round));
        for (int i = 0; i < N; i++)
            CHECK_EQ(mpshm_heap_free(at[(i * 37) % N]), 1);
    }
    CHECK_EQ(live_bytes(), at_first);
}

static void it_grows_in_place_only_within_its_class(int strategy)
{
    unsigned char *at = take(strategy, 66000, 0);
    uint64_t before;

    memset(at, 1, 66000);
    CHECK_EQ(mpshm_heap_resize(at, 80000, &before), 1);
    CHECK_EQ(before, 66000);
    memset(at, 2, 80000); /* under file_system: reserved, or this is a SIGBUS */
    CHECK_EQ(mpshm_heap_resize(at, 500000, &before), 0);
    CHECK_EQ(mpshm_heap_resize(at, 100, &before), 0);
    CHECK_EQ(before, 80000);
    CHECK_EQ(mpshm_heap_free(at), 1);
}

static void a_block_is_found_by_any_of_its_bytes(int strategy)
{
    unsigned char *at = take(strategy, 5 << 20, 0), *next = take(strategy, 5 << 20, 0);
    uint64_t before;
    mpshm_block block;

    for (uint64_t k = 0; k < 5 << 20; k += 54321) {
        CHECK_EQ(mpshm_block_at(at + k, 0, &block), 0);
        CHECK(block.data == at);
        CHECK_EQ(block.nbytes, 5 << 20);
        mpshm_block_release(&block);
    }
    CHECK_EQ(mpshm_block_at(next + (5 << 20) - 1, 0, &block), 0);
    CHECK(block.data == next);
    CHECK_EQ(mpshm_heap_free(next), 1);
    memset(next, 7, 5 << 20); /* the reference keeps it */
    CHECK(take(strategy, 5 << 20, 0) != next);
    CHECK(all_are(next, 5 << 20, 7));
    mpshm_block_release(&block);
    CHECK_EQ(mpshm_heap_resize(at, 6 << 20, &before), 0);
}

static void a_sent_block_is_not_reused_before_its_receiver_releases_it(int strategy)
{
    unsigned char handle[MPSHM_HANDLE_SIZE], *at = take(strategy, 100000, 0), *other;
    mpshm_block block, got;
    uint64_t before;

    memset(at, 5, 100000);
    CHECK_EQ(mpshm_block_at(at + 999, 0, &block), 0);
    mpshm_block_send(&block, 0, handle);
    mpshm_block_release(&block);
    CHECK_EQ(mpshm_heap_resize(at, 100001, &before), 0);
    CHECK_EQ(mpshm_heap_free(at), 1);
    other = take(strategy, 100000, MPSHM_ZEROED);
    CHECK(other != at);
    CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &got), 0);
    CHECK(all_are(got.data, 100000, 5));
    mpshm_block_release(&got);
    CHECK_EQ(mpshm_heap_free(other), 1);
    CHECK_EQ(live_bytes(), at_first);
}

/* ---- threads ---- */

static int thread_strategy;

static void *free_it(void *at)
{
    CHECK_EQ(mpshm_heap_free(at), 1);
    return NULL;
}

static void *churn(void *seed)
{
    for (int i = 0; i < 2000; i++) {
        uint64_t nbytes = 33000 + (uint64_t)i * 997 % 100000;
        unsigned char *at = take(thread_strategy, nbytes, 0);
        memset(at, (int)(uintptr_t)seed, nbytes);
        CHECK(all_are(at, nbytes, (int)(uintptr_t)seed));
        CHECK_EQ(mpshm_heap_free(at), 1);
    }
    return NULL;
}

static void another_thread_may_free_and_keeps_nothing_when_it_ends(int strategy)
{
    pthread_t thread;

    for (int i = 0; i < 20; i++) {
        CHECK_EQ(pthread_create(&thread, NULL, free_it, take(strategy, 50000, 0)), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
    }
    CHECK_EQ(live_bytes(), at_first);
}

static void threads_never_get_the_same_memory(int strategy)
{
    pthread_t threads[4];

    thread_strategy = strategy;
    for (uintptr_t t = 0; t < 4; t++)
        CHECK_EQ(pthread_create(&threads[t], NULL, churn, (void *)(t + 1)), 0);
    for (int t = 0; t < 4; t++)
        CHECK_EQ(pthread_join(threads[t], NULL), 0);
    CHECK_EQ(live_bytes(), at_first);
}

/* ---- fork ---- */

static void a_free_on_one_side_of_a_fork_leaves_the_other_its_block(int strategy)
{
    int pipes[2][2];
    unsigned char *mine = take(strategy, 100000, 0), *theirs = take(strategy, 100000, 0);
    char byte;

    memset(mine, 1, 100000);
    memset(theirs, 2, 100000);
    CHECK_EQ(pipe(pipes[0]) | pipe(pipes[1]), 0);
    pid_t pid = forked();
    if (pid == 0) {
        CHECK_EQ(mpshm_heap_free(mine), 1);
        for (int i = 0; i < 5; i++)
            memset(take(strategy, 100000, 0), 9, 100000);
        put_all(pipes[0][1], "x", 1);
        get_all(pipes[1][0], &byte, 1);
        CHECK(all_are(theirs, 100000, 2));
        memset(theirs, 3, 100000);
        _exit(0);
    }
    get_all(pipes[0][0], &byte, 1);
    CHECK(all_are(mine, 100000, 1));
    CHECK_EQ(mpshm_heap_free(theirs), 1);
    for (int i = 0; i < 5; i++)
        memset(take(strategy, 100000, 0), 8, 100000);
    put_all(pipes[1][1], "x", 1);
    CHECK_EQ(reap(pid), 0);
    CHECK(all_are(mine, 100000, 1));
    for (int i = 0; i < 4; i++)
        close(pipes[i / 2][i % 2]);
}

static int begins_with_seven(const void *data, uint64_t nbytes)
{
    return nbytes >= 8 && *(const unsigned char *)data == 7;
}

static void private_content_is_copied_for_the_child(int strategy)
{
    unsigned char *own = take(strategy, 100000, 0), *shared = take(strategy, 100000, 0);

    memset(own, 7, 100000);
    memset(shared, 1, 100000);
    mpshm_set_fork_private(begins_with_seven);
    pid_t pid = forked();
    if (pid == 0) {
        mpshm_block block;
        CHECK(all_are(own, 100000, 7));
        memset(own, 0, 100000);
        memset(shared, 2, 100000);
        CHECK_EQ(mpshm_block_at(own, 0, &block), -ENOENT);
        pid_t inner = forked();
        if (inner == 0) {
            CHECK(all_are(own, 100000, 0));
            _exit(0);
        }
        CHECK_EQ(reap(inner), 0);
        CHECK_EQ(mpshm_heap_free(own), 1);
        CHECK_EQ(mpshm_heap_free(shared), 1);
        _exit(0);
    }
    CHECK_EQ(reap(pid), 0);
    mpshm_set_fork_private(NULL);
    CHECK(all_are(own, 100000, 7));
    CHECK(all_are(shared, 100000, 2));
    CHECK_EQ(mpshm_heap_free(own), 1);
    CHECK_EQ(mpshm_heap_free(shared), 1);
}

static void the_thread_cache_of_a_parent_is_not_used_by_its_child(int strategy)
{
    unsigned char *at = take(strategy, 100000, 0);

    CHECK_EQ(mpshm_heap_free(at), 1); /* in the thread cache */
    pid_t pid = forked();
    if (pid == 0) {
        memset(take(strategy, 100000, 0), 1, 100000);
        _exit(0);
    }
    unsigned char *again = take(strategy, 100000, MPSHM_ZEROED);
    CHECK_EQ(reap(pid), 0);
    CHECK(all_are(again, 100000, 0));
    CHECK_EQ(mpshm_heap_free(again), 1);
}

int main(void)
{
    static void (*const tests[])(int) = {
        foreign_memory_is_left_alone,
        freed_memory_is_reused_and_zeroed_when_asked,
        many_of_many_sizes_are_apart,
        it_grows_in_place_only_within_its_class,
        a_sent_block_is_not_reused_before_its_receiver_releases_it,
        another_thread_may_free_and_keeps_nothing_when_it_ends,
        threads_never_get_the_same_memory,
        a_block_is_found_by_any_of_its_bytes,
        a_free_on_one_side_of_a_fork_leaves_the_other_its_block,
        the_thread_cache_of_a_parent_is_not_used_by_its_child,
        private_content_is_copied_for_the_child,
    };

    set_up();
    pid_t pid = forked();
    if (pid != 0) { /* this process uses no memory, and sees what its children leave */
        int status = reap(pid);
        CHECK_EQ(status, 0);
        tear_down();
        return 0;
    }
    for (int s = 0; s < 2; s++)
        for (unsigned t = 0; t < sizeof(tests) / sizeof(*tests); t++) {
            at_first = live_bytes();
            tests[t](STRATEGIES[s]);
        }
    return 0;
}
