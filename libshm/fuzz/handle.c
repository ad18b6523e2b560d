/* Fuzz target: the parser of handles. A receive of any bytes fails or returns one of our
 * blocks.
 *
 * An input is a sequence of handles: each is a valid one that was distorted, with or without a
 * corrected checksum and with or without the right length. So most of them pass the first check,
 * which random bytes never would. */
#define _GNU_SOURCE
#include "fuzz.h"

enum { BLOCKS = 8, CHECK_AT = MPSHM_HANDLE_SIZE - 8 };

static mpshm_block blocks[BLOCKS];

static void prepare(void)
{
    static int done;

    if (done++)
        return;
    have_a_session();
    setenv("MPSHM_SEGMENT_BYTES", "16777216", 1);
    for (int i = 0; i < BLOCKS; i++) {
        uint64_t nbytes = (uint64_t)1 << (2 * i + 3);
        CHECK_EQ(mpshm_block_allocate(STRATEGIES[i % 2], nbytes, 0, &blocks[i]), 0);
        memset(blocks[i].data, i + 1, nbytes);
    }
}

/* The checksum is no secret; a forger can compute it. */
static void mend(unsigned char *handle)
{
    uint64_t h = 0xcbf29ce484222325u, word;

    for (size_t i = 0; i < CHECK_AT; i += sizeof(word)) {
        memcpy(&word, handle + i, sizeof(word));
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    memcpy(handle + CHECK_AT, &h, sizeof(h));
}

/* Each byte of our blocks tells which block it belongs to. */
static void check_bytes(const mpshm_block *got)
{
    const unsigned char *bytes = got->data;

    for (int i = 0; i < BLOCKS; i++)
        if (got->data == blocks[i].data) {
            CHECK_EQ(got->nbytes, blocks[i].nbytes);
            CHECK_EQ(bytes[0], i + 1);
            CHECK_EQ(bytes[got->nbytes - 1], i + 1);
            return;
        }
    CHECK(!"a handle brought a block that was never sent");
}

static void one_handle(struct choices *c)
{
    unsigned char good[MPSHM_HANDLE_SIZE], handle[MPSHM_HANDLE_SIZE + 64] = {0};
    unsigned which = choose(c, BLOCKS), how = choose(c, 8);
    size_t size = MPSHM_HANDLE_SIZE;
    mpshm_block got;

    CHECK_EQ(mpshm_block_send(&blocks[which], 0, good), 0);
    memcpy(handle, good, sizeof(good));
    /* The session's id is seldom changed, because each new one is a session to attach. */
    if (how & 1)
        distort(c, handle + MPSHM_ID_SIZE, MPSHM_HANDLE_SIZE - MPSHM_ID_SIZE);
    else if (how == 0 || (how == 2 && choose(c, 16) == 1))
        distort(c, handle, MPSHM_HANDLE_SIZE);
    if (how & 2)
        mend(handle);
    if (how == 4)
        size = choose(c, sizeof(handle));

    int rc = mpshm_block_receive(handle, size, how == 6 ? MPSHM_NOWAIT : 0, &got);
    fuzzed++;
    if (rc == 0) {
        check_bytes(&got);
        mpshm_block_release(&got);
    } else {
        CHECK(rc < 0 && rc > -4096);
    }
    /* The distorted handle may have received another message of this block, or the valid one. */
    rc = mpshm_block_receive(good, sizeof(good), 0, &got);
    CHECK(rc == 0 || rc == -ESTALE);
    if (rc == 0) {
        CHECK(got.data == blocks[which].data);
        mpshm_block_release(&got);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct choices c = {data, data + size};

    prepare();
    do
        one_handle(&c);
    while (c.at < c.end);
    for (int i = 0; i < BLOCKS; i++) {
        CHECK_EQ(((unsigned char *)blocks[i].data)[0], i + 1);
        CHECK_EQ(((unsigned char *)blocks[i].data)[blocks[i].nbytes - 1], i + 1);
    }
    return 0;
}
