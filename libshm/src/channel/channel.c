/* Channels: messages through shared memory, beside a pipe that tells of their ends.
 *
 *      writer                          memory, mapped by both                     reader
 *   mpshm_channel_send --> write_lock --> | ring of records | --> read_lock -->
 * mpshm_channel_receive |                                                                       ^
 *            +--------- pipe or socketpair: wake-up byte, and hang-up --------------+
 *
 * The descriptors of the pipe belong to the caller, and each call names the one of its end. The
 * memory is a memfd of its own and no block of a segment: it needs no session, no slot and no
 * manager, so a process that cannot share arrays can still receive messages; and the kernel frees
 * it with the last process that has it. Its descriptor is kept to pass it on.
 *
 * Any number of processes may have an end, as with a pipe. The ring's locks keep their messages
 * apart, so messages of two writers are never mixed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "channel/channel.h"
#include "segment/memory_object.h"
#include "segment/reserve.h"

/* The layout's number, and what else both processes must agree on. */
#define MAGIC (0x6d70636800000001u + ((uint64_t)sizeof(pthread_mutex_t) << 16))

static _Atomic uint64_t channels; /* ends that this process has */

static uint64_t size_of(int duplex)
{
    return MPSHM__CHANNEL_HEADER + (uint64_t)MPSHM__RING_BYTES * (duplex ? 2 : 1);
}

static mpshm_channel *new_end(struct mpshm__channel_mapping *mapping, int side)
{
    mpshm_channel *end = calloc(1, sizeof(*end));
    struct mpshm__channel *header = mapping->header;

    if (end == NULL)
        return NULL;
    end->mapping = mapping;
    end->duplicate = MPSHM__NO_FD;
    char *data = (char *)header + MPSHM__CHANNEL_HEADER;
    struct mpshm__view views[2] = {{&header->ring[0], data},
                                   {&header->ring[1], data + MPSHM__RING_BYTES}};
    if (side == 0 || header->duplex)
        end->out = views[side];
    if (side == 1 || header->duplex)
        end->in = views[1 - side];
    atomic_fetch_add(&mapping->ends, 1);
    atomic_fetch_add(&channels, 1);
    return end;
}

static void drop_mapping(struct mpshm__channel_mapping *mapping)
{
    munmap(mapping->header, mapping->nbytes);
    mpshm__fd_close(&mapping->object);
    free(mapping);
}

/* Map the object and take its descriptor over; on failure the caller keeps the descriptor. */
static int map(int object, uint64_t nbytes, struct mpshm__channel_mapping **out)
{
    struct mpshm__channel_mapping *mapping = calloc(1, sizeof(*mapping));

    if (mapping == NULL)
        return -ENOMEM;
    mapping->nbytes = nbytes;
    void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, object, 0);
    if (at == MAP_FAILED) {
        int err = -errno;
        free(mapping);
        return err;
    }
    mapping->header = at;
    mpshm__fd_set(&mapping->object, object);
    *out = mapping;
    return 0;
}

int mpshm_channel_create(int duplex, mpshm_channel **ends)
{
    struct mpshm__channel_mapping *mapping;
    uint64_t nbytes = size_of(duplex);
    int object = mpshm__object_create(MPSHM_FILE_DESCRIPTOR, NULL, nbytes), rc = 0;

    if (object < 0)
        return object;
    if (mpshm__object_must_reserve(MPSHM_FILE_DESCRIPTOR))
        rc = mpshm__reserve(object, 0, nbytes);
    if (rc == 0)
        rc = map(object, nbytes, &mapping);
    if (rc < 0) {
        close(object);
        return rc;
    }
    mapping->header->duplex = duplex != 0;
    rc = mpshm__ring_init(&mapping->header->ring[0]);
    if (rc == 0)
        rc = mpshm__ring_init(&mapping->header->ring[1]);
    mapping->header->magic = MAGIC;
    mpshm_channel *first = rc == 0 ? new_end(mapping, 0) : NULL;
    mpshm_channel *second = first != NULL ? new_end(mapping, 1) : NULL;
    if (second == NULL) {
        if (first != NULL)
            mpshm_channel_close(first);
        else
            drop_mapping(mapping);
        return rc < 0 ? rc : -ENOMEM;
    }
    second->duplicates = 1;
    ends[0] = first;
    ends[1] = second;
    return 0;
}

int mpshm_channel_open(int object, int side, mpshm_channel **out)
{
    struct mpshm__channel_mapping *mapping;
    struct stat st;
    int rc =
        side == 0 || side == 1 ? mpshm__object_check(MPSHM_FILE_DESCRIPTOR, object, 0) : -EINVAL;

    if (rc == 0 && fstat(object, &st) < 0)
        rc = -errno;
    if (rc == 0 && (uint64_t)st.st_size != size_of(0) && (uint64_t)st.st_size != size_of(1))
        rc = -EBADMSG;
    if (rc == 0)
        rc = map(object, (uint64_t)st.st_size, &mapping);
    if (rc < 0)
        return rc;
    mpshm_channel *end = NULL;
    if (mapping->header->magic != MAGIC)
        rc = -EPROTO;
    else if (size_of((int)mapping->header->duplex) != mapping->nbytes)
        rc = -EBADMSG;
    else if ((end = new_end(mapping, side)) == NULL)
        rc = -ENOMEM;
    if (rc < 0) {
        munmap(mapping->header, mapping->nbytes);
        free(mapping);
        return rc;
    }
    *out = end;
    return 0;
}

void mpshm_channel_close(mpshm_channel *end)
{
    struct mpshm__channel_mapping *mapping = end->mapping;

    mpshm__fd_close(&end->duplicate);
    atomic_fetch_add(&mapping->header->closes, 1);
    if (atomic_fetch_sub(&mapping->ends, 1) == 1)
        drop_mapping(mapping);
    atomic_fetch_sub(&channels, 1);
    free(end);
}

int mpshm_channel_object(mpshm_channel *end)
{
    int fd = end->duplicates ? mpshm__fd_get(&end->duplicate) : -1;

    if (fd >= 0)
        return fd;
    fd = mpshm__fd_get(&end->mapping->object);
    if (fd < 0 || !end->duplicates)
        return fd < 0 ? -EBADF : fd;
    fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    mpshm__fd_set(&end->duplicate, fd);
    return fd;
}

uint64_t mpshm_channel_count(void)
{
    return atomic_load(&channels);
}

/* ---- sending ---- */

/* The kernel is asked once a millisecond, and whenever a process has closed an end. A message to a
 * reader that was killed within the last millisecond is lost like one that was killed just after
 * it. */
enum { LOOK_AGAIN_NS = 1000000 };

static int check_reader(mpshm_channel *end, int fd)
{
    uint32_t closes = atomic_load_explicit(&end->mapping->header->closes, memory_order_relaxed);
    uint64_t now = mpshm__now_ns();

    if (closes == end->closes && now - end->looked < LOOK_AGAIN_NS)
        return 0;
    end->closes = closes;
    int rc = mpshm__channel_has_reader(fd);
    end->looked = rc < 0 ? 0 : now;
    return rc;
}

/* Under write_lock: append a record, with room for it. */
static int put(mpshm_channel *end, int fd, int kind, const void *payload, uint32_t nbytes)
{
    mpshm__ring_write(&end->out, kind, payload, nbytes);
    int rc = mpshm__wakeup_write(end, fd);
    if (rc == 0)
        mpshm__ring_publish(&end->out, nbytes);
    return rc;
}

static int send_small(mpshm_channel *end, int fd, const void *data, uint64_t nbytes,
                      uint64_t deadline, const mpshm_waiter *waiter)
{
    int64_t need = (int64_t)mpshm__record_size(nbytes);

    for (;;) {
        int rc = mpshm__channel_lock(end, MPSHM__TO_WRITE, fd, deadline, waiter);
        if (rc < 0)
            return rc;
        int has_room = mpshm__ring_room(end->out.ring) >= need;
        if (has_room)
            rc = put(end, fd, MPSHM__WHOLE, data, (uint32_t)nbytes);
        mpshm__channel_unlock(end, MPSHM__TO_WRITE);
        if (has_room)
            return rc;
        rc = mpshm__wait_for_room(end, fd, (uint64_t)need, deadline, waiter);
        if (rc < 0)
            return rc;
    }
}

static int send_parts(mpshm_channel *end, int fd, const char *data, uint64_t nbytes,
                      const mpshm_waiter *waiter)
{
    uint64_t done = 0;
    int rc =
        mpshm__wait_for_room(end, fd, mpshm__record_size(sizeof(nbytes)), MPSHM__FOREVER, waiter);

    if (rc < 0)
        return rc;
    end->out.ring->large = 1;
    rc = put(end, fd, MPSHM__FIRST, &nbytes, sizeof(nbytes));
    while (rc == 0 && done < nbytes) {
        uint32_t part = nbytes - done < MPSHM__LARGE ? (uint32_t)(nbytes - done) : MPSHM__LARGE;
        rc = mpshm__wait_for_room(end, fd, mpshm__record_size(part), MPSHM__FOREVER, waiter);
        if (rc == 0)
            rc = put(end, fd, MPSHM__MORE, data + done, part);
        done += part;
    }
    if (rc == 0)
        end->out.ring->large = 0;
    else
        mpshm__ring_repair(&end->out);
    return rc;
}

int mpshm_channel_send(mpshm_channel *end, int fd, const void *data, uint64_t nbytes,
                       int64_t timeout_ns, const mpshm_waiter *waiter)
{
    if (end->out.ring == NULL)
        return -EBADF;
    int rc = check_reader(end, fd);
    if (rc < 0)
        return rc;
    if (nbytes <= MPSHM__LARGE)
        return send_small(end, fd, data, nbytes, mpshm__deadline(timeout_ns), waiter);
    if (timeout_ns >= 0)
        return -EAGAIN;
    rc = mpshm__channel_lock(end, MPSHM__TO_WRITE, fd, MPSHM__FOREVER, waiter);
    if (rc == 0) {
        rc = send_parts(end, fd, data, nbytes, waiter);
        mpshm__channel_unlock(end, MPSHM__TO_WRITE);
    }
    return rc;
}

/* ---- receiving ---- */

/* Under read_lock: 1 when all parts arrived, 0 when the writer gave up or died. */
static int take_parts(mpshm_channel *end, int fd, char *to, uint64_t nbytes,
                      const mpshm_waiter *waiter)
{
    struct mpshm__record record;
    uint64_t done = 0;

    while (done < nbytes) {
        int rc = mpshm__ring_peek(&end->in, &record);
        if (rc == 0)
            rc = mpshm__wait_for_part(end, fd, waiter);
        else if (rc > 0 && (record.kind != MPSHM__MORE || record.nbytes > nbytes - done))
            rc = 0; /* skip_rest() removes it, if it is no message */
        else if (rc > 0) {
            mpshm__ring_copy(&end->in, &record, to + done);
            mpshm__ring_drop(&end->in, &record);
            done += record.nbytes;
        }
        if (rc <= 0)
            return rc;
    }
    return 1;
}

/* Under read_lock: 1 when a message was taken, 0 when there is none. */
static int take(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    struct mpshm__record record;
    uint64_t nbytes;

    for (;;) {
        int rc = mpshm__ring_skip_rest(&end->in, &record);
        if (rc <= 0)
            return rc;
        nbytes = record.nbytes;
        if (record.kind == MPSHM__FIRST) {
            if (record.nbytes != sizeof(nbytes))
                return -EBADMSG;
            mpshm__ring_copy(&end->in, &record, &nbytes);
        }
        void *to = waiter->allocate(waiter->self, nbytes);
        if (to == NULL)
            return -ENOMEM; /* the message stays */
        if (record.kind == MPSHM__WHOLE)
            mpshm__ring_copy(&end->in, &record, to);
        mpshm__ring_drop(&end->in, &record);
        rc = record.kind == MPSHM__WHOLE ? 1 : take_parts(end, fd, to, nbytes, waiter);
        if (rc != 0)
            return rc;
    }
}

int mpshm_channel_receive(mpshm_channel *end, int fd, int64_t timeout_ns,
                          const mpshm_waiter *waiter)
{
    uint64_t deadline = mpshm__deadline(timeout_ns);

    if (end->in.ring == NULL)
        return -EBADF;
    for (;;) {
        int rc = mpshm__wait_for_record(end, fd, deadline, waiter);
        if (rc <= 0)
            return rc;
        rc = mpshm__channel_lock(end, MPSHM__TO_READ, fd, deadline, waiter);
        if (rc < 0)
            return rc;
        rc = take(end, fd, waiter);
        mpshm__channel_unlock(end, MPSHM__TO_READ);
        if (rc == 1 && atomic_load_explicit(&end->in.ring->selectable, memory_order_relaxed))
            mpshm__wakeup_settle(end, fd, waiter);
        if (rc != 0)
            return rc;
    }
}

/* 1 when the oldest record begins a message, 0 when the ring has none. */
static int has_message(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    struct mpshm__record record;

    if (mpshm__ring_is_empty(end->in.ring))
        return 0;
    /* A reader that keeps the lock for a millisecond is taking a large message. */
    int rc = mpshm__channel_lock(end, MPSHM__TO_READ, fd, mpshm__deadline(1000000), waiter);
    if (rc < 0)
        return rc == -EAGAIN ? 0 : rc;
    while ((rc = mpshm__ring_skip_rest(&end->in, &record)) > 0 && record.kind == MPSHM__FIRST) {
        mpshm__writer_is_at_work(end, fd); /* a dead one is found out here */
        if (!mpshm__ring_is_aborted(&end->in))
            break;
        mpshm__ring_drop(&end->in, &record);
    }
    mpshm__channel_unlock(end, MPSHM__TO_READ);
    return rc;
}

int mpshm_channel_poll(mpshm_channel *end, int fd, int64_t timeout_ns, const mpshm_waiter *waiter)
{
    uint64_t deadline = mpshm__deadline(timeout_ns);

    if (end->in.ring == NULL)
        return -EBADF;
    for (;;) {
        int rc = has_message(end, fd, waiter);
        if (rc != 0)
            return rc;
        if (atomic_load(&end->in.ring->selectable))
            mpshm__wakeup_settle(end, fd, waiter);
        rc = mpshm__wait_for_record(end, fd, deadline, waiter);
        if (rc == 0)
            return 1; /* the end of the file can be read */
        if (rc < 0)
            return rc == -EAGAIN ? 0 : rc;
        if (timeout_ns == 0)
            return has_message(end, fd, waiter);
    }
}

int mpshm_channel_selectable(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    if (end->in.ring == NULL || atomic_exchange(&end->in.ring->selectable, 1))
        return 0;
    mpshm__wakeup_settle(end, fd, waiter);
    return 0;
}
