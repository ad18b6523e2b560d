/* The cache: free memory whose pages are kept, counted per segment and per session. */
#ifndef MPSHM_CACHE_H
#define MPSHM_CACHE_H

#include "segment/segment.h"

void mpshm__cache_add(struct mpshm__control *control, struct mpshm__segment *segment,
                      uint64_t size);
void mpshm__cache_take(struct mpshm__control *control, struct mpshm__segment *segment,
                       uint64_t size);
/* Replace the segment's count by a new one, unless it changed from `before` meanwhile. */
void mpshm__cache_recount(struct mpshm__control *control, struct mpshm__segment *segment,
                          uint64_t before, uint64_t counted);
/* Wake the manager if it sleeps while nothing is cached: see cache_limit.c. */
void mpshm__cache_wake(struct mpshm__control *control);

#endif
