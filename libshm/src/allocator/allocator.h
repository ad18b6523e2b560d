/* Allocation in an own segment: see allocator.c. */
#ifndef MPSHM_ALLOCATOR_H
#define MPSHM_ALLOCATOR_H

#include "segment/segment.h"

/* The sources of a block, in the order in which a process tries each of them in all its segments.
 */
enum mpshm__source {
    MPSHM__FROM_DIRTY, /* a free block with its pages, unless too much would have to be zeroed */
    MPSHM__FROM_ZERO,  /* a free block without pages */
    MPSHM__FROM_ANY,   /* a free block with its pages, which are given back if they must be zero */
    MPSHM__FROM_FRESH_SPACE, /* the unused end of the segment; first, it would fill with free blocks */
};
/* 0, -EXFULL when that source has no block, or another -errno. */
int mpshm__allocate_in(struct mpshm__control *control, struct mpshm__segment *segment,
                       enum mpshm__source source, uint64_t nbytes, int zeroed, uint32_t *out);
/* Put the free block `i` into the free list that its page state asks for. */
void mpshm__list_block(struct mpshm__segment *segment, uint32_t i);
/* Move the blocks that other processes freed to the free lists. */
void mpshm__drain_remote_free(struct mpshm__segment *segment);
/* Purge the free blocks of an own segment. */
void mpshm__trim(struct mpshm__control *control, struct mpshm__segment *segment);
/* Rebuild the owner's private state in a segment whose owner is dead: see adopt_segment.c. */
int mpshm__segment_adopt(struct mpshm__control *control, struct mpshm__segment *segment);

#endif
