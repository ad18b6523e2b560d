/* When, by which process and from which line a block was sent: see message_origin.c. */
#ifndef MPSHM_MESSAGE_ORIGIN_H
#define MPSHM_MESSAGE_ORIGIN_H

#include "session/session.h"

/* Note a message that makes a block in flight, and whether its writer has it in hand. Call it before
 * the message's bit is set. */
void mpshm__note_origin(const struct mpshm__session *session, const struct mpshm__segment *segment,
                        uint32_t i, int is_held);

#endif
