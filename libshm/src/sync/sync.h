/* The blocks that locks live in: see sync.c. */
#ifndef MPSHM_SYNC_H
#define MPSHM_SYNC_H

#include <stdint.h>

/* 1 when a block with these bytes is that of a lock. */
int mpshm__is_sync(const void *data, uint64_t nbytes);

#endif
