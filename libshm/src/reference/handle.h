/* A handle: the 56 bytes that carry a block to one receiver. */
#ifndef MPSHM_HANDLE_H
#define MPSHM_HANDLE_H

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "layout/segment_file.h"

struct mpshm__handle {
    unsigned char session[MPSHM_ID_SIZE];
    uint64_t segment;       /* first half of its nonce */
    uint32_t segment_index; /* of its entry in the control file */
    uint32_t block;
    uint32_t generation : 24;
    uint32_t message : 7; /* the bit of in_flight, or MPSHM__NO_BIT */
    uint32_t copied : 1;
    uint32_t deadline; /* the tick from which on it cannot be received, or MPSHM__NEVER */
    uint64_t nbytes;
    uint64_t check; /* of all the rest */
};

enum { MPSHM__NO_BIT = 64 };

_Static_assert(sizeof(struct mpshm__handle) == MPSHM_HANDLE_SIZE, "the size is public");
_Static_assert(offsetof(struct mpshm__handle, deadline) == MPSHM_REFERENCE_SIZE,
               "the fields before it name the reference");

/* The checksum tells a damaged handle from a stale one. It protects against accidents only and is
 * no secret. */
static inline uint64_t mpshm__handle_checksum(const struct mpshm__handle *handle)
{
    uint64_t words[offsetof(struct mpshm__handle, check) / 8], h = 0xcbf29ce484222325u;

    memcpy(words, handle, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / 8; i++) {
        h = (h ^ words[i]) * 0x9e3779b97f4a7c15u; /* odd, so a change of one word always shows */
        h ^= h >> 32;
    }
    return h;
}

static inline void mpshm__handle_write(struct mpshm__handle *handle, unsigned char *bytes)
{
    handle->check = mpshm__handle_checksum(handle);
    memcpy(bytes, handle, sizeof(*handle));
}

/* 0, or -EBADMSG when the bytes are no handle. */
static inline int mpshm__handle_parse(const unsigned char *bytes, size_t len,
                                      struct mpshm__handle *handle)
{
    if (len != sizeof(*handle))
        return -EBADMSG;
    memcpy(handle, bytes, sizeof(*handle));
    if (handle->check != mpshm__handle_checksum(handle) || handle->message > MPSHM__NO_BIT)
        return -EBADMSG;
    return 0;
}

#endif
