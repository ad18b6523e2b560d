/* The segments of a session that this process has attached. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/failed_call.h"
#include "base/process_lock.h"
#include "segment/memory_object.h"
#include "segment/segment.h"
#include "session/connection.h"
#include "session/session.h"

/* Descriptors of foreign segments that stay open, so that this process can register them when
 * the manager is killed after their owner. Few, because descriptors are scarce. */
enum { FOREIGN_FDS = 4 };

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
        if (err == 0 && session->segments[segment->index] != NULL) { /* of a former segment */
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

/* By name if the segment has one; else from the manager, which has all of them; else from the
 * owner through /proc, when the manager does not answer. */
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

int mpshm_block_open(const mpshm_block *block, uint64_t *offset)
{
    struct mpshm__segment *segment = block->segment;

    mpshm__lock();
    int own = mpshm__fd_get(&segment->fd);
    int fd =
        own >= 0 ? fcntl(own, F_DUPFD_CLOEXEC, 0) : descriptor_of(segment->session, segment->index);
    if (own >= 0 && fd < 0)
        fd = mpshm__failed("fcntl");
    mpshm__unlock();
    *offset = (uint64_t)((char *)block->data - (char *)segment->header);
    return fd;
}

int mpshm__segment_open(struct mpshm__session *session, uint32_t index, uint64_t nonce0)
{
    if (index >= MPSHM__SEGMENTS)
        return -EBADMSG;
    if (atomic_load(&session->control->segments[index].nonce[0]) != nonce0)
        return -ESTALE;
    return descriptor_of(session, index);
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
    mpshm__drop_stale_segments(session);
    if (session->segments[index] != NULL)
        return -ESTALE; /* blocks of a segment that the control file no longer lists */
    fd = mpshm__segment_open(session, index, nonce0);
    if (fd < 0)
        return fd;
    err = mpshm__segment_map(fd, index, entry, session->id, session->user, &segment);
    if (err < 0) {
        close(fd);
        return err;
    }
    /* The reserve is refilled first. */
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
