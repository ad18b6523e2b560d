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
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "channel/channel.h"
#include "segment/memory_object.h"
#include "segment/reserve.h"

static _Atomic uint64_t channels; /* ends that this process has */

static uint64_t size_of(int duplex)
{
    return MPSHM__CHANNEL_HEADER + (uint64_t)MPSHM__RING_BYTES * (duplex ? 2 : 1);
}

int mpshm__channel_has_size(uint64_t nbytes)
{
    return nbytes == size_of(0) || nbytes == size_of(1);
}

/* Even. A later process with the same pid may repeat one, while others still use the first. */
static uint64_t new_id(void)
{
    static _Atomic uint32_t made;

    return (uint64_t)getpid() << 32 | atomic_fetch_add(&made, 2);
}

static mpshm_channel *new_end(struct mpshm__channel_mapping *mapping, int side)
{
    mpshm_channel *end = calloc(1, sizeof(*end));
    struct mpshm__channel *header = mapping->header;

    if (end == NULL)
        return NULL;
    end->mapping = mapping;
    end->side = side;
    end->duplicate = MPSHM__NO_FD;
    char *data = (char *)header + MPSHM__CHANNEL_HEADER;
    struct mpshm__view views[2] = {{.ring = &header->ring[0], .data = data},
                                   {.ring = &header->ring[1], .data = data + MPSHM__RING_BYTES}};
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

/* Map the object; the caller keeps its descriptor. */
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
    mapping->object = MPSHM__NO_FD;
    *out = mapping;
    return 0;
}

/* 1 when descriptors are scarce. The kernel gives the lowest free number, so half of those that
 * this process may have are in use when it gives one of the upper half. The others are for
 * descriptors that the program cannot do without. */
static int is_scarce(int fd)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)fd >= limit.rlim_cur / 2;
}

int mpshm_channel_create(int duplex, mpshm_channel **ends)
{
    struct mpshm__channel_mapping *mapping;
    uint64_t nbytes = size_of(duplex);
    int object = mpshm__object_create(MPSHM_FILE_DESCRIPTOR, NULL, nbytes), rc = 0;

    if (object < 0)
        return object;
    if (is_scarce(object))
        rc = -EMFILE;
    if (rc == 0 && mpshm__object_must_reserve(MPSHM_FILE_DESCRIPTOR))
        rc = mpshm__reserve(object, 0, nbytes);
    if (rc == 0)
        rc = map(object, nbytes, &mapping);
    if (rc < 0) {
        close(object);
        return rc;
    }
    mpshm__fd_set(&mapping->object, object);
    mpshm__spin_ceiling(); /* the processes that are forked for this channel inherit it */
    mapping->header->duplex = duplex != 0;
    mapping->header->id = new_id();
    rc = mpshm__ring_init(&mapping->header->ring[0]);
    if (rc == 0)
        rc = mpshm__ring_init(&mapping->header->ring[1]);
    mapping->header->magic = MPSHM__CHANNEL_MAGIC;
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
    if (rc == 0 && !mpshm__channel_has_size((uint64_t)st.st_size))
        rc = -EBADMSG;
    if (rc == 0)
        rc = map(object, (uint64_t)st.st_size, &mapping);
    if (rc < 0)
        return rc;
    mpshm_channel *end = NULL;
    if (mapping->header->magic != MPSHM__CHANNEL_MAGIC)
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
    mpshm__fd_set(&mapping->object, object);
    *out = end;
    return 0;
}

int mpshm_channel_open_other(mpshm_channel *end, mpshm_channel **out)
{
    *out = new_end(end->mapping, 1 - end->side);
    return *out == NULL ? -ENOMEM : 0;
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

int mpshm_channel_stop_reading(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    if (end->in.ring == NULL)
        return -EBADF;
    atomic_fetch_add(&end->mapping->header->closes, 1);
    /* A writer that has not seen it has write_lock now, and its message is in the ring when it
     * gives the lock back. */
    int rc = mpshm__channel_lock(end, MPSHM__TO_CLOSE, fd, MPSHM__FOREVER, waiter);
    if (rc == 0)
        mpshm__channel_unlock(end, MPSHM__TO_CLOSE);
    return rc;
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
    return end->duplicate.number;
}

void mpshm_channel_forget_object(mpshm_channel *end)
{
    mpshm__fd_close(&end->mapping->object);
}

uint64_t mpshm_channel_ring_id(mpshm_channel *end, int sends)
{
    struct mpshm__ring *ring = sends ? end->out.ring : end->in.ring;

    return ring == NULL ? 0
                        : end->mapping->header->id + (uint64_t)(ring - end->mapping->header->ring);
}

int mpshm_channel_take_foreign(mpshm_channel *end)
{
    return atomic_load(&end->foreign) && atomic_exchange(&end->foreign, 0);
}

uint64_t mpshm_channel_count(void)
{
    return atomic_load(&channels);
}
