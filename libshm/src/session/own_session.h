/* The session in which this process allocates. */
#ifndef MPSHM_OWN_SESSION_H
#define MPSHM_OWN_SESSION_H

#include "session/session.h"

int mpshm__is_own_session(const unsigned char *id);
/* Its id, which is set when this process is registered in it. */
const unsigned char *mpshm__own_id(void);
/* Attach it, if that was not done before. */
int mpshm__own_session(struct mpshm__session **session);

#endif
