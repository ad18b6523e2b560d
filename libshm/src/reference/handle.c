/* Handles: written and parsed. The checksum tells a damaged handle from a stale one. It protects
 * against accidents only and is no secret. */
#include <errno.h>
#include <string.h>

#include "reference/handle.h"

_Static_assert(sizeof(struct mpshm__handle) == MPSHM_HANDLE_SIZE, "the size is public");

static uint64_t checksum(const struct mpshm__handle *handle)
{
    uint64_t words[offsetof(struct mpshm__handle, check) / 8], h = 0xcbf29ce484222325u;

    memcpy(words, handle, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / 8; i++) {
        h = (h ^ words[i]) * 0x9e3779b97f4a7c15u; /* odd, so a change of one word always shows */
        h ^= h >> 32;
    }
    return h;
}

void mpshm__handle_write(struct mpshm__handle *handle, unsigned char *bytes)
{
    handle->check = checksum(handle);
    memcpy(bytes, handle, sizeof(*handle));
}

int mpshm__handle_parse(const unsigned char *bytes, size_t len, struct mpshm__handle *handle)
{
    if (len != sizeof(*handle))
        return -EBADMSG;
    memcpy(handle, bytes, sizeof(*handle));
    if (handle->check != checksum(handle) ||
        (handle->message & ~(uint32_t)MPSHM__COPIED) > MPSHM__NO_BIT)
        return -EBADMSG;
    return 0;
}

int mpshm_handle_info(const unsigned char *bytes, size_t len, uint64_t *nbytes)
{
    struct mpshm__handle handle;
    int err = mpshm__handle_parse(bytes, len, &handle);

    if (err < 0)
        return err;
    *nbytes = handle.nbytes;
    return (handle.message & MPSHM__COPIED) != 0;
}
