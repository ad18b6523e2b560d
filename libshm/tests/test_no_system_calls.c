/* Allocating, sending, receiving and releasing a block that was used before needs no system
 * call, and neither does a lock without contention: seccomp kills a process that makes one. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "memory.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

static int forbid_system_calls(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(rules) / sizeof(rules[0]), .filter = rules};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* A hundred live blocks at once, each sent, received and released twice. */
static void use_blocks(int strategy, uint64_t nbytes, int flags)
{
    enum { N = 100 };
    static mpshm_block blocks[N];
    unsigned char handle[MPSHM_HANDLE_SIZE];
    mpshm_block received;

    for (int i = 0; i < N; i++) {
        if (mpshm_block_allocate(strategy, nbytes, flags, &blocks[i]) < 0)
            _exit(2);
        *(char *)blocks[i].data = (char)i;
        mpshm_block_send(&blocks[i], 0, handle);
        if (mpshm_block_receive(handle, sizeof(handle), MPSHM_NOWAIT, &received) < 0)
            _exit(3);
        mpshm_block_release(&received);
    }
    for (int i = 0; i < N; i++)
        mpshm_block_release(&blocks[i]);
}

static void dirty_blocks_need_no_system_call(int strategy, uint64_t nbytes)
{
    pid_t pid = forked();

    if (pid == 0) {
        mpshm_block first;
        if (mpshm_block_allocate(strategy, nbytes, 0, &first) < 0)
            _exit(4);
        mpshm_block_release(&first);
        use_blocks(strategy, nbytes, 0); /* creates as many segments as it takes */
        if (forbid_system_calls() < 0)
            _exit(77);
        for (int i = 0; i < 100; i++)
            use_blocks(strategy, nbytes, MPSHM_NOWAIT);
        _exit(0);
    }
    int status = reap(pid);
    if (status == 77)
        SKIP("no seccomp filters here");
    CHECK_EQ(status, 0);
}

static void uncontended_locks_need_no_system_call(int strategy)
{
    pid_t pid = forked();

    if (pid == 0) {
        mpshm_block lock, semaphore, event, condition;
        if (mpshm_sync_create(strategy, MPSHM_LOCK, 0, 1, 0, &lock) < 0 ||
            mpshm_sync_create(strategy, MPSHM_SEMAPHORE, 2, 2, 0, &semaphore) < 0 ||
            mpshm_sync_create(strategy, MPSHM_EVENT, 0, 1, 0, &event) < 0 ||
            mpshm_sync_create(strategy, MPSHM_CONDITION, 0, 1, 0, &condition) < 0)
            _exit(4);
        if (forbid_system_calls() < 0)
            _exit(77);
        for (int i = 0; i < 1000; i++) {
            if (mpshm_lock_acquire(&lock, MPSHM_NOWAIT, 0) != 0 || mpshm_lock_release(&lock) != 0)
                _exit(5);
            if (mpshm_semaphore_acquire(&semaphore, MPSHM_NOWAIT, 0) != 0 ||
                mpshm_semaphore_release(&semaphore, MPSHM_NOWAIT) != 0)
                _exit(6);
            mpshm_event_set(&event);
            if (mpshm_event_wait(&event, &(uint32_t){0}, 0) != 0)
                _exit(7);
            mpshm_event_clear(&event);
            if (mpshm_condition_notify(&condition, 1, MPSHM_NOWAIT) != 0)
                _exit(8);
        }
        _exit(0);
    }
    int status = reap(pid);
    if (status == 77)
        SKIP("no seccomp filters here");
    CHECK_EQ(status, 0);
}

int main(void)
{
#ifdef SANITIZED
    SKIP("sanitizers make system calls of their own");
#endif
    if (is_emulated())
        SKIP("valgrind makes system calls of its own");
    set_up();
    for (int s = 0; s < 2; s++)
        uncontended_locks_need_no_system_call(STRATEGIES[s]);
    for (int s = 0; s < 2; s++)
        for (uint64_t nbytes = 100; nbytes < 2000000; nbytes *= 20)
            dirty_blocks_need_no_system_call(STRATEGIES[s], nbytes);
    tear_down();
    return 0;
}
