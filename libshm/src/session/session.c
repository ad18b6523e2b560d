/* The sessions that this process has attached. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/process_lock.h"
#include "platform/linux/process.h"
#include "segment/segment.h"
#include "session/connection.h"
#include "session/control_lock.h"
#include "session/manager_start.h"
#include "session/session.h"

struct mpshm__session *mpshm__sessions[MPSHM__SESSIONS];

uint64_t mpshm__session_retained(const struct mpshm__session *session)
{
    uint64_t sum = 0;

    for (uint32_t a = 0; a < session->segment_top; a++)
        sum += session->segments[a] != NULL ? session->segments[a]->retained_blocks : 0;
    return sum;
}

static void detach(struct mpshm__session *session)
{
    for (uint32_t i = 0; i < session->segment_top; i++)
        mpshm__segment_unmap(session->segments[i]);
    mpshm__fd_close(&session->sock);
    if (session->control != NULL)
        munmap(session->control, sizeof(*session->control));
    mpshm__fd_close(&session->control_fd);
    free(session);
}

void mpshm__session_detach_idle(struct mpshm__session *session)
{
    for (int i = 1; i < MPSHM__SESSIONS; i++)
        if (mpshm__sessions[i] == session && mpshm__session_retained(session) == 0) {
            detach(session);
            mpshm__sessions[i] = NULL;
        }
}

/* An index in the table. The own session has the first. A foreign session may be replaced if
 * this process has none of its blocks. */
static int index_for(int is_own)
{
    if (is_own)
        return 0;
    for (int i = 1; i < MPSHM__SESSIONS; i++)
        if (mpshm__sessions[i] == NULL)
            return i;
    for (int i = 1; i < MPSHM__SESSIONS; i++)
        if (mpshm__session_retained(mpshm__sessions[i]) == 0) {
            detach(mpshm__sessions[i]);
            mpshm__sessions[i] = NULL;
            return i;
        }
    return -EUSERS;
}

int mpshm__session_is_attached(const unsigned char *id)
{
    for (int i = 0; i < MPSHM__SESSIONS; i++)
        if (mpshm__sessions[i] != NULL && memcmp(mpshm__sessions[i]->id, id, MPSHM_ID_SIZE) == 0)
            return 1;
    return 0;
}

static struct mpshm__session *blank(const unsigned char *id)
{
    struct mpshm__session *session = calloc(1, sizeof(*session));

    if (session == NULL)
        return NULL;
    memcpy(session->id, id, MPSHM_ID_SIZE);
    session->sock = session->control_fd = MPSHM__NO_FD;
    session->slot = -1;
    return session;
}

/* The descriptors by which a forked child attaches its own session: see fork.c. */
static unsigned char inherited_id[MPSHM_ID_SIZE];
static struct mpshm__fd inherited_control = MPSHM__NO_FD, inherited_sock = MPSHM__NO_FD;

void mpshm__session_detach_in_child(int at, int control_fd, int sock)
{
    if (at == 0)
        memcpy(inherited_id, mpshm__sessions[0]->id, sizeof(inherited_id));
    detach(mpshm__sessions[at]);
    mpshm__sessions[at] = NULL;
    if (at == 0) {
        mpshm__fd_set(&inherited_control, control_fd);
        mpshm__fd_set(&inherited_sock, sock);
        if (control_fd >= 0)
            mpshm__fd_reserve(control_fd); /* there may be none left when it attaches */
        return;
    }
    if (control_fd >= 0)
        close(control_fd);
    if (sock >= 0)
        close(sock);
}

static int is_detached(void)
{
    return inherited_control.number >= 0 || inherited_sock.number >= 0;
}

/* The program may have closed the descriptors since the fork: then the path leads to the session.
 */
static int attach_again(const unsigned char *id)
{
    int control = mpshm__fd_get(&inherited_control), sock = mpshm__fd_get(&inherited_sock);

    inherited_control = inherited_sock = MPSHM__NO_FD;
    if (control < 0) {
        if (sock >= 0)
            close(sock);
        return -ENOENT;
    }
    return mpshm__session_attach_inherited(id, control, sock);
}

int mpshm__session_attach(const unsigned char *id, int is_own, struct mpshm__session **out)
{
    struct mpshm__session *session;
    int at, err;

    for (int i = 0; i < MPSHM__SESSIONS; i++)
        if (mpshm__sessions[i] != NULL && memcmp(mpshm__sessions[i]->id, id, MPSHM_ID_SIZE) == 0) {
            *out = mpshm__sessions[i];
            return 0;
        }
    if (is_own && is_detached() && attach_again(id) == 0) {
        *out = mpshm__sessions[0];
        return 0;
    }
    session = blank(id);
    if (session == NULL)
        return -ENOMEM;
    err = mpshm__session_open(session, is_own);
    /* A session that never had a manager has no blocks, so the handle is forged. */
    if (err == 0 && !is_own && atomic_load(&session->control->ready) != 1)
        err = -ESTALE;
    at = err == 0 ? index_for(is_own) : err;
    if (at < 0) {
        detach(session);
        return at;
    }
    mpshm__fd_reserve(mpshm__fd_get(&session->control_fd));
    *out = mpshm__sessions[at] = session;
    return 0;
}

void mpshm__session_attach_detached(void)
{
    struct mpshm__session *own;

    if (is_detached())
        mpshm__session_attach(inherited_id, 1, &own);
}

/* Open the descriptor again. Another thread of the parent may have forked while it was on its way;
 * that child has a copy, and a lock through it would outlive this process. Takes `fd` over. */
static int description_of_own(int fd)
{
    int own = fd < 0 ? -1 : mpshm__reopen(fd);

    if (own < 0)
        return fd; /* without /proc, use the one that there is */
    close(fd);
    return own;
}

int mpshm__session_attach_inherited(const unsigned char *id, int control_fd, int sock)
{
    struct mpshm__session *session = mpshm__sessions[0] == NULL ? blank(id) : NULL;

    control_fd = description_of_own(control_fd);
    int err = session == NULL ? -ENOMEM : mpshm__session_open_fd(session, control_fd);

    if (err < 0) { /* it exists already, or cannot be had: use the path */
        if (sock >= 0)
            close(sock);
        if (session == NULL && control_fd >= 0)
            close(control_fd);
        if (session != NULL)
            detach(session);
        return mpshm__sessions[0] != NULL ? 0 : err;
    }
    mpshm__fd_set(&session->sock, sock);
    mpshm__fd_reserve(mpshm__fd_get(&session->control_fd));
    mpshm__sessions[0] = session;
    return 0;
}

/* Remove the session at exit if no manager serves it, because none was needed or because it was
 * killed. The last process that exits in good order does this. A process that is killed cannot;
 * the next session of this user then removes this one. */
__attribute__((destructor)) static void leave_at_exit(void)
{
    if (!mpshm__try_lock())
        return; /* another thread still uses the session */
    /* The lock is kept, because the remaining threads have nothing to do here any more. */
    mpshm__session_attach_detached(); /* it may be for this process to remove */
    for (int i = 0; i < MPSHM__SESSIONS; i++) {
        struct mpshm__session *session = mpshm__sessions[i];
        int control = session != NULL ? mpshm__fd_get(&session->control_fd) : -1;
        int sock = session != NULL ? mpshm__fd_get(&session->sock) : -1;
        if (control < 0)
            continue;
        if (sock >= 0 && !mpshm__has_hung_up(sock))
            continue; /* its manager sees this process go */
        if (mpshm__manager_is_there(session))
            continue;
        mpshm__disconnect(session);
        flock(control,
              LOCK_UN); /* closing is not enough, because the mapping keeps the file open */
        mpshm__session_remove_if_dead(session->id);
    }
}
