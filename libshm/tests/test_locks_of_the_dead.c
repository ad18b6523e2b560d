/* Locks and semaphores whose owners are killed, at any instruction too: they serve the others. */
#define _GNU_SOURCE

#include "steps.h"
#include "sync.h"
#include "session/control_lock.h"
#include "session/process_slot.h"
#include "sync/owner.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

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
    pid_t pid;

    if (finished == NULL)
        finished = shared_counter();
    *finished = 0;
    pid = forked();

    if (pid == 0) {
        await_steps();
        act(block);
        *finished = 1;
        for (;;)
            pause();
    }
    begin_steps(pid);
    CHECK(stepped(pid, steps));
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

static void sign(mpshm_block *block)
{
    *(volatile uint32_t *)block->data = mpshm_own_word(block);
}

static void a_word_tells_whether_its_process_lives(int strategy)
{
    mpshm_block block;

    CHECK_EQ(mpshm_block_allocate(strategy, sizeof(uint32_t), 0, &block), 0);
    sign(&block);
    CHECK_EQ(mpshm_word_lives(&block, *(uint32_t *)block.data, 0), 1);
    for (int i = 0; i < 3; i++) { /* the same slot, another word */
        uint32_t before = *(uint32_t *)block.data;
        pid_t pid = child_that(sign, &block);
        uint32_t word = *(volatile uint32_t *)block.data;
        CHECK(word != before);
        CHECK_EQ(mpshm_word_lives(&block, word, 0), 1);
        kill_and_reap(pid);
        EVENTUALLY(mpshm_word_lives(&block, word, MPSHM_NOWAIT) == 0);
    }
    mpshm_block_release(&block);
}

/* The manager has the lock of a dead process while it clears that one's references. */
static void a_process_whose_references_are_cleared_is_dead(int strategy)
{
    mpshm_block block;

    CHECK_EQ(mpshm_block_allocate(strategy, sizeof(uint32_t), 0, &block), 0);
    pid_t pid = child_that(sign, &block);
    struct mpshm__session *session = mpshm__session_of(&block);
    kill(manager_pid(), SIGSTOP);
    uint32_t word = *(volatile uint32_t *)block.data;
    int slot = (int)(word & ((1u << MPSHM__OWNER_SHIFT) - 1));
    int as_manager = mpshm__control_lock(mpshm__control_open_again(session));
    CHECK_EQ(mpshm__lock_dead_slot(as_manager, slot), -EAGAIN);
    kill_and_reap(pid);
    EVENTUALLY(mpshm__lock_dead_slot(as_manager, slot) == 0);
    CHECK_EQ(mpshm_word_lives(&block, word, 0), 0);
    CHECK_EQ(mpshm__lock_byte(mpshm__fd_get(&session->control_fd), slot), -EAGAIN);
    close(as_manager);
    kill(manager_pid(), SIGCONT);
    mpshm_block_release(&block);
}

int main(void)
{
    set_up();
    run_in_a_session(a_child_does_not_own_what_its_parent_owns);
    run_in_a_session(a_killed_owner_loses_the_lock_to_the_next);
    run_in_a_session(one_of_several_sleepers_gets_the_lock_of_a_killed_owner);
    run_in_a_session(killed_waiters_take_nothing_with_them);
    run_in_a_session(units_of_a_killed_process_return);
    run_in_a_session(a_word_tells_whether_its_process_lives);
    if (!is_emulated())
        run_in_a_session(a_process_whose_references_are_cleared_is_dead);
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
