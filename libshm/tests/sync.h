/* Locks and their kin in tests: make one, and kill a process that uses it. */
#ifndef SYNC_H
#define SYNC_H

#include <sys/mman.h>

#include "memory.h"

__attribute__((unused)) static const uint64_t MS = 1000000, LONG = 20000000000u;

__attribute__((unused)) static mpshm_block make(int strategy, int kind, uint32_t value,
                                                uint32_t max)
{
    mpshm_block b = {0};

    CHECK_EQ(mpshm_sync_create(strategy, kind, value, max, 0, &b), 0);
    CHECK_EQ(mpshm_sync_kind(&b), kind);
    return b;
}

/* Kill a child that waits for that. */
__attribute__((unused)) static void kill_and_reap(pid_t pid)
{
    CHECK_EQ(kill(pid, SIGKILL), 0);
    CHECK_EQ(reap(pid), -SIGKILL);
}

/* Memory that processes share and no lock guards. */
__attribute__((unused)) static volatile long *shared_counter(void)
{
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(at != MAP_FAILED);
    return at;
}

/* A child that runs `act` and then sleeps; it writes a byte in between. */
__attribute__((unused)) static pid_t child_that(void (*act)(mpshm_block *), mpshm_block *block)
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

#endif
