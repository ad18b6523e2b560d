/* The choice of a segment for a block: see grow.c. */
#ifndef MPSHM_GROW_H
#define MPSHM_GROW_H

#include "session/session.h"

/* Allocate a block in a segment of the session; adopt or create a segment if none has space. */
int mpshm__find_room(struct mpshm__session *session, int strategy, uint64_t nbytes, int flags,
                     struct mpshm__segment **out, uint32_t *i);
/* The bytes of data for the next segment of a process that has `total` bytes already. */
uint64_t mpshm__next_segment_size(uint64_t total);
/* `strategy`, or file_system where this system refuses memfds. */
int mpshm__usable_strategy(int strategy);

#endif
