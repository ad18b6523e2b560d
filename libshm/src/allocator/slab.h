/* Slabs: runs of small blocks of one class. */
#ifndef MPSHM_SLAB_H
#define MPSHM_SLAB_H

#include "segment/segment.h"

/* The size of the `nth` slab of a segment. */
uint64_t mpshm__slab_bytes(uint64_t nth);
/* Append a slab to the owner's list. 0 or -ENOMEM. */
int mpshm__slab_add(struct mpshm__segment *segment, const struct mpshm__slab *slab);
/* Reconstruct the `nth` slab, which begins with block `first`. 0, or -EBADMSG when the tables do
 * not describe one. */
int mpshm__slab_from_table(const struct mpshm__segment *segment, uint32_t first, uint64_t nth,
                           struct mpshm__slab *slab);

#endif
