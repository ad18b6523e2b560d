/* Locks and semaphores: they exclude, they outlive whoever has them, and their waits end. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <sys/ptrace.h>

#include "engine.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static const uint64_t MS = 1000000, LONG = 20000000000u;

static mpshm_block make(int strategy, int kind, uint32_t value, uint32_t max)
{
    mpshm_block b = {0};

    CHECK_EQ(mpshm_sync_create(strategy, kind, value, max, 0, &b), 0);
    CHECK_EQ(mpshm_sync_kind(&b), kind);
    return b;
}

static void kill_and_reap(pid_t pid)
{
    CHECK_EQ(kill(pid, SIGKILL), 0);
    reap(pid);
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Memory that processes share and no lock guards. */
static volatile long *shared_counter(void)
{
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(at != MAP_FAILED);
    return at;
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

static void what_is_no_lock_is_refused(int strategy)
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
    struct sigaction action = {.sa_handler = on_signal};
    pid_t pid;

    sigaction(SIGUSR1, &action, NULL);
    CHECK_EQ(mpshm_lock_acquire(&lock, 0, 0), 0);
    if ((pid = forked()) == 0) {
        if (mpshm_lock_acquire(&lock, 0, LONG) != -EINTR)
            _exit(1);
        if (mpshm_semaphore_acquire(&semaphore, 0, LONG) != -EINTR)
            _exit(2);
        /* The holder releases it now, in spite of the signals. */
        int rc;
        while ((rc = mpshm_lock_acquire(&lock, 0, LONG)) == -EINTR)
            ;
        _exit(rc);
    }
    for (int i = 0; i < 20; i++) {
        usleep(10000);
        kill(pid, SIGUSR1);
    }
    CHECK_EQ(mpshm_lock_release(&lock), 0);
    CHECK_EQ(reap(pid), 0);
    mpshm_block_release(&lock);
    mpshm_block_release(&semaphore);
}

static void a_child_does_not_own_what_its_parent_owns(int strategy)
{
    mpshm_block lock = make(strategy, MPSHM_LOCK, 0, 1);
    pid_t pid;

    CHECK_EQ(mpshm_lock_acquire(&lock, 0, 0), 0);
    if ((pid = forked()) == 0)
        _exit(mpshm_lock_acquire(&lock, 0, 50 * MS) == -ETIMEDOUT ? 0 : 1);
    CHECK_EQ(reap(pid), 0);
    /* The end of a child that did not own it changes nothing. */
    CHECK_EQ(mpshm_lock_acquire(&lock, 0, 0), -ETIMEDOUT);
    CHECK_EQ(mpshm_lock_release(&lock), 0);
    mpshm_block_release(&lock);
}

/* A child that runs `act` and then sleeps; it writes a byte in between. */
static pid_t child_that(void (*act)(mpshm_block *), mpshm_block *block)
{
    int ready[2];
    char byte = 1;
    pid_t pid;

    CHECK_EQ(pipe(ready), 0);
    if ((pid = forked()) == 0) {
        act(block);
        put_all(ready[1], &byte, 1);
        for (;;)
            pause();
    }
    get_all(ready[0], &byte, 1);
    close(ready[0]);
    close(ready[1]);
    return pid;
}

static void acquire_lock(mpshm_block *lock)
{
    if (mpshm_lock_acquire(lock, 0, LONG) < 0)
        _exit(1);
}

static void acquire_unit(mpshm_block *semaphore)
{
    if (mpshm_semaphore_acquire(semaphore, 0, LONG) < 0)
        _exit(1);
}

static void a_killed_owner_loses_the_lock_to_the_next(int strategy)
{
    mpshm_block lock = make(strategy, MPSHM_LOCK, 0, 1);

    for (int i = 0; i < 20; i++) {
        kill_and_reap(child_that(acquire_lock, &lock));
        /* A process that looks at the dead one in /proc keeps its memory, and with it the lock of
         * its slot, a moment longer. */
        if (i % 2)
            EVENTUALLY(mpshm_lock_acquire(&lock, MPSHM_NOWAIT, 0) == MPSHM_OWNER_DIED);
        else
            CHECK_EQ(mpshm_lock_acquire(&lock, 0, LONG), MPSHM_OWNER_DIED);
        CHECK_EQ(mpshm_lock_release(&lock), 0);
        CHECK_EQ(mpshm_lock_acquire(&lock, 0, 0), 0);
        CHECK_EQ(mpshm_lock_release(&lock), 0);
    }
    mpshm_block_release(&lock);
}

static void one_of_several_sleepers_gets_the_lock_of_a_killed_owner(int strategy)
{
    enum { WAITERS = 4 };
    mpshm_block lock = make(strategy, MPSHM_LOCK, 0, 1);
    pid_t owner = child_that(acquire_lock, &lock), pids[WAITERS];
    int died = 0;

    for (int i = 0; i < WAITERS; i++)
        if ((pids[i] = forked()) == 0) {
            int rc = mpshm_lock_acquire(&lock, 0, LONG);
            if (rc < 0 || mpshm_lock_release(&lock) < 0)
                _exit(99);
            _exit(rc);
        }
    usleep(50000);
    kill_and_reap(owner);
    for (int i = 0; i < WAITERS; i++) {
        int rc = reap(pids[i]);
        CHECK(rc == 0 || rc == MPSHM_OWNER_DIED);
        died += rc;
    }
    CHECK_EQ(died, 1);
    mpshm_block_release(&lock);
}

static void killed_waiters_take_nothing_with_them(int strategy)
{
    enum { WAITERS = 4, ROUNDS = 10 };
    mpshm_block lock = make(strategy, MPSHM_LOCK, 0, 1);

    for (int r = 0; r < ROUNDS; r++) {
        pid_t pids[WAITERS];
        CHECK(mpshm_lock_acquire(&lock, 0, LONG) >= 0);
        for (int i = 0; i < WAITERS; i++)
            if ((pids[i] = forked()) == 0) {
                acquire_lock(&lock);
                _exit(mpshm_lock_release(&lock) < 0);
            }
        usleep(3000);
        /* Released and killed at about the same time: the one that was woken may be killed. */
        CHECK_EQ(mpshm_lock_release(&lock), 0);
        kill(pids[r % WAITERS], SIGKILL);
        kill(pids[(r + 1) % WAITERS], SIGKILL);
        for (int i = 0; i < WAITERS; i++) {
            int rc = reap(pids[i]);
            CHECK(rc == 0 || rc == -SIGKILL);
        }
    }
    mpshm_block_release(&lock);
}

static void units_of_a_killed_process_return(int strategy)
{
    mpshm_block semaphore = make(strategy, MPSHM_SEMAPHORE, 2, 2);
    pid_t first = child_that(acquire_unit, &semaphore),
          second = child_that(acquire_unit, &semaphore);

    CHECK_EQ(mpshm_semaphore_acquire(&semaphore, MPSHM_NOWAIT, 0), -EAGAIN);
    kill_and_reap(first);
    CHECK_EQ(mpshm_semaphore_acquire(&semaphore, 0, LONG), MPSHM_OWNER_DIED);
    CHECK_EQ(mpshm_semaphore_acquire(&semaphore, MPSHM_NOWAIT, 0), -EAGAIN);
    kill_and_reap(second);
    EVENTUALLY(mpshm_semaphore_acquire(&semaphore, MPSHM_NOWAIT, 0) == MPSHM_OWNER_DIED);
    CHECK_EQ(mpshm_semaphore_release(&semaphore, 0), 0);
    CHECK_EQ(mpshm_semaphore_release(&semaphore, 0), 0);
    CHECK_EQ(mpshm_semaphore_value(&semaphore), 2);
    mpshm_block_release(&semaphore);
}

static void units_that_are_events_stay_taken(int strategy)
{
    /* The first: it begins at 0. The second: the parent releases and had none. */
    for (int way = 0; way < 2; way++) {
        mpshm_block semaphore = make(strategy, MPSHM_SEMAPHORE, way == 0 ? 0 : 2, 3);
        CHECK_EQ(mpshm_semaphore_release(&semaphore, 0), 0);
        kill_and_reap(child_that(acquire_unit, &semaphore));
        for (int left = way == 0 ? 0 : 2; left > 0; left--)
            CHECK_EQ(mpshm_semaphore_acquire(&semaphore, 0, LONG), 0);
        CHECK_EQ(mpshm_semaphore_acquire(&semaphore, 0, 20 * MS), -ETIMEDOUT);
        mpshm_block_release(&semaphore);
    }
}

/* Run `act` in a child and kill it after `steps` instructions. 0 when it had finished before. */
static int kill_after(long steps, void (*act)(mpshm_block *), mpshm_block *block)
{
    static volatile long *finished;
    int status;
    pid_t pid;

    if (finished == NULL)
        finished = shared_counter();
    *finished = 0;
    pid = forked();

    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
            _exit(77);
        raise(SIGSTOP);
        act(block);
        *finished = 1;
        for (;;)
            pause();
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        SKIP("ptrace is not allowed here");
    for (long i = 0; i < steps; i++) {
        CHECK_EQ(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        CHECK(WIFSTOPPED(status));
    }
    kill_and_reap(pid);
    return !*finished;
}

static void use_lock(mpshm_block *lock)
{
    if (mpshm_lock_acquire(lock, 0, LONG) < 0 || mpshm_lock_release(lock) < 0)
        _exit(1);
}

static void use_semaphore(mpshm_block *semaphore)
{
    if (mpshm_semaphore_acquire(semaphore, 0, LONG) < 0 ||
        mpshm_semaphore_release(semaphore, 0) < 0)
        _exit(1);
}

static void a_lock_outlives_a_kill_at_any_instruction(int strategy)
{
    mpshm_block lock = make(strategy, MPSHM_LOCK, 0, 1);
    long steps = 1;

    while (kill_after(steps, use_lock, &lock)) {
        CHECK(mpshm_lock_acquire(&lock, 0, LONG) >= 0);
        CHECK_EQ(mpshm_lock_release(&lock), 0);
        steps++;
    }
    CHECK(steps > 20);
    mpshm_block_release(&lock);
}

static void a_semaphore_outlives_a_kill_at_any_instruction(int strategy)
{
    enum { UNITS = 2 };
    mpshm_block semaphore = make(strategy, MPSHM_SEMAPHORE, UNITS, UNITS);
    long steps = 1;

    while (kill_after(steps, use_semaphore, &semaphore)) {
        for (int i = 0; i < UNITS; i++)
            CHECK(mpshm_semaphore_acquire(&semaphore, 0, LONG) >= 0);
        CHECK_EQ(mpshm_semaphore_acquire(&semaphore, 0, 0), -ETIMEDOUT); /* no unit too many */
        for (int i = 0; i < UNITS; i++)
            CHECK_EQ(mpshm_semaphore_release(&semaphore, 0), 0);
        CHECK_EQ(mpshm_semaphore_value(&semaphore), UNITS);
        steps++;
    }
    CHECK(steps > 20);
    mpshm_block_release(&semaphore);
}

/* Users of both that are killed at random, while others go on. */
static void random_kills_stop_nobody(int strategy)
{
    enum { USERS = 3, KILLS = 60 };
    mpshm_block lock = make(strategy, MPSHM_LOCK, 0, 1);
    mpshm_block semaphore = make(strategy, MPSHM_SEMAPHORE, 2, 2);
    volatile long *inside = shared_counter();
    pid_t pids[USERS] = {0};

    srand(7);
    for (int k = 0; k < KILLS; k++) {
        pid_t *victim = &pids[rand() % USERS];
        if (*victim != 0)
            kill_and_reap(*victim);
        if ((*victim = forked()) == 0) {
            for (;;) {
                if (mpshm_lock_acquire(&lock, 0, LONG) < 0)
                    _exit(1);
                inside[0] = getpid();
                if (inside[0] != getpid())
                    _exit(2);
                if (mpshm_semaphore_acquire(&semaphore, 0, LONG) < 0)
                    _exit(3);
                if (mpshm_lock_release(&lock) < 0 || mpshm_semaphore_release(&semaphore, 0) < 0)
                    _exit(4);
            }
        }
        usleep((unsigned)(rand() % 5000));
        CHECK(mpshm_lock_acquire(&lock, 0, LONG) >= 0);
        inside[0] = getpid();
        CHECK_EQ(inside[0], getpid());
        CHECK_EQ(mpshm_lock_release(&lock), 0);
        CHECK(mpshm_semaphore_acquire(&semaphore, 0, LONG) >= 0);
        CHECK_EQ(mpshm_semaphore_release(&semaphore, 0), 0);
    }
    for (int i = 0; i < USERS; i++)
        if (pids[i] != 0) {
            kill(pids[i], SIGKILL);
            CHECK_EQ(reap(pids[i]), -SIGKILL);
        }
    for (int i = 0; i < 2; i++)
        CHECK(mpshm_semaphore_acquire(&semaphore, 0, LONG) >= 0);
    CHECK_EQ(mpshm_semaphore_acquire(&semaphore, 0, 0), -ETIMEDOUT);
    mpshm_block_release(&lock);
    mpshm_block_release(&semaphore);
}

/* The manager and the descriptors are not needed. */
static void a_death_is_seen_without_a_manager_and_without_descriptors(int strategy)
{
    mpshm_block lock = make(strategy, MPSHM_LOCK, 0, 1);
    pid_t owner = child_that(acquire_lock, &lock);

    kill(manager_pid(), SIGSTOP);
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
    kill_and_reap(owner);
    CHECK_EQ(mpshm_lock_acquire(&lock, 0, LONG), MPSHM_OWNER_DIED);
    CHECK_EQ(mpshm_lock_release(&lock), 0);
    kill(manager_pid(), SIGCONT);
    mpshm_block_release(&lock);
}

int main(void)
{
    set_up();
    run_in_a_session(processes_exclude_each_other);
    run_in_a_session(threads_exclude_each_other);
    run_in_a_session(timeouts_end_and_a_free_lock_is_not_released);
    run_in_a_session(what_is_no_lock_is_refused);
    run_in_a_session(a_signal_ends_a_wait);
    run_in_a_session(a_child_does_not_own_what_its_parent_owns);
    run_in_a_session(a_killed_owner_loses_the_lock_to_the_next);
    run_in_a_session(one_of_several_sleepers_gets_the_lock_of_a_killed_owner);
    run_in_a_session(killed_waiters_take_nothing_with_them);
    run_in_a_session(units_of_a_killed_process_return);
    run_in_a_session(units_that_are_events_stay_taken);
    run_in_a_session(random_kills_stop_nobody);
    if (!SANITIZED && !is_emulated()) {
        run_in_a_session(a_lock_outlives_a_kill_at_any_instruction);
        run_in_a_session(a_semaphore_outlives_a_kill_at_any_instruction);
    }
    if (!is_emulated())
        run_in_a_session(a_death_is_seen_without_a_manager_and_without_descriptors);
    tear_down();
    return 0;
}
