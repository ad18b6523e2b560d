/* Conditions, events and barriers: nobody is woken in vain, and the dead keep nobody waiting. */
#define _GNU_SOURCE
#include <sys/time.h>

#include "sync.h"

/* ---- conditions ---- */

/* A child that waits and exits with 0 when it is notified. */
static pid_t waiter(mpshm_block *condition)
{
    int before = mpshm_condition_waiters(condition);
    pid_t pid = forked();

    if (pid == 0) {
        int place = mpshm_condition_enter(condition, 0);
        _exit(place < 0 ? 1 : mpshm_condition_wait(condition, place, LONG) == 0 ? 0 : 2);
    }
    EVENTUALLY(mpshm_condition_waiters(condition) == before + 1);
    return pid;
}

static void notifications_go_to_the_longest_waiting(int strategy)
{
    mpshm_block condition = make(strategy, MPSHM_CONDITION, 0, 1);
    pid_t pids[3];

    CHECK_EQ(mpshm_condition_notify(&condition, 1, 0), 0);
    for (int i = 0; i < 3; i++)
        pids[i] = waiter(&condition);
    CHECK_EQ(mpshm_condition_notify(&condition, 1, 0), 1);
    CHECK_EQ(reap(pids[0]), 0);
    CHECK_EQ(mpshm_condition_waiters(&condition), 2);
    CHECK_EQ(mpshm_condition_notify(&condition, 10, 0), 2);
    CHECK_EQ(reap(pids[1]), 0);
    CHECK_EQ(reap(pids[2]), 0);
    int place = mpshm_condition_enter(&condition, 0);
    CHECK_EQ(mpshm_condition_wait(&condition, place, 20 * MS), -ETIMEDOUT);
    CHECK_EQ(mpshm_condition_waiters(&condition), 0);
    mpshm_block_release(&condition);
}

static void a_dead_waiter_swallows_no_notification(int strategy)
{
    mpshm_block condition = make(strategy, MPSHM_CONDITION, 0, 1);
    pid_t dead = waiter(&condition), alive = waiter(&condition);

    kill_and_reap(dead);
    CHECK_EQ(mpshm_condition_notify(&condition, 1, 0), 1);
    CHECK_EQ(reap(alive), 0);
    CHECK_EQ(mpshm_condition_waiters(&condition), 0);
    mpshm_block_release(&condition);
}

static void a_notification_of_all_reaches_the_living_and_no_later_one(int strategy)
{
    mpshm_block condition = make(strategy, MPSHM_CONDITION, 0, 1);
    pid_t dead = waiter(&condition), alive = waiter(&condition);

    kill_and_reap(dead);
    CHECK_EQ(mpshm_condition_notify(&condition, UINT32_MAX, 0), 2);
    CHECK_EQ(reap(alive), 0);
    int place = mpshm_condition_enter(&condition, 0);
    CHECK_EQ(mpshm_condition_wait(&condition, place, 250 * MS), -ETIMEDOUT);
    pid_t late = waiter(&condition);
    CHECK_EQ(mpshm_condition_notify(&condition, 1, 0), 1);
    CHECK_EQ(reap(late), 0);
    mpshm_block_release(&condition);
}

static void a_notification_of_a_waiter_that_dies_with_it_is_passed_on(int strategy)
{
    mpshm_block condition = make(strategy, MPSHM_CONDITION, 0, 1);
    pid_t first = waiter(&condition), second = waiter(&condition);

    /* Stopped, it is notified and cannot leave. */
    CHECK_EQ(kill(first, SIGSTOP), 0);
    CHECK_EQ(waitpid(first, NULL, WUNTRACED), first);
    CHECK_EQ(mpshm_condition_notify(&condition, 1, 0), 1);
    kill_and_reap(first);
    CHECK_EQ(reap(second), 0);
    mpshm_block_release(&condition);
}

static void on_signal(int signum)
{
    (void)signum;
}

static void a_waiter_that_gives_up_passes_its_notification_on(int strategy)
{
    mpshm_block condition = make(strategy, MPSHM_CONDITION, 0, 1);
    int place = mpshm_condition_enter(&condition, 0);
    pid_t second = waiter(&condition);
    struct sigaction action = {.sa_handler = on_signal};
    struct itimerval again = {{0, 100000}, {0, 100000}}, never = {{0, 0}, {0, 0}};

    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &again, NULL); /* one that comes before the wait does not end it */
    CHECK_EQ(mpshm_condition_wait(&condition, place, LONG), -EINTR);
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK_EQ(mpshm_condition_notify(&condition, 1, 0), 1);
    mpshm_condition_leave(&condition, place);
    CHECK_EQ(reap(second), 0);
    mpshm_block_release(&condition);
}

static void a_thousand_dead_waiters_leave_room(int strategy)
{
    mpshm_block condition = make(strategy, MPSHM_CONDITION, 0, 1);

    for (int i = 0; i < 3; i++) {
        pid_t pid = forked();
        if (pid == 0) {
            for (int j = 0; j < 500; j++)
                mpshm_condition_enter(&condition, 0);
            _exit(0);
        }
        CHECK_EQ(reap(pid), 0);
    }
    int place = mpshm_condition_enter(&condition, 0);
    CHECK(place >= 0);
    mpshm_condition_leave(&condition, place);
    mpshm_block_release(&condition);
}

/* ---- events ---- */

static void an_event_wakes_all_even_if_it_is_cleared_at_once(int strategy)
{
    enum { WAITERS = 4 };
    mpshm_block event = make(strategy, MPSHM_EVENT, 0, 1);
    int ready[2];
    pid_t pids[WAITERS];
    char byte = 1;

    CHECK_EQ(mpshm_event_is_set(&event), 0);
    CHECK_EQ(mpshm_event_wait(&event, &(uint32_t){0}, 20 * MS), -ETIMEDOUT);
    CHECK_EQ(pipe(ready), 0);
    for (int i = 0; i < WAITERS; i++)
        if ((pids[i] = forked()) == 0) {
            put_all(ready[1], &byte, 1);
            _exit(mpshm_event_wait(&event, &(uint32_t){0}, LONG) == 0 ? 0 : 1);
        }
    for (int i = 0; i < WAITERS; i++)
        get_all(ready[0], &byte, 1);
    usleep(50000);
    kill_and_reap(pids[0]);
    mpshm_event_set(&event);
    mpshm_event_clear(&event);
    for (int i = 1; i < WAITERS; i++)
        CHECK_EQ(reap(pids[i]), 0);
    CHECK_EQ(mpshm_event_wait(&event, &(uint32_t){0}, 0), -ETIMEDOUT);
    mpshm_event_set(&event);
    CHECK_EQ(mpshm_event_is_set(&event), 1);
    CHECK_EQ(mpshm_event_wait(&event, &(uint32_t){0}, 0), 0);
    mpshm_block_release(&event);
}

/* A signal between two sleeps interrupts none: see Note [A signal between two sleeps] in word.c. */
static void a_wait_that_returned_from_a_sleep_goes_on(int strategy)
{
    mpshm_block event = make(strategy, MPSHM_EVENT, 0, 1);
    mpshm_block semaphore = make(strategy, MPSHM_SEMAPHORE, 0, 1);
    uint32_t since = 0;

    mpshm_sync_return_from_sleeps(1);
    CHECK_EQ(mpshm_event_wait(&event, &since, LONG), -EINTR);
    CHECK_EQ(mpshm_event_wait(&event, &since, LONG), -EINTR);
    CHECK_EQ(mpshm_event_wait(&event, &since, 0), -ETIMEDOUT);
    CHECK_EQ(mpshm_semaphore_acquire(&semaphore, 0, LONG), -EINTR);
    mpshm_event_set(&event);
    mpshm_event_clear(&event); /* as it may happen between two calls */
    CHECK_EQ(mpshm_event_wait(&event, &since, LONG), 0);
    CHECK_EQ(mpshm_event_wait(&event, &(uint32_t){0}, 0), -ETIMEDOUT);
    mpshm_sync_return_from_sleeps(0);
    mpshm_block_release(&semaphore);
    mpshm_block_release(&event);
}

/* ---- barriers ---- */

/* 0: passed, 1: broken. */
static int pass(mpshm_block *barrier)
{
    int place;
    uint32_t order;
    int rc = mpshm_barrier_arrive(barrier, 0, LONG, &place, &order);

    if (rc == 1)
        rc = mpshm_barrier_open(barrier);
    else if (rc == 0)
        rc = mpshm_barrier_wait(barrier, place, LONG);
    return rc == 0 ? 0 : rc == -EPIPE ? 1 : 2;
}

static pid_t party(mpshm_block *barrier, int rounds)
{
    pid_t pid = forked();

    if (pid == 0) {
        int rc = 0;
        while (rounds-- > 0 && rc == 0)
            rc = pass(barrier);
        mpshm_barrier_resign(barrier);
        _exit(rc);
    }
    return pid;
}

static void a_barrier_opens_for_all_round_after_round(int strategy)
{
    enum { PARTIES = 3 };
    mpshm_block barrier = make(strategy, MPSHM_BARRIER, 0, PARTIES);
    pid_t pids[PARTIES];

    CHECK_EQ(mpshm_barrier_parties(&barrier), PARTIES);
    for (int generation = 0; generation < 2; generation++) {
        for (int i = 0; i < PARTIES; i++)
            pids[i] = party(&barrier, 500);
        for (int i = 0; i < PARTIES; i++)
            CHECK_EQ(reap(pids[i]), 0);
    }
    CHECK_EQ(mpshm_barrier_waiters(&barrier), 0);
    mpshm_block_release(&barrier);
}

static void a_dead_party_breaks_a_barrier(int strategy)
{
    mpshm_block barrier = make(strategy, MPSHM_BARRIER, 0, 3);
    pid_t dead = party(&barrier, 1), alive;

    EVENTUALLY(mpshm_barrier_waiters(&barrier) == 1);
    alive = party(&barrier, 1);
    EVENTUALLY(mpshm_barrier_waiters(&barrier) == 2);
    kill_and_reap(dead);
    CHECK_EQ(reap(alive), 1);
    CHECK_EQ(mpshm_barrier_waiters(&barrier), -EPIPE);
    CHECK_EQ(pass(&barrier), 1);
    mpshm_barrier_reset(&barrier);
    CHECK_EQ(mpshm_barrier_waiters(&barrier), 0);
    for (int i = 0; i < 2; i++)
        party(&barrier, 1);
    CHECK_EQ(pass(&barrier), 0);
    while (wait(NULL) > 0)
        ;
    mpshm_block_release(&barrier);
}

static void the_last_party_finds_the_dead_that_nobody_saw(int strategy)
{
    for (int parties = 2; parties <= 3; parties++) {
        mpshm_block barrier = make(strategy, MPSHM_BARRIER, 0, (uint32_t)parties);
        pid_t dead = party(&barrier, 1), stopped = 0;

        EVENTUALLY(mpshm_barrier_waiters(&barrier) == 1);
        if (parties == 3) {
            stopped = party(&barrier, 1);
            EVENTUALLY(mpshm_barrier_waiters(&barrier) == 2);
            kill(stopped, SIGSTOP); /* it cannot look */
        }
        kill_and_reap(dead);
        CHECK_EQ(pass(&barrier), 1);
        CHECK_EQ(mpshm_barrier_waiters(&barrier), -EPIPE);
        if (stopped != 0) {
            kill(stopped, SIGCONT);
            CHECK_EQ(reap(stopped), 1);
        }
        mpshm_block_release(&barrier);
    }
}

/* One of many waiters looks for all: those that live, few or many, hear of the dead. */
static void many_parties_find_the_dead_together(int strategy)
{
    enum { WAITING = 39, STEP = 7 }; /* which have no common factor */
    static const int KILLED[] = {1, 20, WAITING - 1};

    for (int round = 0; round < 3; round++) {
        mpshm_block barrier = make(strategy, MPSHM_BARRIER, 0, WAITING + 1);
        pid_t pids[WAITING];
        for (int i = 0; i < WAITING; i++)
            pids[i] = party(&barrier, 1);
        EVENTUALLY(mpshm_barrier_waiters(&barrier) == WAITING);
        for (int i = 0; i < WAITING; i++) /* so that all die at one moment */
            kill(pids[i], SIGSTOP);
        for (int i = 0; i < WAITING; i++)
            kill(pids[i * STEP % WAITING], i < KILLED[round] ? SIGKILL : SIGCONT);
        for (int i = 0; i < WAITING; i++)
            CHECK_EQ(reap(pids[i * STEP % WAITING]), i < KILLED[round] ? -SIGKILL : 1);
        mpshm_block_release(&barrier);
    }
}

static void a_member_that_dies_between_two_rounds_breaks_the_next(int strategy)
{
    mpshm_block barrier = make(strategy, MPSHM_BARRIER, 0, 2);
    int passed[2];
    char byte = 1;
    pid_t pid;

    CHECK_EQ(pipe(passed), 0);
    if ((pid = forked()) == 0) {
        pass(&barrier);
        put_all(passed[1], &byte, 1);
        for (;;)
            pause();
    }
    CHECK_EQ(pass(&barrier), 0);
    get_all(passed[0], &byte, 1);
    kill_and_reap(pid);
    CHECK_EQ(pass(&barrier), 1);
    mpshm_block_release(&barrier);
}

static void a_last_party_that_dies_before_it_opens_breaks_the_barrier(int strategy)
{
    mpshm_block barrier = make(strategy, MPSHM_BARRIER, 0, 2);
    pid_t waits = party(&barrier, 1), last, late;
    int place, arrived[2];
    uint32_t order;
    char byte = 1;

    CHECK_EQ(pipe(arrived), 0);
    EVENTUALLY(mpshm_barrier_waiters(&barrier) == 1);
    if ((last = forked()) == 0) {
        if (mpshm_barrier_arrive(&barrier, 0, LONG, &place, &order) != 1 || order != 1)
            _exit(9);
        put_all(arrived[1], &byte, 1);
        for (;;)
            pause();
    }
    get_all(arrived[0], &byte, 1);
    CHECK_EQ(mpshm_barrier_arrive(&barrier, MPSHM_NOWAIT, 0, &place, &order), -EBUSY);
    late = party(&barrier, 1);
    kill_and_reap(last);
    CHECK_EQ(reap(waits), 1);
    CHECK_EQ(reap(late), 1);
    mpshm_block_release(&barrier);
}

static void a_timeout_breaks_a_barrier_for_all(int strategy)
{
    mpshm_block barrier = make(strategy, MPSHM_BARRIER, 0, 3);
    pid_t other = party(&barrier, 1);
    int place;
    uint32_t order;

    EVENTUALLY(mpshm_barrier_waiters(&barrier) == 1);
    CHECK_EQ(mpshm_barrier_arrive(&barrier, 0, LONG, &place, &order), 0);
    CHECK_EQ(order, 1);
    CHECK_EQ(mpshm_barrier_wait(&barrier, place, 20 * MS), -ETIMEDOUT);
    CHECK_EQ(reap(other), 1);
    mpshm_barrier_reset(&barrier);
    other = party(&barrier, 1);
    EVENTUALLY(mpshm_barrier_waiters(&barrier) == 1);
    mpshm_barrier_break(&barrier);
    CHECK_EQ(reap(other), 1);
    mpshm_barrier_reset(&barrier);
    other = party(&barrier, 1);
    EVENTUALLY(mpshm_barrier_waiters(&barrier) == 1);
    mpshm_barrier_reset(&barrier);
    CHECK_EQ(reap(other), 1);
    mpshm_block_release(&barrier);
}

/* All have passed a round before one is killed, so all are members: the others must be told. */
static void random_kills_leave_nobody_waiting(int strategy)
{
    enum { PARTIES = 3, ROUNDS = 60 };
    mpshm_block barrier = make(strategy, MPSHM_BARRIER, 0, PARTIES);

    srand(11);
    for (int r = 0; r < ROUNDS; r++) {
        pid_t pids[PARTIES];
        int passed[2];
        char byte = 1;
        CHECK_EQ(pipe(passed), 0);
        for (int i = 0; i < PARTIES; i++)
            if ((pids[i] = forked()) == 0) {
                int rc = pass(&barrier);
                put_all(passed[1], &byte, 1);
                while (rc == 0)
                    rc = pass(&barrier);
                _exit(rc);
            }
        for (int i = 0; i < PARTIES; i++)
            get_all(passed[0], &byte, 1);
        close(passed[0]);
        close(passed[1]);
        usleep((unsigned)(rand() % 3000));
        kill_and_reap(pids[0]);
        for (int i = 1; i < PARTIES; i++)
            CHECK_EQ(reap(pids[i]), 1);
        mpshm_barrier_reset(&barrier);
    }
    mpshm_block_release(&barrier);
}

int main(void)
{
    set_up();
    run_in_a_session(notifications_go_to_the_longest_waiting);
    run_in_a_session(a_dead_waiter_swallows_no_notification);
    run_in_a_session(a_notification_of_all_reaches_the_living_and_no_later_one);
    run_in_a_session(a_notification_of_a_waiter_that_dies_with_it_is_passed_on);
    run_in_a_session(a_waiter_that_gives_up_passes_its_notification_on);
    run_in_a_session(a_thousand_dead_waiters_leave_room);
    run_in_a_session(an_event_wakes_all_even_if_it_is_cleared_at_once);
    run_in_a_session(a_wait_that_returned_from_a_sleep_goes_on);
    run_in_a_session(a_barrier_opens_for_all_round_after_round);
    run_in_a_session(a_dead_party_breaks_a_barrier);
    run_in_a_session(the_last_party_finds_the_dead_that_nobody_saw);
    run_in_a_session(many_parties_find_the_dead_together);
    run_in_a_session(a_member_that_dies_between_two_rounds_breaks_the_next);
    run_in_a_session(a_last_party_that_dies_before_it_opens_breaks_the_barrier);
    run_in_a_session(a_timeout_breaks_a_barrier_for_all);
    run_in_a_session(random_kills_leave_nobody_waiting);
    tear_down();
    return 0;
}
