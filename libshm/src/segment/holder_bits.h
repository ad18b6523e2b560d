/* The holder bits of a block: which processes have a reference. See segment_file.h, Note
 * [References]. */
#ifndef MPSHM_HOLDER_H
#define MPSHM_HOLDER_H

#include "segment/segment.h"

static inline _Atomic uint64_t *mpshm__holder_word(const struct mpshm__segment *segment, uint32_t i,
                                                   int slot)
{
    return slot < MPSHM__NEAR ? &segment->blocks[i].holders[slot / 64]
                              : &segment->far[i].holders[(slot - MPSHM__NEAR) / 64];
}
static inline void mpshm__add_holder(const struct mpshm__segment *segment, uint32_t i, int slot)
{
    atomic_fetch_or(mpshm__holder_word(segment, i, slot), (uint64_t)1 << (slot % 64));
}
static inline void mpshm__remove_holder(const struct mpshm__segment *segment, uint32_t i, int slot)
{
    atomic_fetch_and(mpshm__holder_word(segment, i, slot), ~((uint64_t)1 << (slot % 64)));
}
/* Clear the bits of a block that no other process knows. */
void mpshm__clear_holders(const struct mpshm__control *control,
                          const struct mpshm__segment *segment, uint32_t i);
/* The bits of the 64 slots that begin at 64 x `word`. */
uint64_t mpshm__holders(const struct mpshm__control *control, const struct mpshm__segment *segment,
                        uint32_t i, int word);

#endif
