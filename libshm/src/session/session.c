/* A session as one process sees it: its slot, its manager, the segments that it has met. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

/* Descriptors of others' segments that are kept open, so that they can be registered again when the
 * manager is killed after their owner. Few, because descriptors are scarce. */
enum { FOREIGN_FDS = 4 };

struct mpshm__session *mpshm__sessions[MPSHM__SESSIONS];

static void leave(struct mpshm__session *session)
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
            leave(session);
            mpshm__sessions[i] = NULL;
        }
}

/* A place in the table: home has the first; among the others, one of which nothing is held may go.
 */
static int place_for(int is_own)
{
    if (is_own)
        return 0;
    for (int i = 1; i < MPSHM__SESSIONS; i++)
        if (mpshm__sessions[i] == NULL)
            return i;
    for (int i = 1; i < MPSHM__SESSIONS; i++)
        if (mpshm__session_retained(mpshm__sessions[i]) == 0) {
            leave(mpshm__sessions[i]);
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

    mpshm__fork_handlers();
    if (session == NULL)
        return NULL;
    memcpy(session->id, id, MPSHM_ID_SIZE);
    session->sock = session->control_fd = MPSHM__NO_FD;
    session->slot = -1;
    return session;
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
    session = blank(id);
    if (session == NULL)
        return -ENOMEM;
    err = mpshm__session_open(session, is_own);
    /* One that no manager has ever looked after has nothing to offer: the handle is made up. */
    if (err == 0 && !is_own && atomic_load(&session->control->ready) != 1)
        err = -ESTALE;
    at = err == 0 ? place_for(is_own) : err;
    if (at < 0) {
        leave(session);
        return at;
    }
    mpshm__fd_reserve(mpshm__fd_get(&session->control_fd));
    *out = mpshm__sessions[at] = session;
    return 0;
}

/* Another thread of the parent may have forked while the descriptor was on its way: then that child
 * has a copy, and a lock through it would outlive this process. Takes `fd` over. */
static int alone(int fd)
{
    char path[32];
    int own;

    if (fd < 0)
        return fd;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    own = (int)MPSHM__RETRY(open(path, O_RDWR | O_CLOEXEC));
    if (own < 0)
        return fd; /* no /proc: that one has to do */
    close(fd);
    return own;
}

int mpshm__session_attach_inherited(const unsigned char *id, int control_fd, int sock)
{
    struct mpshm__session *session = mpshm__sessions[0] == NULL ? blank(id) : NULL;

    control_fd = alone(control_fd);
    int err = session == NULL ? -ENOMEM : mpshm__session_open_fd(session, control_fd);

    if (err < 0) { /* there already, or not to be had: then by the path */
        if (sock >= 0)
            close(sock);
        if (session == NULL && control_fd >= 0)
            close(control_fd);
        if (session != NULL)
            leave(session);
        return mpshm__sessions[0] != NULL ? 0 : err;
    }
    mpshm__fd_set(&session->sock, sock);
    mpshm__fd_reserve(mpshm__fd_get(&session->control_fd));
    mpshm__sessions[0] = session;
    return 0;
}

/* ---- segments ---- */

static void put(struct mpshm__session *session, struct mpshm__segment *segment)
{
    segment->session = session;
    session->segments[segment->index] = segment;
    if (segment->index >= session->segment_top)
        session->segment_top = segment->index + 1;
}

static void drop(struct mpshm__session *session, uint32_t i)
{
    if (session->segments[i]->fd.number >= 0 && !session->segments[i]->own)
        session->foreign_fds--;
    mpshm__segment_unmap(session->segments[i]);
    session->segments[i] = NULL;
}

void mpshm__drop_stale_segments(struct mpshm__session *session)
{
    for (uint32_t i = 0; i < session->segment_top; i++) {
        struct mpshm__segment *segment = session->segments[i];
        if (segment != NULL && !segment->own && segment->retained_blocks == 0 &&
            atomic_load(&session->control->segments[i].nonce[0]) != segment->nonce[0])
            drop(session, i);
    }
}

int mpshm__segment_insert(struct mpshm__session *session, struct mpshm__segment *segment)
{
    mpshm__drop_stale_segments(session);
    if (session->segments[segment->index] != NULL)
        return -ESTALE;
    put(session, segment);
    return 0;
}

int mpshm__segment_register(struct mpshm__session *session, struct mpshm__segment *segment)
{
    int err = 0;

    for (int attempt = 0; attempt < MPSHM__ATTEMPTS; attempt++) {
        err = mpshm__session_register(session);
        if (err < 0)
            return err;
        err = mpshm__offer_segment(session, segment, 0);
        if (err == 0 && session->segments[segment->index] != NULL) { /* of a segment that is gone */
            if (session->segments[segment->index]->retained_blocks != 0)
                return -ESTALE;
            drop(session, segment->index);
        }
        if (err == 0) {
            put(session, segment);
            return 0;
        }
        if (!mpshm__worth_another(err, attempt))
            return err;
        mpshm__disconnect(session);
    }
    return err;
}

int mpshm__segment_is_attached(const struct mpshm__session *session, uint32_t index,
                               uint64_t nonce0)
{
    return index < MPSHM__SEGMENTS && session->segments[index] != NULL &&
           session->segments[index]->nonce[0] == nonce0;
}

/* By name where it has one; from the manager, who has them all; and from the owner's /proc when the
 * manager does not answer. */
static int descriptor_of(struct mpshm__session *session, uint32_t index)
{
    const struct mpshm__segment_entry *entry = &session->control->segments[index];
    struct mpshm__frame frame = {.magic = MPSHM__WIRE, .op = MPSHM__GET, .a = index};
    int err, fd = -1;

    if (atomic_load(&entry->strategy) == MPSHM_FILE_SYSTEM) {
        uint64_t nonce[2] = {atomic_load(&entry->nonce[0]), atomic_load(&entry->nonce[1])};
        do
            fd = mpshm__object_open_name(nonce);
        while (mpshm__fd_use_reserve(fd));
        if (fd >= 0)
            return fd;
    }
    err = mpshm__ask(session, &frame, &fd);
    if (err == 0 && fd >= 0)
        return fd;
    fd = mpshm__object_from_owner(entry);
    return fd >= 0 ? fd : err < 0 ? err : -EBADMSG;
}

int mpshm__segment_attach(struct mpshm__session *session, uint32_t index, uint64_t nonce0,
                          struct mpshm__segment **out)
{
    struct mpshm__segment *segment;
    struct mpshm__segment_entry *entry;
    int fd, err;

    if (index >= MPSHM__SEGMENTS)
        return -EBADMSG;
    if (mpshm__segment_is_attached(session, index, nonce0)) {
        *out = session->segments[index];
        return 0;
    }
    entry = &session->control->segments[index];
    if (atomic_load(&entry->nonce[0]) != nonce0)
        return -ESTALE;
    mpshm__drop_stale_segments(session);
    if (session->segments[index] != NULL)
        return -ESTALE; /* blocks of a segment that the control file has forgotten */
    fd = descriptor_of(session, index);
    if (fd < 0)
        return fd;
    err = mpshm__segment_map(fd, index, entry, session, &segment);
    if (err < 0) {
        close(fd);
        return err;
    }
    /* What the reserve has lent goes back first. */
    if (segment->strategy == MPSHM_FILE_DESCRIPTOR && session->foreign_fds < FOREIGN_FDS &&
        mpshm__fd_reserved() > 0) {
        mpshm__fd_set(&segment->fd, fd);
        session->foreign_fds++;
    } else {
        close(fd);
    }
    mpshm__fd_reserve(mpshm__fd_get(&session->control_fd));
    put(session, segment);
    *out = segment;
    return 0;
}

/* ---- leaving ---- */

/* A session that no manager looks after, because none was needed or because it was killed, is
 * cleaned up by the last process that leaves it in good order. A process that is killed cleans up
 * nothing; then the next manager of this user does. */
__attribute__((destructor)) static void leave_at_exit(void)
{
    if (!mpshm__try_lock())
        return; /* a thread is at it still */
    /* The lock is kept: whatever thread is left has nothing to do here any more. */
    for (int i = 0; i < MPSHM__SESSIONS; i++) {
        struct mpshm__session *session = mpshm__sessions[i];
        char byte;
        int control = session != NULL ? mpshm__fd_get(&session->control_fd) : -1;
        int sock = session != NULL ? mpshm__fd_get(&session->sock) : -1;
        if (control < 0)
            continue;
        if (sock >= 0 && recv(sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0)
            continue; /* it will see us go */
        if (mpshm__manager_is_there(session))
            continue;
        mpshm__disconnect(session);
        flock(control, LOCK_UN); /* closing is not enough, the mapping keeps it open */
        mpshm__session_remove_if_dead(session->id);
    }
}
