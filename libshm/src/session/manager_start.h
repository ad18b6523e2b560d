/* Find the manager of a session, or start it: see manager_start.c. */
#ifndef MPSHM_MANAGER_START_H
#define MPSHM_MANAGER_START_H

#include "session/session.h"

/* 1 when a process listens at the session's path. */
int mpshm__manager_is_there(struct mpshm__session *session);
/* Connect to the manager. `may_start` starts one when none listens. */
int mpshm__manager_connect(struct mpshm__session *session, int may_start);
/* Connect without waiting. */
int mpshm__manager_try(struct mpshm__session *session);
/* Listen at the session's path in place of any former socket. Returns a descriptor. */
int mpshm__manager_listen(const unsigned char *id);
/* Listen for processes of the session that are another user now: a descriptor or -errno. */
int mpshm__manager_listen_for_others(const unsigned char *id);

#endif
