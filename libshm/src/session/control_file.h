/* The control file of a session as a process opens, locks and maps it. */
#ifndef MPSHM_CONTROL_FILE_H
#define MPSHM_CONTROL_FILE_H

#include "session/session.h"

/* Open, lock and map the control file of `session`. The manager stays while any process has it
 * locked. `create` creates the file when it does not exist and no manager serves the session. */
int mpshm__session_open(struct mpshm__session *session, int create);
/* The same through a descriptor of the control file. Takes the descriptor over. */
int mpshm__session_open_fd(struct mpshm__session *session, int control_fd);
/* One more descriptor of the control file, locked through a description of its own. `wait` allows
 * to ask the manager for it. */
int mpshm__session_reopen(struct mpshm__session *session, int wait);
/* Map the control file through `control_fd` in place of the present mapping. */
int mpshm__session_remap(struct mpshm__session *session, int control_fd);
/* In the manager: sleep until no process is in the session. */
int mpshm__session_wait_empty(int control_fd);
/* Remove the session's names if no process is in it. */
void mpshm__session_remove_if_dead(const unsigned char *id);
/* Remove all such sessions of this user. */
void mpshm__remove_dead_sessions(void);

#endif
