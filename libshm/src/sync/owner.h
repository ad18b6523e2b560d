/* The owner of a lock: see layout/sync_block.h, Note [Owners]. */
#ifndef MPSHM_OWNER_H
#define MPSHM_OWNER_H

#include "layout/sync_block.h"
#include "segment/segment.h"
#include "session/session.h"

static inline struct mpshm__session *mpshm__session_of(const mpshm_block *block)
{
    return ((const struct mpshm__segment *)block->segment)->session;
}

/* The word of this process in a session. */
static inline uint32_t mpshm__me(const struct mpshm__session *session)
{
    if (session->slot < 0)
        return MPSHM__ANONYMOUS;
    const struct mpshm__slot *slot = &session->control->slots[session->slot];
    return atomic_load_explicit(&slot->incarnation, memory_order_relaxed) << MPSHM__OWNER_SHIFT |
           (uint32_t)session->slot;
}

/* 1 when the process of `owner` has ended. 0 when it lives, and when the answer would have to wait:
 * the caller asks again a moment later. */
int mpshm__owner_is_dead(struct mpshm__session *session, uint32_t owner);

#endif
