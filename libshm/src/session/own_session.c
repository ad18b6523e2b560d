/* The session in which this process allocates: its id, and how a child inherits it. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/failed_call.h"
#include "base/process_lock.h"
#include "platform/platform.h"
#include "session/connection.h"
#include "session/control_lock.h"
#include "session/fork.h"
#include "session/own_session.h"

static unsigned char own_id[MPSHM_ID_SIZE];
static int own_is_set;

static int own_id_once(void)
{
    if (!own_is_set && MPSHM__RETRY(getrandom(own_id, sizeof(own_id), 0)) != (long)sizeof(own_id))
        return mpshm__failed("getrandom");
    own_is_set = 1;
    return 0;
}

int mpshm__is_own_session(const unsigned char *id)
{
    return own_is_set && memcmp(own_id, id, MPSHM_ID_SIZE) == 0;
}

const unsigned char *mpshm__own_id(void)
{
    return own_id;
}

int mpshm_own_session(unsigned char *id)
{
    mpshm__lock();
    int err = own_id_once();
    memcpy(id, own_id, sizeof(own_id));
    mpshm__unlock();
    return err;
}

int mpshm_set_own_session(const unsigned char *id)
{
    int err = 0;

    mpshm__lock();
    if (!own_is_set) {
        memcpy(own_id, id, sizeof(own_id));
        own_is_set = 1;
    } else if (memcmp(own_id, id, sizeof(own_id)) != 0) {
        err = -EBUSY;
    }
    mpshm__unlock();
    return err;
}

int mpshm__own_session(struct mpshm__session **session)
{
    int err = own_id_once();

    mpshm__fork_handlers();
    return err < 0 ? err : mpshm__session_attach(own_id, 1, session);
}

int mpshm_open_descriptors_for_child(int fds[2])
{
    struct mpshm__session *session;

    fds[0] = fds[1] = -1;
    mpshm__lock();
    int err = mpshm__own_session(&session);
    if (err == 0 && (err = mpshm__session_reopen(session, 1)) >= 0) {
        fds[0] = err;
        err = mpshm__manager_connect_child(session, -1);
        fds[1] = err < 0 ? -1 : err; /* no manager yet: the child finds it by the path */
    }
    mpshm__unlock();
    return fds[0] < 0 ? err : 0;
}

int mpshm_attach_by_descriptors(const unsigned char *id, const int fds[2])
{
    int err = mpshm_set_own_session(id);

    if (err < 0) {
        for (int i = 0; i < 2; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        return err;
    }
    mpshm__lock();
    mpshm__session_attach_inherited(id, fds[0], fds[1]);
    mpshm__unlock();
    return mpshm_attach(); /* by the path, if the descriptors failed */
}

int mpshm_attach(void)
{
    struct mpshm__session *session;

    mpshm__lock();
    int err = mpshm__own_session(&session);
    mpshm__unlock();
    return err;
}
