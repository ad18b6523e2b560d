/* The choice of a segment for a block: an own one, one that a dead process left, or a new one.
 *
 * Note [Segments grow]
 *   The first segment of a process is small, and each new one is as large as all former ones
 *   together. So there are few of them however much memory is used (mappings, descriptors), and a
 *   process that uses little takes little address space (ulimit -v, mlockall). Segments that dead
 *   processes left are adopted before a new one is created. So their number is bounded by the
 *   processes that live, and not by those that have lived. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#include "allocator/allocator.h"
#include "allocator/grow.h"
#include "allocator/size_class.h"
#include "base/settings.h"
#include "segment/memory_object.h"
#include "session/connection.h"

enum { FIRST_SEGMENT = 1 << 26 }; /* bytes of data */

static int memfd_is_refused; /* guarded by the process lock */

int mpshm__usable_strategy(int strategy)
{
    return strategy == MPSHM_FILE_DESCRIPTOR && memfd_is_refused ? MPSHM_FILE_SYSTEM : strategy;
}

/* Halve the size of a segment until it is at most `limit`. */
static uint64_t at_most(rlim_t limit, uint64_t size)
{
    while (size > MPSHM__SEGMENT_LEAST && size > limit)
        size /= 2;
    return size;
}

/* As large as all former segments together, so that there are few; under a limit on address space,
 * the manager must have room for the first ones of many processes. Tests that need many set
 * MPSHM_SEGMENT_BYTES. */
uint64_t mpshm__next_segment_size(uint64_t total)
{
    uint64_t size = mpshm__asked_segment_bytes();
    struct rlimit limit;

    if (getrlimit(RLIMIT_AS, &limit) < 0)
        limit.rlim_cur = RLIM_INFINITY;
    if (size == 0)
        for (size = at_most(limit.rlim_cur / MPSHM__SLOTS, FIRST_SEGMENT);
             size < total && size < MPSHM__OFFSETS / 2; size *= 2)
            ;
    /* Every process of the session maps it, so a limit on address space must leave room for
     * others. */
    return at_most(limit.rlim_cur / 32, size < MPSHM__OFFSETS ? size : MPSHM__OFFSETS);
}

static void add_own(struct mpshm__session *session, struct mpshm__segment *segment)
{
    segment->next_own = session->own;
    session->own = segment;
}

/* It had space, so it is tried first the next time. */
static void move_to_front(struct mpshm__session *session, struct mpshm__segment *segment)
{
    struct mpshm__segment **link = &session->own;

    while (*link != segment)
        link = &(*link)->next_own;
    *link = segment->next_own;
    add_own(session, segment);
}

/* The segment is no longer ours if a manager took this process for dead. Its new owner allocates
 * in it, so our private state is worthless. That cannot happen while our slot is locked; the
 * check costs one load. */
static int is_ours(const struct mpshm__session *session, const struct mpshm__segment *segment)
{
    return atomic_load_explicit(&session->control->segments[segment->index].owner,
                                memory_order_relaxed) == (uint32_t)session->slot;
}

static int from_own(struct mpshm__session *session, int strategy, uint64_t nbytes, int zeroed,
                    struct mpshm__segment **out, uint32_t *i)
{
    for (int source = MPSHM__FROM_DIRTY; source <= MPSHM__FROM_FRESH_SPACE; source++)
        for (struct mpshm__segment *segment = session->own; segment != NULL;
             segment = segment->next_own) {
            if (segment->strategy != strategy || !is_ours(session, segment))
                continue;
            int err = mpshm__allocate_in(session->control, segment, source, nbytes, zeroed, i);
            if (err == -EXFULL)
                continue;
            *out = segment;
            if (err == 0 && source == MPSHM__FROM_FRESH_SPACE && segment != session->own)
                move_to_front(session, segment);
            return err;
        }
    return -EXFULL;
}

/* ---- adopt ---- */

static int an_orphan_exists(const struct mpshm__session *session, int strategy)
{
    for (uint32_t i = 0; i < MPSHM__SEGMENTS; i++) {
        const struct mpshm__segment_entry *entry = &session->control->segments[i];
        uint32_t handed = atomic_load_explicit(&entry->handed, memory_order_relaxed);
        if (atomic_load_explicit(&entry->nonce[0], memory_order_relaxed) != 0 &&
            atomic_load_explicit(&entry->strategy, memory_order_relaxed) == (uint32_t)strategy &&
            (atomic_load_explicit(&entry->owner, memory_order_relaxed) == MPSHM__NO_SLOT ||
             handed == (uint32_t)session->slot + 1))
            return 1;
    }
    return 0;
}

/* Map the segment of entry `index`, or use the mapping that this process has. Takes `fd` over. */
static int mapped(struct mpshm__session *session, uint32_t index, int fd,
                  struct mpshm__segment **out)
{
    struct mpshm__segment_entry *entry = &session->control->segments[index];
    struct mpshm__segment *segment = session->segments[index];
    int err;

    if (segment != NULL &&
        mpshm__segment_is_attached(session, index, atomic_load(&entry->nonce[0]))) {
        if (segment->fd.number >= 0)
            session->foreign_fds--;
        mpshm__fd_close(&segment->fd);
        mpshm__fd_set(&segment->fd, fd);
        *out = segment;
        return 0;
    }
    err = mpshm__segment_map(fd, index, entry, session->id, session->user, &segment);
    if (err < 0) {
        close(fd);
        return err;
    }
    mpshm__fd_set(&segment->fd, fd);
    err = mpshm__segment_insert(session, segment);
    if (err < 0)
        mpshm__segment_unmap(segment); /* also closes the descriptor */
    *out = segment;
    return err;
}

/* Adopt a segment. If none fits, `*left` is the size of all that dead owners left. */
static int adopt(struct mpshm__session *session, int strategy, uint64_t least, uint64_t nbytes,
                 uint64_t *left)
{
    struct mpshm__frame frame = {.magic = MPSHM__WIRE,
                                 .op = MPSHM__ADOPT,
                                 .strategy = (uint16_t)strategy,
                                 .nonce = {least, 0},
                                 .size = nbytes};
    struct mpshm__segment *segment;
    int fd = -1, err = mpshm__ask(session, &frame, &fd);

    *left = err == -ENOENT ? frame.size : 0;
    if (err == 0 && (fd < 0 || frame.a >= MPSHM__SEGMENTS))
        err = -EBADMSG;
    if (err < 0) {
        if (fd >= 0)
            close(fd);
        return err;
    }
    struct mpshm__segment_entry *entry = &session->control->segments[frame.a];
    uint32_t handed = (uint32_t)session->slot + 1;
    /* Confirm before changing anything in it, because the manager takes back what is not
     * confirmed. */
    if (!atomic_compare_exchange_strong(&entry->handed, &handed, 0)) {
        close(fd);
        return -ESTALE;
    }
    atomic_store(&entry->owner_fd, fd);
    err = mapped(session, frame.a, fd, &segment);
    if (err == 0) {
        segment->must_reserve = mpshm__object_must_reserve(strategy);
        err = mpshm__segment_adopt(session->control, segment);
        /* It is not ours after all. Its listed blocks stay LISTED for the next adopter. */
        if (err < 0)
            segment->own = 0, session->foreign_fds++;
    }
    if (err < 0) {
        atomic_store(&entry->owner, MPSHM__NO_SLOT);
        return err;
    }
    add_own(session, segment);
    return 0;
}

/* ---- create ---- */

static int create(struct mpshm__session *session, int strategy, uint64_t size, uint64_t nbytes)
{
    struct mpshm__slot *slot = &session->control->slots[session->slot];
    struct mpshm__segment *segment;
    uint64_t need = mpshm__class_bytes(mpshm__class_of(nbytes));
    int err;

    for (;; size /= 2) {
        err = mpshm__segment_create(strategy, size, need, session->id, slot, &segment);
        if (err < 0)
            return err;
        err = mpshm__segment_register(session, segment);
        if (err == 0)
            break;
        if (strategy == MPSHM_FILE_SYSTEM)
            mpshm__object_unlink(segment->nonce);
        mpshm__segment_unmap(segment);
        /* The manager maps every segment, and a limit (ulimit -v) is its limit too. */
        if (err != -ENOMEM || size <= need || size <= MPSHM__SEGMENT_LEAST)
            return err == -ENOMEM ? -ENOBUFS : err;
    }
    atomic_store(&slot->making[0], 0);
    add_own(session, segment);
    return 0;
}

static int grow(struct mpshm__session *session, int strategy, uint64_t nbytes)
{
    uint64_t total = 0, size, left;
    int err = mpshm__session_register(session);

    if (err < 0)
        return err;
    for (struct mpshm__segment *segment = session->own; segment != NULL;
         segment = segment->next_own)
        total += segment->room;
    size = mpshm__next_segment_size(total);
    if (an_orphan_exists(session, strategy)) {
        if (adopt(session, strategy, size / 2, nbytes, &left) == 0)
            return 0;
        /* If much is left behind and in use, there are many generations of processes. Grow with
         * them, or each generation leaves one more segment. */
        if (size < left)
            size = mpshm__next_segment_size(left);
    }
    return create(session, strategy, size, nbytes);
}

int mpshm__find_room(struct mpshm__session *session, int strategy, uint64_t nbytes, int flags,
                     struct mpshm__segment **out, uint32_t *i)
{
    int zeroed = flags & MPSHM_ZEROED, err;

    strategy = mpshm__usable_strategy(strategy);
    err = from_own(session, strategy, nbytes, zeroed, out, i);
    /* After setuid, no other process of the session could open a named object that we create. */
    if (err == -EXFULL && strategy == MPSHM_FILE_SYSTEM && !memfd_is_refused &&
        geteuid() != session->user) {
        strategy = MPSHM_FILE_DESCRIPTOR;
        err = from_own(session, strategy, nbytes, zeroed, out, i);
    }
    if (err != -EXFULL)
        return err;
    if (flags & MPSHM_NOWAIT)
        return -EAGAIN;
    err = grow(session, strategy, nbytes);
    if (err == -EOPNOTSUPP && strategy == MPSHM_FILE_DESCRIPTOR) {
        /* A sandbox that refuses memfds may still have /dev/shm. */
        memfd_is_refused = 1;
        strategy = MPSHM_FILE_SYSTEM;
        err = from_own(session, strategy, nbytes, zeroed, out, i);
        if (err != -EXFULL)
            return err;
        err = grow(session, strategy, nbytes);
        if (err < 0)
            memfd_is_refused = 0;
        if (err == -ENODEV)
            err = -EOPNOTSUPP; /* neither kind is available */
    }
    if (err < 0)
        return err;
    err = from_own(session, strategy, nbytes, zeroed, out, i);
    return err == -EXFULL ? -ENOMEM : err;
}
