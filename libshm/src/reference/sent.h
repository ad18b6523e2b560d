/* When, by which process and from which line a block was sent: see sent.c. */
#ifndef MPSHM_SENT_H
#define MPSHM_SENT_H

#include "session/session.h"

/* Note a message that makes a block in flight. Call it before the message's bit is set. */
void mpshm__note_sent(const struct mpshm__session *session, const struct mpshm__segment *segment,
                      uint32_t i);

#endif
