/* Reserved memory: a full file system is an error code and not a SIGBUS. */
#ifndef MPSHM_RESERVE_H
#define MPSHM_RESERVE_H

#include "segment/mapped_segment.h"

/* Reserve [at, at + size) of a file: 0, -ENOSPC, -ENOMEM or -EFBIG. A failed call frees the part
 * that it had reserved, so the range must not be in use. */
int mpshm__reserve(int fd, uint64_t at, uint64_t size);
/* The same in an own segment, even when the program has closed its descriptor. */
int mpshm__segment_reserve(struct mpshm__segment *segment, uint64_t at, uint64_t size);
/* 0 when this process may create a file of `size` bytes (ulimit -f), otherwise -EFBIG. Call it
 * first, because the kernel refuses with a signal that kills (SIGXFSZ). */
int mpshm__file_size_allowed(uint64_t size);

#endif
