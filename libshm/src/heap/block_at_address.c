/* From an address to the block that contains it, also for blocks with a handle, which the heap
 * does not know. For libraries that keep only the address. */
#include <errno.h>
#include <stddef.h>

#include "base/process_lock.h"
#include "reference/reference.h"
#include "segment/address_range.h"
#include "session/session.h"

static int retain_at(struct mpshm__segment *segment, uint64_t offset, mpshm_block *out)
{
    uint32_t i = mpshm__index_before(segment, offset);

    /* Without a reference it may be freed meanwhile. A private block is not shared memory any
     * more. */
    if (i-- == 0 || segment->local_refs[i] == 0 || (segment->local_refs[i] & MPSHM__PRIVATE))
        return -ENOENT;
    uint64_t first = (uint64_t)atomic_load(&segment->blocks[i].where) * 64;
    uint64_t nbytes = atomic_load(&segment->blocks[i].nbytes);
    if (offset - first >= nbytes)
        return -ENOENT;
    segment->local_refs[i]++;
    *out = (mpshm_block){
        .data = segment->data + first, .nbytes = nbytes, .segment = segment, .index = i};
    return 0;
}

int mpshm_block_find(const void *address, int flags, mpshm_block *out)
{
    int err = mpshm_block_at(address, flags, out);

    if (err != -ENOENT)
        return err;
    if (!(flags & MPSHM_NOWAIT))
        mpshm__lock();
    else if (!mpshm__try_lock())
        return -EAGAIN;
    for (int t = 0; t < MPSHM__SESSIONS && err == -ENOENT; t++) {
        struct mpshm__session *session = mpshm__sessions[t];
        for (uint32_t a = 0; session != NULL && a < session->segment_top; a++) {
            struct mpshm__segment *segment = session->segments[a];
            if (segment == NULL || (uintptr_t)address < (uintptr_t)segment->data ||
                (uintptr_t)address - (uintptr_t)segment->data >= segment->room)
                continue;
            err = retain_at(segment, (uintptr_t)address - (uintptr_t)segment->data, out);
            break;
        }
    }
    mpshm__unlock();
    return err;
}
