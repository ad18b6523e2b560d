/* References to blocks: counted, released, and the free of a block that has none. See
 * segment_file.h, Note [References]. */
#include "allocator/cache.h"
#include "allocator/purge.h"
#include "allocator/size_class.h"
#include "reference/message_timeout.h"
#include "reference/reference.h"
#include "segment/holder_bits.h"

/* Which messages keep a block alive. */
enum messages { ALL_MESSAGES, MESSAGES_IN_TIME };

static int has_references(const struct mpshm__control *control,
                          const struct mpshm__segment *segment, uint32_t i, uint32_t generation,
                          enum messages which)
{
    const struct mpshm__block *block = &segment->blocks[i];

    /* In this order, because a receive sets its holder bit before it clears its message. */
    if (atomic_load(&block->in_flight) != 0 && which == ALL_MESSAGES)
        return 1;
    if (atomic_load(&block->in_flight_overflow) != 0)
        return 1;
    for (int w = 0; w < MPSHM__NEAR_WORDS; w++)
        if (atomic_load(&block->holders[w]) != 0)
            return 1;
    /* Set before the first process with a far slot has a reference: see process_slot.c. */
    if (atomic_load(&control->far) != 0)
        for (int w = 0; w < MPSHM__FAR_WORDS; w++)
            if (atomic_load(&segment->far[i].holders[w]) != 0)
                return 1;
    /* After the holders: see message_timeout.c, Note [Messages that expire]. */
    return which == MESSAGES_IN_TIME && atomic_load(&block->in_flight) != 0 &&
           !mpshm__all_expired(segment, i, generation);
}

static void push_remote_free(struct mpshm__segment *segment, uint32_t i)
{
    struct mpshm__segment_header *h = segment->header;
    uint64_t head = atomic_load(&h->remote_free);

    /* Only the owner takes from this list, and it takes the whole list, so no other process
     * follows a link that has changed. */
    do
        atomic_store(&segment->blocks[i].in_flight, head);
    while (!atomic_compare_exchange_weak(&h->remote_free, &head, (uint64_t)i + 1));
}

static void free_without(enum messages which, struct mpshm__control *control,
                         struct mpshm__segment *segment, uint32_t i)
{
    struct mpshm__block *block = &segment->blocks[i];
    struct mpshm__segment_header *h = segment->header;
    uint64_t state = atomic_load(&block->state);

    do {
        if (!(state & MPSHM__LIVE) ||
            has_references(control, segment, i, MPSHM__GENERATION(state), which))
            return;
        /* fails, and repeats the check, when another process took a reference meanwhile */
    } while (!atomic_compare_exchange_strong(&block->state, &state,
                                             (uint64_t)(MPSHM__GENERATION(state) + 1)
                                                 << MPSHM__GENERATION_SHIFT));

    /* From here on the block is ours, because only one process wins the exchange. */
    uint64_t size = mpshm__block_bytes(segment, i);
    int orphan = (int)atomic_load(&h->orphan);
    uint64_t limit = atomic_load(&control->cache_limit);

    if (size >= MPSHM__SLAB_LIMIT &&
        (orphan || atomic_load(&control->cached_bytes) + size > limit) &&
        mpshm__purge_pages(segment, i)) {
        atomic_store(&segment->metadata[i].page_state, MPSHM__PURGED);
    } else {
        /* Counted first: a process that is killed in between leaves the sum too high and not too
         * low. */
        mpshm__cache_add(control, segment, size);
        atomic_store(&segment->metadata[i].page_state, MPSHM__DIRTY);
        mpshm__cache_wake(control);
    }
    /* A process that is killed before this line leaves a free block that is in no list. Its
     * owner loses it until the segment goes: a leak of address space and of at most one dirty
     * block. */
    push_remote_free(segment, i);
}

void mpshm__try_free(struct mpshm__control *control, struct mpshm__segment *segment, uint32_t i)
{
    free_without(ALL_MESSAGES, control, segment, i);
}

void mpshm__free_expired(struct mpshm__control *control, struct mpshm__segment *segment)
{
    for (uint32_t i = 0, used = mpshm__used(segment); i < used; i++) {
        const struct mpshm__block *block = &segment->blocks[i];
        if (atomic_load_explicit(&block->state, memory_order_relaxed) & MPSHM__LIVE &&
            atomic_load_explicit(&block->in_flight, memory_order_relaxed) != 0)
            free_without(MESSAGES_IN_TIME, control, segment, i);
    }
}

/* -ESTALE when the message was received before. */
int mpshm__clear_in_flight(struct mpshm__block *block, uint32_t message)
{
    if (message < MPSHM__NO_BIT) {
        uint64_t bit = (uint64_t)1 << message;
        return atomic_fetch_and(&block->in_flight, ~bit) & bit ? 0 : -ESTALE;
    }
    uint32_t n = atomic_load(&block->in_flight_overflow);
    do {
        if (n == 0)
            return -ESTALE;
    } while (!atomic_compare_exchange_weak(&block->in_flight_overflow, &n, n - 1));
    return 0;
}

void mpshm__clear_dead_holders(struct mpshm__control *control, struct mpshm__segment *segment,
                               const uint64_t gone[MPSHM__HOLDER_WORDS])
{
    uint32_t used = mpshm__used(segment);
    int far = 0;

    for (int w = MPSHM__NEAR_WORDS; w < MPSHM__HOLDER_WORDS; w++)
        far |= gone[w] != 0;
    far = far && atomic_load(&control->far);
    for (uint32_t i = 0; i < used; i++) {
        struct mpshm__block *block = &segment->blocks[i];
        if (!(atomic_load_explicit(&block->state, memory_order_relaxed) & MPSHM__LIVE))
            continue;
        for (int w = 0; w < MPSHM__NEAR_WORDS; w++)
            if (atomic_load_explicit(&block->holders[w], memory_order_relaxed) & gone[w])
                atomic_fetch_and(&block->holders[w], ~gone[w]);
        uint16_t writer = atomic_load_explicit(&segment->sent[i].writer, memory_order_relaxed);
        if (writer != 0 && writer <= MPSHM__SLOTS &&
            gone[(writer - 1) / 64] >> (writer - 1) % 64 & 1) {
            atomic_store(&segment->sent[i].writer, 0);
            atomic_store(&block->in_flight, 0); /* of its only message: see handle_log.c */
        }
        for (int w = 0; far && w < MPSHM__FAR_WORDS; w++)
            atomic_fetch_and(&segment->far[i].holders[w], ~gone[MPSHM__NEAR_WORDS + w]);
        /* This also frees blocks that a dead process released and did not live to free. */
        mpshm__try_free(control, segment, i);
    }
}

/* ---- the references of this process ---- */

void mpshm__release(struct mpshm__session *session, struct mpshm__segment *segment, uint32_t i)
{
    if (--segment->local_refs[i] == 0) {
        segment->retained_blocks--;
        mpshm__remove_holder(segment, i, session->slot);
        mpshm__try_free(session->control, segment, i);
    }
}

void mpshm__release_block(const mpshm_block *block)
{
    struct mpshm__segment *segment = block->segment;

    mpshm__release(segment->session, segment, block->index);
}
