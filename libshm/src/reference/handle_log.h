/* The handles that a process holds of messages that lie in no ring: see handle_log.c. */
#ifndef MPSHM_HANDLE_LOG_H
#define MPSHM_HANDLE_LOG_H

#include "reference/handle.h"
#include "session/session.h"

struct mpshm__segment;

/* Before the in-flight bit of a message is cleared: remove its note. */
void mpshm__handle_log_forget(const struct mpshm__segment *segment,
                              const struct mpshm__handle *handle);
/* The manager: clear the in-flight bits that a dead process has noted. */
void mpshm__handle_log_discard(struct mpshm__session *session, int slot);

#endif
