/* Blocks between processes: forks, foreign processes, deaths, and what is left when all have
 * gone. */
#define _GNU_SOURCE
#include <fcntl.h>

#include "memory.h"

static void a_forked_child_and_its_parent_see_one_memory(int strategy)
{
    mpshm_block a = make_block(strategy, 1 << 20);
    pid_t pid = forked();

    if (pid == 0) {
        ((char *)a.data)[7] = 7;
        mpshm_block_release(&a);
        _exit(0);
    }
    CHECK_EQ(reap(pid), 0);
    CHECK_EQ(((char *)a.data)[7], 7);
    EVENTUALLY(mpshm_block_others(&a) == 0);
    mpshm_block_release(&a);
}

static void a_block_that_the_parent_frees_stays_valid_in_the_child(int strategy)
{
    int go[2], done[2];
    char byte;
    mpshm_block a = make_block(strategy, 1 << 20), b;

    CHECK(pipe(go) == 0 && pipe(done) == 0);
    memset(a.data, 5, a.nbytes);
    pid_t pid = forked();
    if (pid == 0) {
        get_all(go[0], &byte, 1);
        for (uint64_t i = 0; i < a.nbytes; i++)
            CHECK_EQ(((char *)a.data)[i], 5);
        /* The child allocates in another segment than its parent. */
        b = make_block(strategy, 1 << 20);
        memset(b.data, 9, b.nbytes);
        mpshm_block_release(&b);
        mpshm_block_release(&a);
        _exit(0);
    }
    mpshm_block_release(&a);
    for (int i = 0; i < 4; i++) {
        b = make_block(strategy, 1 << 20);
        memset(b.data, 6, b.nbytes);
        mpshm_block_release(&b);
    }
    put_all(go[1], "g", 1);
    CHECK_EQ(reap(pid), 0);
    close(go[0]), close(go[1]), close(done[0]), close(done[1]);
}

static void a_message_outlives_a_killed_sender(int strategy)
{
    int p[2];
    unsigned char handle[MPSHM_HANDLE_SIZE];
    mpshm_block b;

    CHECK(pipe(p) == 0);
    CHECK_EQ(mpshm_attach(), 0);
    pid_t pid = forked();
    if (pid == 0) {
        mpshm_block a = make_block(strategy, 3 << 20);
        memset(a.data, 77, a.nbytes);
        mpshm_block_send(&a, 0, handle);
        put_all(p[1], handle, sizeof(handle));
        kill(getpid(), SIGKILL);
    }
    CHECK_EQ(reap(pid), -SIGKILL);
    get_all(p[0], handle, sizeof(handle));
    CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &b), 0);
    for (uint64_t i = 0; i < b.nbytes; i++)
        CHECK_EQ(((char *)b.data)[i], 77);
    mpshm_block_release(&b);
    close(p[0]), close(p[1]);
}

static void the_blocks_of_a_killed_process_are_freed(int strategy)
{
    int p[2];
    char byte;
    mpshm_block a = make_block(strategy, 1 << 20);

    CHECK(pipe(p) == 0);
    pid_t pid = forked();
    if (pid == 0) {
        put_all(p[1], "r", 1);
        pause();
    }
    get_all(p[0], &byte, 1);
    CHECK_EQ(mpshm_block_others(&a), 1);
    CHECK_EQ(kill(pid, SIGKILL), 0);
    CHECK_EQ(reap(pid), -SIGKILL);
    EVENTUALLY(mpshm_block_others(&a) == 0);
    mpshm_block_release(&a);
    close(p[0]), close(p[1]);
}

static void a_killed_manager_is_replaced(int strategy)
{
    unsigned char handle[MPSHM_HANDLE_SIZE];
    mpshm_block a = make_block(strategy, 1 << 20), b;

    memset(a.data, 3, a.nbytes);
    for (int round = 0; round < 10; round++) {
        int p[2];
        pid_t old = manager_pid();
        CHECK(old > 0);
        CHECK_EQ(kill(old, SIGKILL), 0);
        EVENTUALLY(manager_pid() == 0);
        CHECK(pipe(p) == 0);
        pid_t pid = forked(); /* needs a slot, so a manager */
        if (pid == 0) {
            mpshm_block c;
            get_all(p[0], handle, sizeof(handle));
            CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &c), 0);
            CHECK_EQ(((char *)c.data)[c.nbytes - 1], 3);
            b = make_block(strategy, 100); /* registers a segment of its own */
            mpshm_block_release(&b);
            mpshm_block_release(&c);
            _exit(0);
        }
        mpshm_block_send(&a, 0, handle);
        put_all(p[1], handle, sizeof(handle));
        CHECK_EQ(reap(pid), 0);
        CHECK(manager_pid() != 0 && manager_pid() != old);
        EVENTUALLY(mpshm_block_others(&a) == 0);
        close(p[0]), close(p[1]);
    }
    mpshm_block_release(&a);
}

static void a_foreign_process_that_gets_a_handle_attaches_to_the_session(int strategy)
{
    int there[2], back[2];
    unsigned char handle[MPSHM_HANDLE_SIZE];
    char byte;

    CHECK(pipe(there) == 0 && pipe(back) == 0);
    pid_t pid = fork(); /* before anything is shared, and with an own session of its own */
    CHECK(pid >= 0);
    if (pid == 0) {
        mpshm_block a, b;
        unsigned char id[MPSHM_ID_SIZE] = "another family!";
        CHECK_EQ(mpshm_set_own_session(id), 0);
        b = make_block(strategy, 10);
        get_all(there[0], handle, sizeof(handle));
        CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &a), 0);
        CHECK_EQ(((char *)a.data)[99], 9);
        ((char *)a.data)[0] = 1;
        mpshm_block_release(&a);
        mpshm_block_release(&b);
        put_all(back[1], "d", 1);
        _exit(0);
    }
    mpshm_block a = make_block(strategy, 100);
    memset(a.data, 9, 100);
    mpshm_block_send(&a, 0, handle);
    put_all(there[1], handle, sizeof(handle));
    get_all(back[0], &byte, 1);
    CHECK_EQ(reap(pid), 0);
    CHECK_EQ(((char *)a.data)[0], 1);
    mpshm_block_release(&a);
    close(there[0]), close(there[1]), close(back[0]), close(back[1]);
}

/* A forked child of a parent without blocks attaches when it first needs the session, whatever has
 * become of its parent and of its descriptors meanwhile. */
static void a_child_without_blocks_attaches_late(int strategy)
{
    unsigned char handle[MPSHM_HANDLE_SIZE];
    int go[2], out[2];

    CHECK_EQ(pipe(go), 0);
    CHECK_EQ(pipe(out), 0);
    CHECK_EQ(mpshm_attach(), 0);
    for (int closes = 0; closes < 2; closes++) {
        pid_t parent = forked();
        if (parent == 0) {
            pid_t child = forked();
            if (child == 0) {
                mpshm_stats stats;
                mpshm_get_stats(&stats);
                CHECK_EQ(stats.mappings, 0);
                close(go[1]);
                if (closes) /* as a daemon does */
                    for (int fd = 3; fd < 256; fd++)
                        if (fd != go[0] && fd != out[1])
                            close(fd);
                get_all(go[0], handle, sizeof(handle));
                pid_t grandchild = forked(); /* it must not share the descriptors of this child */
                if (grandchild == 0) {
                    mpshm_block own = make_block(strategy, 100);
                    mpshm_block_release(&own);
                    _exit(0);
                }
                CHECK_EQ(reap(grandchild), 0);
                mpshm_block a;
                CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &a), 0);
                CHECK_EQ(((char *)a.data)[99], 8);
                memset(a.data, 9, 100);
                mpshm_block_send(&a, 0, handle);
                mpshm_block_release(&a);
                put_all(out[1], handle, sizeof(handle));
                _exit(0);
            }
            mpshm_block a = make_block(strategy, 100);
            memset(a.data, 8, 100);
            mpshm_block_send(&a, 0, handle);
            put_all(go[1], handle, sizeof(handle));
            kill(getpid(), SIGKILL);
        }
        reap(parent);
        get_all(out[0], handle, sizeof(handle));
        mpshm_block a;
        CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &a), 0);
        CHECK_EQ(((char *)a.data)[0], 9);
        mpshm_block_release(&a);
    }
    /* A child that dies before it attaches leaves nothing. */
    pid_t pid = forked();
    if (pid == 0)
        kill(getpid(), SIGKILL);
    reap(pid);
    close(go[0]), close(go[1]), close(out[0]), close(out[1]);
}

static void run(void (*test)(int))
{
    for (int i = 0; i < 2; i++) {
        pid_t pid = fork(); /* each round is a session of its own */
        CHECK(pid >= 0);
        if (pid == 0) {
            test(STRATEGIES[i]);
            _exit(0);
        }
        CHECK_EQ(reap(pid), 0);
    }
}

int main(void)
{
    set_up();
    run(a_foreign_process_that_gets_a_handle_attaches_to_the_session);
    run(a_forked_child_and_its_parent_see_one_memory);
    run(a_block_that_the_parent_frees_stays_valid_in_the_child);
    run(a_child_without_blocks_attaches_late);
    run(a_message_outlives_a_killed_sender);
    run(the_blocks_of_a_killed_process_are_freed);
    run(a_killed_manager_is_replaced);
    tear_down(); /* handles that the rounds left in flight go with the session */
    return 0;
}
