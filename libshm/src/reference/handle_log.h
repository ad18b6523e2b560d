/* The handles that a process holds of messages that lie in no ring: see handle_log.c. */
#ifndef MPSHM_HANDLE_LOG_H
#define MPSHM_HANDLE_LOG_H

#include "reference/handle.h"
#include "session/session.h"

struct mpshm__segment;

/* The sender of a message for a ring, before it sets the bit: a note, or NULL, which the others
 * take; before it tries to set a bit: which it is; and once it is set. */
struct mpshm__logged *mpshm__handle_log_note(const struct mpshm__handle *handle);

/* A message among those of all lives of its block. */
static inline uint32_t mpshm__message_of(const struct mpshm__handle *handle)
{
    return (uint32_t)handle->generation << 8 | handle->message;
}

static inline void mpshm__handle_log_choose(struct mpshm__logged *note,
                                            const struct mpshm__handle *handle)
{
    if (note != NULL)
        atomic_store_explicit(&note->message, mpshm__message_of(handle), memory_order_relaxed);
}

static inline void mpshm__handle_log_hold(struct mpshm__logged *note)
{
    if (note != NULL)
        atomic_store_explicit(&note->state, MPSHM__HANDLE_HELD, memory_order_release);
}

/* The receiver: remove the note of a message, if it has one, and clear its in-flight bit. -ESTALE
 * when the message was received before. */
int mpshm__handle_log_receive(struct mpshm__segment *segment, const struct mpshm__handle *handle);
/* The manager: clear the in-flight bits that a dead process has noted. */
void mpshm__handle_log_discard(struct mpshm__session *session, int slot);

#endif
