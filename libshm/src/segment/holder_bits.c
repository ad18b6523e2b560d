/* The holder bits of a block, near and far. */
#include "segment/holder_bits.h"

void mpshm__clear_holders(const struct mpshm__control *control,
                          const struct mpshm__segment *segment, uint32_t i)
{
    for (int w = 0; w < MPSHM__NEAR_WORDS; w++)
        atomic_store_explicit(&segment->blocks[i].holders[w], 0, memory_order_relaxed);
    if (atomic_load_explicit(&control->far, memory_order_relaxed))
        for (int w = 0; w < MPSHM__FAR_WORDS; w++)
            atomic_store_explicit(&segment->far[i].holders[w], 0, memory_order_relaxed);
}

uint64_t mpshm__holders(const struct mpshm__control *control, const struct mpshm__segment *segment,
                        uint32_t i, int word)
{
    if (word < MPSHM__NEAR_WORDS)
        return atomic_load(&segment->blocks[i].holders[word]);
    return atomic_load(&control->far)
               ? atomic_load(&segment->far[i].holders[word - MPSHM__NEAR_WORDS])
               : 0;
}
