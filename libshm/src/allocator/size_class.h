/* Size classes: see size_class.c. */
#ifndef MPSHM_SIZE_CLASS_H
#define MPSHM_SIZE_CLASS_H

#include "segment/segment.h"

uint32_t mpshm__class_of(uint64_t nbytes);
uint64_t mpshm__class_bytes(uint32_t size_class);

/* The class of block `i`, and the bytes of that class. */
static inline uint32_t mpshm__block_class(const struct mpshm__segment *segment, uint32_t i)
{
    return atomic_load(&segment->metadata[i].size_class) % MPSHM__CLASSES;
}
static inline uint64_t mpshm__block_bytes(const struct mpshm__segment *segment, uint32_t i)
{
    return mpshm__class_bytes(mpshm__block_class(segment, i));
}

#endif
