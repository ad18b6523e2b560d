/* Segments: made, met, mapped, counted, closed. How they come into being is the strategy's file.
 *
 * Note [Who keeps a segment alive]
 *
 *   memfd:  the kernel. Every descriptor and every mapping, and every descriptor inside a socket
 *           that nobody has read yet, is a reference; the last one frees it, SIGKILL included.
 *
 *   named:  `claims` in its first page, because a name keeps memory alive for ever:
 *
 *             process A --+                    +-- process B
 *                         +--> claims = 3 <----+
 *             message  ---+    (the last one to give back unlinks the name)
 *
 *           A process that is killed never gives its claim back. The name then stays: a leak and
 *           never an early free. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

static const char MAGIC[8] = {'m', 'p', 's', 'h', 'm', 0, 0, 1};

_Static_assert(sizeof(struct mpshm__header) <= MPSHM__HEADER_SIZE, "the header is one page");

static int map(int fd, uint64_t size, mpshm_segment *segment)
{
    void *at;

    if (size > SIZE_MAX)
        return -ENOMEM;
    at = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return -errno;
    segment->header = at;
    segment->mapped = size;
    return 0;
}

int mpshm_segment_create(int strategy, uint64_t nbytes, mpshm_segment **out)
{
    unsigned char id[MPSHM_ID_SIZE];
    mpshm_segment *segment;
    int fd;
    int err;

    /* off_t is signed: what does not fit can only be absurd. */
    if (nbytes > INT64_MAX - MPSHM__HEADER_SIZE)
        return -ENOMEM;
    if (MPSHM__RETRY(getrandom(id, sizeof(id), 0)) != sizeof(id))
        return -EIO;
    segment = calloc(1, sizeof(*segment));
    if (segment == NULL)
        return -ENOMEM;

    uint64_t size = nbytes + MPSHM__HEADER_SIZE;
    switch (strategy) {
    case MPSHM_FILE_DESCRIPTOR:
        fd = mpshm__memfd_create(size);
        break;
    case MPSHM_FILE_SYSTEM:
        fd = mpshm__named_create(size, segment->name);
        break;
    default:
        fd = -EINVAL;
    }
    if (fd < 0) {
        err = fd;
        goto fail_segment;
    }
    err = map(fd, size, segment);
    if (err < 0)
        goto fail_fd;

    memcpy(segment->header->magic, MAGIC, sizeof(MAGIC));
    memcpy(segment->header->id, id, sizeof(id));
    segment->header->nbytes = nbytes;
    atomic_store(&segment->header->claims, 1);

    segment->fd = fd;
    if (strategy == MPSHM_FILE_SYSTEM) { /* the name is how others meet it */
        close(fd);
        segment->fd = -1;
    }
    *out = segment;
    return 0;

fail_fd:
    if (segment->name[0])
        shm_unlink(segment->name);
    close(fd);
fail_segment:
    free(segment);
    return err;
}

/* Map what `fd` refers to, if it is whole and ours. The caller closes `fd`. */
static int open_checked(int fd, mpshm_segment **out)
{
    struct stat st;
    mpshm_segment *segment;
    int err;

    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || st.st_size < MPSHM__HEADER_SIZE)
        return -EBADMSG;
    segment = calloc(1, sizeof(*segment));
    if (segment == NULL)
        return -ENOMEM;
    err = map(fd, (uint64_t)st.st_size, segment);
    if (err < 0) {
        free(segment);
        return err;
    }
    segment->fd = -1;
    if (memcmp(segment->header->magic, MAGIC, sizeof(MAGIC)) != 0 ||
        segment->header->nbytes != (uint64_t)st.st_size - MPSHM__HEADER_SIZE) {
        mpshm_segment_close(segment);
        return -EBADMSG;
    }
    *out = segment;
    return 0;
}

int mpshm_segment_open_fd(int fd, mpshm_segment **out)
{
    mpshm_segment *segment;
    int own;
    int err = mpshm__memfd_check(fd);

    if (err < 0)
        return err;
    own = (int)MPSHM__RETRY(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (own < 0)
        return -errno;
    err = open_checked(own, &segment);
    if (err < 0) {
        close(own);
        return err;
    }
    segment->fd = own;
    *out = segment;
    return 0;
}

int mpshm_segment_open_name(const char *name, mpshm_segment **out)
{
    mpshm_segment *segment;
    size_t len = strnlen(name, MPSHM_NAME_SIZE);
    int fd;
    int err;

    if (len == MPSHM_NAME_SIZE || strncmp(name, "/mpshm-", 7) != 0)
        return -EBADMSG;
    fd = (int)MPSHM__RETRY(shm_open(name, O_RDWR | O_CLOEXEC, 0));
    if (fd < 0)
        return -errno;
    err = open_checked(fd, &segment);
    close(fd);
    if (err < 0)
        return err;
    memcpy(segment->name, name, len + 1);
    *out = segment;
    return 0;
}

int mpshm_segment_claim(mpshm_segment *segment)
{
    uint64_t claims = atomic_load(&segment->header->claims);

    do {
        if (claims == 0)
            return -ESTALE; /* its last holder is unlinking it now */
    } while (!atomic_compare_exchange_weak(&segment->header->claims, &claims, claims + 1));
    return 0;
}

int mpshm_segment_release(mpshm_segment *segment)
{
    uint64_t claims = atomic_load(&segment->header->claims);

    do {
        if (claims == 0)
            return -ESTALE;
    } while (!atomic_compare_exchange_weak(&segment->header->claims, &claims, claims - 1));
    /* A name that has already gone (somebody cleaned /dev/shm) is what we wanted. */
    if (claims == 1 && segment->name[0] && shm_unlink(segment->name) < 0 && errno != ENOENT)
        return -errno;
    return 0;
}

void mpshm_segment_close(mpshm_segment *segment)
{
    if (segment == NULL)
        return;
    munmap(segment->header, (size_t)segment->mapped);
    if (segment->fd >= 0)
        close(segment->fd);
    free(segment);
}

void *mpshm_segment_data(const mpshm_segment *segment)
{
    return (char *)segment->header + MPSHM__HEADER_SIZE;
}

uint64_t mpshm_segment_nbytes(const mpshm_segment *segment)
{
    return segment->mapped - MPSHM__HEADER_SIZE;
}

const unsigned char *mpshm_segment_id(const mpshm_segment *segment)
{
    return segment->header->id;
}

const char *mpshm_segment_name(const mpshm_segment *segment)
{
    return segment->name;
}

int mpshm_segment_fd(const mpshm_segment *segment)
{
    return segment->fd;
}
