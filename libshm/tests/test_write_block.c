/* Bytes written into blocks: whatever was known of their pages, they arrive. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/resource.h>

#include "memory.h"
#include "allocator/write_block.h"
#include "segment/segment.h"

enum { LARGEST = 5 << 20 };

static unsigned char bytes[LARGEST];

static mpshm_block written(int strategy, uint64_t nbytes, int writes)
{
    static unsigned char salt;
    mpshm_block block;

    CHECK_EQ(mpshm_block_allocate(strategy, nbytes, 0, &block), 0);
    struct mpshm__segment *segment = block.segment;
    if (writes >= 0)
        segment->writes[block.index] = (uint8_t)writes;
    bytes[0] = ++salt;
    bytes[nbytes - 1] = salt;
    mpshm_block_write(&block, bytes, nbytes);
    CHECK(memcmp(block.data, bytes, nbytes) == 0);
    return block;
}

static int state_of(const mpshm_block *block)
{
    return ((struct mpshm__segment *)block->segment)->writes[block->index];
}

static void all_ways_write_the_same(void)
{
    static const uint64_t sizes[] = {1,     4096,          65535,           65536,
                                     65537, (1 << 17) + 5, (1 << 20) + 123, LARGEST};

    for (int strategy = 1; strategy <= 2; strategy++)
        for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
            for (int writes = -1; writes <= MPSHM__UNMAPPED; writes++) {
                mpshm_block block = written(strategy, sizes[s], writes);
                mpshm_block_release(&block);
            }
}

static void the_second_write_maps_what_the_first_did_not(void)
{
    mpshm_block block = written(MPSHM_FILE_DESCRIPTOR, 3 << 20, -1);

    CHECK_EQ(state_of(&block), MPSHM__UNMAPPED);
    mpshm_block_release(&block);
    block = written(MPSHM_FILE_DESCRIPTOR, 3 << 20, -1);
    CHECK_EQ(state_of(&block), MPSHM__MAPPED);
    mpshm_block_release(&block);
    mpshm_empty_cache();
    block = written(MPSHM_FILE_DESCRIPTOR, 3 << 20, -1); /* new pages once more */
    CHECK_EQ(state_of(&block), MPSHM__UNMAPPED);
    mpshm_block_release(&block);
}

static void a_block_that_was_written_in_place_is_mapped(void)
{
    mpshm_block block;

    mpshm_empty_cache();
    CHECK_EQ(mpshm_block_allocate(MPSHM_FILE_DESCRIPTOR, 2 << 20, 0, &block), 0);
    CHECK_EQ(state_of(&block), MPSHM__UNTOUCHED);
    memset(block.data, 1, 2 << 20);
    mpshm_block_release(&block);
    block = written(MPSHM_FILE_DESCRIPTOR, 2 << 20, -1);
    CHECK_EQ(state_of(&block), MPSHM__MAPPED);
    mpshm_block_release(&block);
}

/* SIGXFSZ would end the process. */
static void a_lowered_limit_on_files_changes_nothing(void)
{
    struct rlimit before, low;

    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    low = before;
    low.rlim_cur = 1 << 16;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
    mpshm_block block = written(MPSHM_FILE_DESCRIPTOR, LARGEST, MPSHM__UNTOUCHED);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    mpshm_block_release(&block);
}

static void a_closed_descriptor_changes_nothing_and_a_foreign_one_is_not_written(void)
{
    mpshm_block block = written(MPSHM_FILE_DESCRIPTOR, LARGEST, -1);
    int number = ((struct mpshm__segment *)block.segment)->fd.number;

    mpshm_block_release(&block);
    CHECK(number >= 0);
    close(number);
    block = written(MPSHM_FILE_DESCRIPTOR, LARGEST, MPSHM__UNTOUCHED);
    mpshm_block_release(&block);
    char path[80];
    snprintf(path, sizeof(path), "%s/foreign", runtime_dir);
    int foreign = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(foreign >= 0);
    if (foreign != number)
        CHECK_EQ(dup2(foreign, number), number);
    block = written(MPSHM_FILE_DESCRIPTOR, LARGEST, MPSHM__UNTOUCHED);
    mpshm_block_release(&block);
    CHECK_EQ(lseek(foreign, 0, SEEK_END), 0);
    if (foreign != number)
        close(number);
    close(foreign);
    unlink(path);
}

int main(void)
{
    set_up();
    pid_t pid = forked();
    if (pid != 0) {
        int status = reap(pid);
        CHECK_EQ(status, 0);
        tear_down();
        return 0;
    }
    for (unsigned i = 0; i < LARGEST; i++)
        bytes[i] = (unsigned char)(i * 2654435761u >> 24);
    all_ways_write_the_same();
    the_second_write_maps_what_the_first_did_not();
    a_block_that_was_written_in_place_is_mapped();
    a_lowered_limit_on_files_changes_nothing();
    a_closed_descriptor_changes_nothing_and_a_foreign_one_is_not_written();
    return 0;
}
