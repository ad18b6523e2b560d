/* What the source files share and nobody else sees. */
#ifndef MPSHM_INTERNAL_H
#define MPSHM_INTERNAL_H

#include <errno.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "mpshm.h"

/* A signal handler that returns makes a slow system call fail with EINTR. No caller of ours could
 * do anything but call again, so it is done here. close() is not retried: on Linux the descriptor
 * is gone even when EINTR comes back, and a second close could hit somebody else's. */
#define MPSHM__RETRY(expr)                                                                         \
    ({                                                                                             \
        long mpshm__rc;                                                                            \
        do                                                                                         \
            mpshm__rc = (long)(expr);                                                              \
        while (mpshm__rc == -1 && errno == EINTR);                                                 \
        mpshm__rc;                                                                                 \
    })

/* The first page of every segment. Written by its maker before anybody can meet it; after that
 * only `claims` changes. */
struct mpshm__header {
    char magic[8]; /* "mpshm\0\0" and the layout's number */
    uint64_t nbytes;
    unsigned char id[MPSHM_ID_SIZE];
    _Atomic uint64_t claims;
};

struct mpshm_segment {
    struct mpshm__header *header; /* the mapping */
    uint64_t mapped;              /* its length */
    int fd;                       /* memfd, or -1 */
    char name[MPSHM_NAME_SIZE];   /* named, or "" */
};

enum { MPSHM__HEADER_SIZE = 4096 };

/* What a strategy is: how the object of `size` bytes is made. Both return a descriptor; the named
 * one writes the name that it chose. */
int mpshm__memfd_create(uint64_t size);
int mpshm__named_create(uint64_t size, char *name);

/* Is `fd` safe to map (nobody can cut it under us)? 0 or -EBADMSG. */
int mpshm__memfd_check(int fd);

/* Reserve every byte of [0, size): 0 or -errno (-ENOSPC, -ENOMEM, -EFBIG). */
int mpshm__reserve(int fd, uint64_t size);

#endif
