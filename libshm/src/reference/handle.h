/* A handle: the 56 bytes that carry a block to one receiver. */
#ifndef MPSHM_HANDLE_H
#define MPSHM_HANDLE_H

#include <stddef.h>

#include "layout/segment_file.h"

struct mpshm__handle {
    unsigned char session[MPSHM_ID_SIZE];
    uint64_t segment;       /* first half of its nonce */
    uint32_t segment_index; /* of its entry in the control file */
    uint32_t block;
    uint32_t generation;
    uint32_t message; /* the bit of in_flight, or MPSHM__NO_BIT; and MPSHM__COPIED */
    uint64_t nbytes;
    uint64_t check; /* of all the rest */
};

enum { MPSHM__NO_BIT = 64, MPSHM__COPIED = 1 << 16 };

void mpshm__handle_write(struct mpshm__handle *handle, unsigned char *bytes);
/* 0, or -EBADMSG when the bytes are no handle. */
int mpshm__handle_parse(const unsigned char *bytes, size_t len, struct mpshm__handle *handle);

#endif
