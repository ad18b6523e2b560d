/* The messages that a process has taken from a ring and not received yet: see taken.c. */
#ifndef MPSHM_TAKEN_H
#define MPSHM_TAKEN_H

#include "reference/handle.h"
#include "session/session.h"

struct mpshm__segment;

/* Before the in-flight bit of a message is cleared: remove its note. */
void mpshm__taken_forget(const struct mpshm__segment *segment, const struct mpshm__handle *handle);
/* The manager: clear the in-flight bits that a dead process has noted. */
void mpshm__taken_discard(struct mpshm__session *session, int slot);

#endif
