/* The questions of a client to its manager. */
#ifndef MPSHM_CONNECTION_H
#define MPSHM_CONNECTION_H

#include "session/session.h"
#include "session/wire.h"

/* Open, lock and map the control file of `session`. The manager stays while any process has it
 * locked. `create` creates the file when it does not exist and no manager serves the session. */
int mpshm__session_open(struct mpshm__session *session, int create);
/* One more descriptor of the control file, locked through a description of its own. `wait` allows
 * to ask the manager for it. */
int mpshm__session_reopen(struct mpshm__session *session, int wait);
/* Connect, take a slot and introduce this process. After that it may hold references. */
int mpshm__session_register(struct mpshm__session *session);
/* Ask one question. It is asked again when the manager dies meanwhile. Needs no slot. */
int mpshm__ask(struct mpshm__session *session, struct mpshm__frame *frame, int *fd_out);
/* Register a segment: `known` when it has an entry already. */
int mpshm__offer_segment(struct mpshm__session *session, struct mpshm__segment *segment, int known);
enum { MPSHM__ATTEMPTS = 120 };
/* 1 when the error came from the connection and not from the question. Waits a moment first. */
int mpshm__worth_another(int err, int attempt);
void mpshm__disconnect(struct mpshm__session *session);
/* Start the next manager when this process has a slot and the last manager has died; otherwise no
 * process would notice deaths. Does nothing when a manager cannot be started. */
void mpshm__manager_replace(struct mpshm__session *session, int control_fd);
/* A connection for a child that has the slot, or -1 for none: the child's end, or -errno. Does not
 * wait. */
int mpshm__manager_connect_child(struct mpshm__session *session, int slot);
/* Ask a manager that serves the session for the control file: a descriptor; -ENOENT when there is
 * no manager. */
int mpshm__control_from_manager(struct mpshm__session *session);

#endif
