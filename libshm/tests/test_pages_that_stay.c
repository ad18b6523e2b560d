/* On a system whose madvise reports that it has removed pages, and has not: qemu-user does so. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/syscall.h>

#include "memory.h"

/* In the place of the C library's. */
int madvise(void *at, size_t size, int advice)
{
    return advice == MADV_REMOVE ? 0 : (int)syscall(SYS_madvise, at, size, advice);
}

/* Each size takes another way to zero: overwritten, purged on reuse, purged by empty_cache. */
static void a_zeroed_block_reads_as_zero(int strategy)
{
    static const uint64_t sizes[] = {100, 100000, 1 << 20, 64 << 20};

    for (unsigned k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++)
        for (int round = 0; round < 3; round++) {
            mpshm_block block;
            CHECK_EQ(mpshm_block_allocate(strategy, sizes[k], MPSHM_ZEROED, &block), 0);
            for (uint64_t i = 0; i < sizes[k]; i += 99)
                CHECK_EQ(((char *)block.data)[i], 0);
            memset(block.data, 0xa5, sizes[k]);
            mpshm_block_release(&block);
            if (round == 1)
                mpshm_empty_cache();
        }
}

int main(void)
{
    if (is_emulated())
        SKIP("valgrind has no locks that belong to an open file");
    set_up();
    run_in_a_session(a_zeroed_block_reads_as_zero);
    tear_down();
    return 0;
}
