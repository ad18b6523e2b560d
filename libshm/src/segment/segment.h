/* Segments: made, mapped, checked. */
#ifndef MPSHM_SEGMENT_H
#define MPSHM_SEGMENT_H

#include "segment/mapped_segment.h"

enum { MPSHM__SEGMENT_LEAST = 1 << 20 }; /* bytes of data, unless the caller asks for less */
/* Create a segment with about `size` bytes of data, and at least `need`. No other process knows it
 * yet. */
int mpshm__segment_create(int strategy, uint64_t size, uint64_t need, const unsigned char *session,
                          struct mpshm__slot *maker, struct mpshm__segment **out);
/* Map the segment behind `fd`. Its header is trusted only after it was checked against its entry in
 * the control file. `user` owns the session. */
int mpshm__segment_map(int fd, uint32_t index, const struct mpshm__segment_entry *entry,
                       const unsigned char *session, uint32_t user, struct mpshm__segment **out);
/* Copy the bytes of block `i` from the file behind `fd` without mapping it, for a message of this
 * generation: -ESTALE when the block was freed, also meanwhile. */
int mpshm__segment_read(int fd, const struct mpshm__segment_entry *entry,
                        const unsigned char *session, uint32_t user, uint32_t i,
                        uint32_t generation, void *data, uint64_t nbytes);
void mpshm__segment_unmap(struct mpshm__segment *segment);
/* Create the private state of an owner: free lists, all empty. */
int mpshm__segment_become_owner(struct mpshm__segment *segment);
/* Let core dumps include what was allocated so far, if MPSHM_DUMP=1. */
void mpshm__segment_dump(struct mpshm__segment *segment);

#endif
