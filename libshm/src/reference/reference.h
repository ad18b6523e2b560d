/* References to blocks: see reference.c, and segment_file.h, Note [References]. */
#ifndef MPSHM_REFERENCE_H
#define MPSHM_REFERENCE_H

#include "segment/holder_bits.h"
#include "session/session.h"

/* Free block `i` if it has no references. Exactly one process frees a block. */
void mpshm__try_free(struct mpshm__control *control, struct mpshm__segment *segment, uint32_t i);
/* Free each block of a segment whose messages have all expired and that no process holds. */
void mpshm__free_expired(struct mpshm__control *control, struct mpshm__segment *segment);
/* For dead processes, one bit per slot: clear their bits and the messages that they have not sent,
 * in each block of a segment, and free the blocks without references. */
void mpshm__clear_dead_holders(struct mpshm__control *control, struct mpshm__segment *segment,
                               const uint64_t gone[MPSHM__HOLDER_WORDS]);

/* Clear the in-flight bit of a message: 0, or -ESTALE when it was received before. */
int mpshm__clear_in_flight(struct mpshm__block *block, uint32_t message);

/* The references of this process. The first sets its bit, the last clears it. With the process
 * lock held. */
static inline void mpshm__retain(struct mpshm__session *session, struct mpshm__segment *segment,
                                 uint32_t i)
{
    if (segment->local_refs[i]++ == 0) {
        segment->retained_blocks++;
        mpshm__add_holder(segment, i, session->slot);
    }
}
void mpshm__release(struct mpshm__session *session, struct mpshm__segment *segment, uint32_t i);
void mpshm__release_block(const mpshm_block *block);

/* In local_refs[]: a fork has made this memory private to the process, and the block is never
 * released. */
#define MPSHM__PRIVATE 0x80000000u

#endif
