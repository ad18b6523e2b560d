/* Blocks in one process: sizes, alignment, zeroes, reuse, valid and invalid handles. */
#define _GNU_SOURCE
#include "memory.h"
#include "platform/linux/memory_size.h"

static mpshm_block make(int strategy, uint64_t nbytes, int zeroed)
{
    mpshm_block b = {0};

    CHECK_EQ(mpshm_block_allocate(strategy, nbytes, zeroed, &b), 0);
    CHECK_EQ(b.nbytes, nbytes);
    return b;
}

static void blocks_of_all_sizes_are_apart_and_keep_their_bytes(int strategy)
{
    enum { N = 300 };
    static mpshm_block blocks[N];

    for (int i = 0; i < N; i++) {
        uint64_t nbytes = (uint64_t)i * i * 17;
        blocks[i] = make(strategy, nbytes, i % 2);
        CHECK_EQ((uintptr_t)blocks[i].data % 64, 0);
        for (uint64_t k = 0; i % 2 && k < nbytes; k++)
            CHECK_EQ(((unsigned char *)blocks[i].data)[k], 0);
        memset(blocks[i].data, i, nbytes);
    }
    for (int i = 0; i < N; i++)
        for (uint64_t k = 0; k < blocks[i].nbytes; k++)
            CHECK_EQ(((unsigned char *)blocks[i].data)[k], (unsigned char)i);
    for (int i = 0; i < N; i++)
        mpshm_block_release(&blocks[i]);
    mpshm_block_release(&blocks[0]); /* twice is allowed */
    CHECK_EQ(live_bytes(), 0);
}

static void freed_memory_is_reused_and_zeroed_when_asked(int strategy)
{
    static const uint64_t SIZES[] = {10, 5000, 100000, 3 << 20};

    for (int i = 0; i < 4; i++) {
        mpshm_block a = make(strategy, SIZES[i], 0);
        void *at = a.data;
        memset(at, 0xff, SIZES[i]);
        mpshm_block_release(&a);
        a = make(strategy, SIZES[i], 0);
        CHECK(a.data == at);
        memset(at, 0xff, SIZES[i]);
        mpshm_block_release(&a);
        a = make(strategy, SIZES[i], 1);
        for (uint64_t k = 0; k < SIZES[i]; k++)
            CHECK_EQ(((unsigned char *)a.data)[k], 0);
        mpshm_block_release(&a);
    }
}

static void the_cache_is_counted_and_can_be_emptied(int strategy)
{
    mpshm_block a = make(strategy, 8 << 20, 0), b = make(strategy, 1000, 0);

    memset(a.data, 1, a.nbytes);
    mpshm_empty_cache();
    CHECK_EQ(cached_bytes(), 0);
    mpshm_block_release(&a);
    mpshm_block_release(&b);
    /* When the machine's memory is scarce, the manager gives it back at once. */
    CHECK(cached_bytes() >= (8 << 20) + 1000 || mpshm__memory_available() < (uint64_t)3 << 30);
    mpshm_empty_cache();
    CHECK_EQ(cached_bytes(), 0);
    a = make(strategy, 8 << 20, 1);
    for (int k = 0; k < 8 << 20; k += 4096)
        CHECK_EQ(((char *)a.data)[k], 0);
    memset(a.data, 1, a.nbytes);
    b = make(strategy, 1000, 1);
    CHECK_EQ(((char *)b.data)[999], 0);
    mpshm_block_release(&a);
    mpshm_block_release(&b);
}

static void a_handle_received_by_its_sender_is_the_same_memory(int strategy)
{
    unsigned char handle[MPSHM_HANDLE_SIZE];
    mpshm_block a = make(strategy, 1234, 1), b;

    CHECK_EQ(mpshm_block_others(&a), 0);
    CHECK_EQ(mpshm_block_send(&a, 0, handle), 0);
    CHECK_EQ(mpshm_block_others(&a), 1);
    CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &b), 0);
    CHECK(a.data == b.data);
    CHECK_EQ(mpshm_block_others(&a), 0);
    CHECK_EQ(live_bytes(), 1234);
    mpshm_block_release(&a);
    ((char *)b.data)[0] = 1;
    CHECK_EQ(live_bytes(), 1234);
    mpshm_block_release(&b);
    CHECK_EQ(live_bytes(), 0);
}

static void a_message_keeps_its_block_alive(int strategy)
{
    unsigned char handle[MPSHM_HANDLE_SIZE];
    mpshm_block a = make(strategy, 100, 1), b, c;
    mpshm_stats stats;

    memset(a.data, 42, 100);
    mpshm_block_send(&a, 0, handle);
    mpshm_block_release(&a);
    mpshm_get_stats(&stats);
    CHECK_EQ(stats.in_flight_bytes, 100);
    c = make(strategy, 100, 1);
    CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &b), 0);
    CHECK_EQ(((char *)b.data)[99], 42);
    CHECK(b.data != c.data);
    mpshm_block_release(&b);
    mpshm_block_release(&c);
    mpshm_get_stats(&stats);
    CHECK_EQ(stats.in_flight_bytes, 0);
}

static void a_handle_is_valid_once(int strategy)
{
    unsigned char first[MPSHM_HANDLE_SIZE], second[MPSHM_HANDLE_SIZE];
    mpshm_block a = make(strategy, 100, 1), b, c;

    mpshm_block_send(&a, 0, first);
    mpshm_block_send(&a, 0, second);
    CHECK_EQ(mpshm_block_receive(first, sizeof(first), 0, &b), 0);
    CHECK_EQ(mpshm_block_receive(first, sizeof(first), 0, &c), -ESTALE); /* replayed */
    CHECK_EQ(mpshm_block_receive(second, sizeof(second), 0, &c), 0);
    mpshm_block_release(&a), mpshm_block_release(&b), mpshm_block_release(&c);
    CHECK_EQ(mpshm_block_receive(second, sizeof(second), 0, &c), -ESTALE); /* freed */
    a = make(strategy, 100, 1);
    CHECK_EQ(mpshm_block_receive(second, sizeof(second), 0, &c), -ESTALE); /* and reused */
    mpshm_block_release(&a);
}

static void more_messages_than_bits_are_all_received(int strategy)
{
    enum { N = 1000 };
    static unsigned char handles[N][MPSHM_HANDLE_SIZE];
    mpshm_block a = make(strategy, 64, 1), b;

    for (int i = 0; i < N; i++)
        mpshm_block_send(&a, 0, handles[i]);
    CHECK_EQ(mpshm_block_others(&a), N);
    mpshm_block_release(&a);
    for (int i = N - 1; i >= 0; i--) {
        CHECK_EQ(mpshm_block_receive(handles[i], MPSHM_HANDLE_SIZE, 0, &b), 0);
        mpshm_block_release(&b);
    }
    CHECK_EQ(mpshm_block_receive(handles[0], MPSHM_HANDLE_SIZE, 0, &b), -ESTALE);
    CHECK_EQ(live_bytes(), 0);
}

static void every_damaged_byte_is_noticed(int strategy)
{
    unsigned char handle[MPSHM_HANDLE_SIZE], bad[MPSHM_HANDLE_SIZE];
    mpshm_block a = make(strategy, 100, 1), b;

    mpshm_block_send(&a, 0, handle);
    for (size_t i = 0; i < sizeof(handle); i++)
        for (int bit = 0; bit < 8; bit++) {
            memcpy(bad, handle, sizeof(bad));
            bad[i] ^= (unsigned char)(1 << bit);
            CHECK_EQ(mpshm_block_receive(bad, sizeof(bad), 0, &b), -EBADMSG);
        }
    for (size_t len = 0; len < sizeof(handle); len++)
        CHECK_EQ(mpshm_block_receive(handle, len, 0, &b), -EBADMSG);
    CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &b), 0);
    mpshm_block_release(&a), mpshm_block_release(&b);
}

static void absurd_sizes_are_refused(int strategy)
{
    mpshm_block b;

    for (int bits = 40; bits < 64; bits++) {
        int err = mpshm_block_allocate(strategy, (uint64_t)1 << bits, 0, &b);
        CHECK(err == -ENOMEM || err == -ENOSPC || err == -EFBIG);
    }
    CHECK_EQ(mpshm_block_allocate(99, 1, 0, &b), -EINVAL);
}

static void an_address_leads_to_its_block(int strategy)
{
    mpshm_block a = make(strategy, 1000, 0), b = make(strategy, 100000, 0), found = {0};
    int elsewhere;

    CHECK_EQ(mpshm_block_find((char *)a.data + 999, 0, &found), 0);
    CHECK(found.data == a.data);
    CHECK_EQ(found.nbytes, 1000);
    mpshm_block_release(&a);
    CHECK_EQ(live_bytes(), 101000); /* the found reference keeps it, too */
    CHECK_EQ(mpshm_block_find((char *)found.data + 1000, MPSHM_NOWAIT, &a), -ENOENT);
    void *was = found.data;
    mpshm_block_release(&found);
    CHECK_EQ(mpshm_block_find(was, 0, &found), -ENOENT);
    CHECK_EQ(mpshm_block_find(&elsewhere, 0, &found), -ENOENT);
    CHECK_EQ(mpshm_block_find(b.data, 0, &found), 0);
    mpshm_block_release(&b);
    mpshm_block_release(&found);
    CHECK_EQ(live_bytes(), 0);
}

static void the_cost_of_the_first_and_of_the_next_block(void)
{
    mpshm_stats stats;

    mpshm_get_stats(&stats);
    CHECK(stats.segments <= 6); /* three of each strategy, each as large as all before */
    CHECK(stats.descriptors <= 4 + stats.segments && stats.mappings <= 2 + stats.segments);
}

int main(void)
{
    set_up();
    pid_t pid = forked();
    if (pid != 0) { /* this process uses no blocks, and sees what its children leave */
        int status = reap(pid);
        CHECK_EQ(status, 0);
        tear_down();
        return 0;
    }
    for (int i = 0; i < 2; i++) {
        int s = STRATEGIES[i];
        blocks_of_all_sizes_are_apart_and_keep_their_bytes(s);
        freed_memory_is_reused_and_zeroed_when_asked(s);
        the_cache_is_counted_and_can_be_emptied(s);
        a_handle_received_by_its_sender_is_the_same_memory(s);
        a_message_keeps_its_block_alive(s);
        a_handle_is_valid_once(s);
        more_messages_than_bits_are_all_received(s);
        every_damaged_byte_is_noticed(s);
        absurd_sizes_are_refused(s);
        an_address_leads_to_its_block(s);
    }
    the_cost_of_the_first_and_of_the_next_block();
    return 0;
}
