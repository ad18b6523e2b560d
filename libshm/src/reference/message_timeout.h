/* Messages that expire: see message_timeout.c. */
#ifndef MPSHM_MESSAGE_TIMEOUT_H
#define MPSHM_MESSAGE_TIMEOUT_H

#include "reference/handle.h"
#include "session/session.h"

/* The deadline of a message that does not expire. */
#define MPSHM__NEVER UINT32_MAX

/* The deadline of a message that this process sends now, as a tick. */
uint32_t mpshm__message_deadline(void);
/* Note the deadline of a message of block `i`. Call it before the message's bit is set, with a
 * reference to the block. */
void mpshm__note_deadline(struct mpshm__control *control, const struct mpshm__segment *segment,
                          uint32_t i, uint32_t generation, uint32_t deadline);
/* 1 when the message cannot be received any more. */
int mpshm__has_expired(const struct mpshm__handle *handle);
/* 1 when all messages of block `i` have expired. */
int mpshm__all_expired(const struct mpshm__segment *segment, uint32_t i, uint32_t generation);

#endif
