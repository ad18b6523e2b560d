/* From an address to its segment, without a lock: see address_range.c. */
#ifndef MPSHM_ADDRESS_RANGE_H
#define MPSHM_ADDRESS_RANGE_H

#include "segment/mapped_segment.h"

/* With the process lock held: let mpshm__segment_at() find the addresses of this segment, or no
 * longer. */
int mpshm__range_register(struct mpshm__segment *segment);
void mpshm__range_unregister(struct mpshm__segment *segment);
/* Call `act` for each registered segment. With the process lock held. */
void mpshm__for_each_registered_segment(void (*act)(struct mpshm__segment *segment));
/* Index + 1 of the last block that begins at or before offset `at`; 0 for none. */
uint32_t mpshm__index_before(struct mpshm__segment *segment, uint64_t at);

enum { MPSHM__RANGES = 256 };
extern struct mpshm__range {
    _Atomic uintptr_t end; /* 0: none */
    _Atomic uintptr_t begin;
    struct mpshm__segment *_Atomic segment;
    _Atomic uint32_t version;
} mpshm__ranges[MPSHM__RANGES];
extern _Atomic uint32_t mpshm__range_count;

/* The registered segment that contains `address`, or NULL. */
static inline struct mpshm__segment *mpshm__segment_at(const void *address)
{
    uintptr_t at = (uintptr_t)address;
    uint32_t n = atomic_load_explicit(&mpshm__range_count, memory_order_acquire);

    for (uint32_t r = 0; r < n; r++) {
        uint32_t version = atomic_load_explicit(&mpshm__ranges[r].version, memory_order_acquire);
        if (at >= atomic_load_explicit(&mpshm__ranges[r].begin, memory_order_acquire) &&
            at < atomic_load_explicit(&mpshm__ranges[r].end, memory_order_acquire)) {
            struct mpshm__segment *segment =
                atomic_load_explicit(&mpshm__ranges[r].segment, memory_order_acquire);
            if (version % 2 == 0 &&
                atomic_load_explicit(&mpshm__ranges[r].version, memory_order_relaxed) == version)
                return segment;
        }
    }
    return NULL;
}

static inline uint32_t *mpshm__page_entry(struct mpshm__segment *segment, const void *address)
{
    return &segment->index_at_page[(uint64_t)((const char *)address - segment->data) / MPSHM__PAGE];
}

#endif
