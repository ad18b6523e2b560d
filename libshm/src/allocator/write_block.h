/* What a process knows of the pages of its blocks: see write_block.c. */
#ifndef MPSHM_WRITE_BLOCK_H
#define MPSHM_WRITE_BLOCK_H

#include "segment/mapped_segment.h"

enum mpshm__writes { MPSHM__MAPPED, MPSHM__UNTOUCHED, MPSHM__UNMAPPED };

/* Note that a block is given out: with pages that nobody has touched, or with those of its last
 * user. */
void mpshm__note_pages(struct mpshm__segment *segment, uint32_t i, int are_new);
/* Copy bytes to the beginning of block `i`, `to`, which only this process knows. */
void mpshm__write_block(struct mpshm__segment *segment, uint32_t i, char *to, const void *from,
                        uint64_t nbytes);

#endif
