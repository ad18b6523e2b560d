/* Pages of free blocks given back to the system: see purge.c. */
#ifndef MPSHM_PURGE_H
#define MPSHM_PURGE_H

#include "segment/segment.h"

/* 1 when the pages of the free block `i` have gone and read as zero; 0 when they are as before. The
 * page state is left to the caller. */
int mpshm__purge_pages(struct mpshm__segment *segment, uint32_t i);
/* In the manager: purge a free and dirty block, even while its owner lives. Returns the bytes. */
uint64_t mpshm__purge_free(struct mpshm__control *control, struct mpshm__segment *segment,
                           uint32_t i);
/* In the manager: finish the purges during which the previous manager was killed. */
void mpshm__purge_finish(struct mpshm__control *control, struct mpshm__segment *segment);
/* Purge a slab that has no block in use. 1 when its pages have gone. */
int mpshm__purge_slab(struct mpshm__control *control, struct mpshm__segment *segment,
                      const struct mpshm__slab *slab);
/* Purge a segment that has no block in use and never will. */
void mpshm__purge_all(struct mpshm__segment *segment);

#endif
