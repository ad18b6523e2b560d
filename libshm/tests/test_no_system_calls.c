/* Allocating, sending, receiving and releasing a block that was used before needs no system
 * call: seccomp kills a process that makes one. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "engine.h"

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

int main(void)
{
#ifdef SANITIZED
    SKIP("sanitizers make system calls of their own");
#endif
    if (is_emulated())
        SKIP("valgrind makes system calls of its own");
    set_up();
    for (int s = 0; s < 2; s++)
        for (uint64_t nbytes = 100; nbytes < 2000000; nbytes *= 20)
            dirty_blocks_need_no_system_call(STRATEGIES[s], nbytes);
    tear_down();
    return 0;
}
