/* Locks and semaphores among living processes: they exclude, and their waits end. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>

#include "sync.h"

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void processes_exclude_each_other(int strategy)
{
    enum { PROCESSES = 3, ROUNDS = 20000 };
    mpshm_block lock = make(strategy, MPSHM_LOCK, 0, 1);
    mpshm_block semaphore = make(strategy, MPSHM_SEMAPHORE, 1, 1);
    volatile long *counter = shared_counter();
    pid_t pids[PROCESSES];

    for (int p = 0; p < PROCESSES; p++)
        if ((pids[p] = forked()) == 0) {
            for (int i = 0; i < ROUNDS; i++) {
                if (mpshm_lock_acquire(&lock, 0, LONG) != 0)
                    _exit(1);
                counter[0]++;
                if (mpshm_lock_release(&lock) != 0)
                    _exit(2);
                if (mpshm_semaphore_acquire(&semaphore, 0, LONG) != 0)
                    _exit(3);
                counter[1]++;
                if (mpshm_semaphore_release(&semaphore, 0) != 0)
                    _exit(4);
            }
            _exit(0);
        }
    for (int p = 0; p < PROCESSES; p++)
        CHECK_EQ(reap(pids[p]), 0);
    CHECK_EQ(counter[0], (long)PROCESSES * ROUNDS);
    CHECK_EQ(counter[1], (long)PROCESSES * ROUNDS);
    mpshm_block_release(&lock);
    mpshm_block_release(&semaphore);
}

static struct {
    mpshm_block *lock, *semaphore;
    long by_lock, by_semaphore;
} threads;

static void *count_in_a_thread(void *unused)
{
    (void)unused;
    for (int i = 0; i < 5000; i++) {
        CHECK_EQ(mpshm_lock_acquire(threads.lock, 0, LONG), 0);
        threads.by_lock++;
        CHECK_EQ(mpshm_lock_release(threads.lock), 0);
        CHECK_EQ(mpshm_semaphore_acquire(threads.semaphore, 0, LONG), 0);
        threads.by_semaphore++;
        CHECK_EQ(mpshm_semaphore_release(threads.semaphore, 0), 0);
    }
    return NULL;
}

static void threads_exclude_each_other(int strategy)
{
    mpshm_block lock = make(strategy, MPSHM_LOCK, 0, 1);
    mpshm_block semaphore = make(strategy, MPSHM_SEMAPHORE, 1, 1);
    pthread_t ids[3];

    threads.lock = &lock;
    threads.semaphore = &semaphore;
    for (int i = 0; i < 3; i++)
        CHECK_EQ(pthread_create(&ids[i], NULL, count_in_a_thread, NULL), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(ids[i], NULL);
    CHECK_EQ(threads.by_lock, 15000);
    CHECK_EQ(threads.by_semaphore, 15000);
    mpshm_block_release(&lock);
    mpshm_block_release(&semaphore);
}

static void timeouts_end_and_a_free_lock_is_not_released(int strategy)
{
    mpshm_block lock = make(strategy, MPSHM_LOCK, 0, 1);
    mpshm_block semaphore = make(strategy, MPSHM_SEMAPHORE, 1, 2);
    uint64_t begun;

    CHECK_EQ(mpshm_lock_release(&lock), -EPERM);
    CHECK_EQ(mpshm_lock_is_held(&lock), 0);
    CHECK_EQ(mpshm_lock_acquire(&lock, MPSHM_NOWAIT, 0), 0);
    CHECK_EQ(mpshm_lock_is_held(&lock), 1);
    CHECK_EQ(mpshm_lock_acquire(&lock, MPSHM_NOWAIT, 0), -EAGAIN);
    CHECK_EQ(mpshm_lock_acquire(&lock, 0, 0), -ETIMEDOUT);
    begun = now_ns();
    CHECK_EQ(mpshm_lock_acquire(&lock, 0, 150 * MS), -ETIMEDOUT);
    CHECK(now_ns() - begun >= 150 * MS);
    CHECK_EQ(mpshm_lock_release(&lock), 0);

    CHECK_EQ(mpshm_semaphore_acquire(&semaphore, 0, 0), 0);
    CHECK_EQ(mpshm_semaphore_value(&semaphore), 0);
    CHECK_EQ(mpshm_semaphore_acquire(&semaphore, MPSHM_NOWAIT, 0), -EAGAIN);
    begun = now_ns();
    CHECK_EQ(mpshm_semaphore_acquire(&semaphore, 0, 150 * MS), -ETIMEDOUT);
    CHECK(now_ns() - begun >= 150 * MS);
    CHECK_EQ(mpshm_semaphore_release(&semaphore, 0), 0);
    CHECK_EQ(mpshm_semaphore_release(&semaphore, 0), 0);
    CHECK_EQ(mpshm_semaphore_release(&semaphore, 0), -EOVERFLOW);
    CHECK_EQ(mpshm_semaphore_value(&semaphore), 2);
    mpshm_block_release(&lock);
    mpshm_block_release(&semaphore);
}

static void a_block_that_is_no_lock_is_refused(int strategy)
{
    mpshm_block block = make_block(strategy, 100), lock = {0};

    CHECK_EQ(mpshm_sync_kind(&block), -EINVAL);
    CHECK_EQ(mpshm_sync_create(strategy, 99, 0, 1, 0, &lock), -EINVAL);
    CHECK_EQ(mpshm_sync_create(strategy, MPSHM_SEMAPHORE, 3, 2, 0, &lock), -EINVAL);
    CHECK_EQ(mpshm_sync_create(strategy, MPSHM_BARRIER, 0, 0, 0, &lock), -EINVAL);
    mpshm_block_release(&block);
}

static void on_signal(int signum)
{
    (void)signum;
}

static void a_signal_ends_a_wait(int strategy)
{
    mpshm_block lock = make(strategy, MPSHM_LOCK, 0, 1);
    mpshm_block semaphore = make(strategy, MPSHM_SEMAPHORE, 0, 1);
    mpshm_block ended = make_block(strategy, sizeof(int)); /* how many waits a signal has ended */
    _Atomic int *count = ended.data;
    struct sigaction action = {.sa_handler = on_signal};
    pid_t pid;

    sigaction(SIGUSR1, &action, NULL);
    CHECK_EQ(mpshm_lock_acquire(&lock, 0, 0), 0);
    if ((pid = forked()) == 0) {
        if (mpshm_lock_acquire(&lock, 0, LONG) != -EINTR)
            _exit(1);
        if (mpshm_semaphore_acquire(&semaphore, 0, LONG) != -EINTR)
            _exit(2);
        /* The holder releases it after some more, in spite of the signals. */
        int rc;
        while ((rc = mpshm_lock_acquire(&lock, 0, LONG)) == -EINTR)
            atomic_fetch_add(count, 1);
        _exit(rc);
    }
    while (atomic_load(count) < 10) {
        usleep(10000);
        CHECK_EQ(kill(pid, SIGUSR1), 0);
    }
    CHECK_EQ(mpshm_lock_release(&lock), 0);
    CHECK_EQ(reap(pid), 0);
    mpshm_block_release(&ended);
    mpshm_block_release(&lock);
    mpshm_block_release(&semaphore);
}

int main(void)
{
    set_up();
    run_in_a_session(processes_exclude_each_other);
    run_in_a_session(threads_exclude_each_other);
    run_in_a_session(timeouts_end_and_a_free_lock_is_not_released);
    run_in_a_session(a_block_that_is_no_lock_is_refused);
    run_in_a_session(a_signal_ends_a_wait);
    tear_down();
    return 0;
}
