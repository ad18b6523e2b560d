/* The control file of a session as a process opens, locks and maps it. */
#ifndef MPSHM_SESSION_CONTROL_LOCK_H
#define MPSHM_SESSION_CONTROL_LOCK_H

#include "session/session.h"

/* Try once to open and lock the control file: a descriptor; -ENOENT: it was removed meanwhile. */
int mpshm__control_hold(const unsigned char *id, int create);
/* Map the locked file. An error leaves `fd` to the caller. */
int mpshm__control_enter(struct mpshm__session *session, int fd);
/* Lock and map the file behind a descriptor, which it takes over. */
int mpshm__session_open_fd(struct mpshm__session *session, int control_fd);
/* One more descriptor of the control file, which is not locked yet; without asking the manager. */
int mpshm__control_open_again(struct mpshm__session *session);
/* Lock the file through `fd`, which may be an error: `fd`, or an error and `fd` is closed. */
int mpshm__control_lock(int fd);
/* Map the control file through `control_fd` in place of the present mapping. */
int mpshm__session_remap(struct mpshm__session *session, int control_fd);
/* In the manager: sleep until no process is in the session. */
int mpshm__session_wait_empty(int control_fd);
/* Remove the session's names if no process is in it. */
void mpshm__session_remove_if_dead(const unsigned char *id);
/* Remove all such sessions of this user. */
void mpshm__remove_dead_sessions(void);

#endif
