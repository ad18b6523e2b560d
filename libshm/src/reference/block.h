/* Blocks as a process uses them: see block.c. */
#ifndef MPSHM_BLOCK_H
#define MPSHM_BLOCK_H

#include "reference/reference.h"

enum {
    MPSHM__HEAP = 1 << 8, /* a flag of mpshm_block_allocate: the heap uses the block */
};
void mpshm__block_fill(mpshm_block *out, struct mpshm__segment *segment, uint32_t i);
/* One more reference to a block that this process has a reference to. -EAGAIN as flags allow. */
int mpshm__block_retain(struct mpshm__segment *segment, uint32_t i, int flags, mpshm_block *out);

#endif
