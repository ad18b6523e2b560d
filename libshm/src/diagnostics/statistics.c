/* Counts of what this process uses and of what the session caches. */
#include <string.h>

#include "allocator/allocator.h"
#include "base/process_lock.h"
#include "heap/heap.h"
#include "segment/segment.h"
#include "session/session.h"
#include "sync/sync.h"

static void count_segment(const struct mpshm__segment *segment, mpshm_stats *out)
{
    uint32_t used = mpshm__used(segment);

    out->segments += segment->own ? 1 : 0;
    out->mappings += 1;
    out->descriptors += segment->fd.number >= 0;
    for (uint32_t i = 0; i < used; i++) {
        const struct mpshm__block *block = &segment->blocks[i];
        uint64_t nbytes;
        if (!(atomic_load(&block->state) & MPSHM__LIVE))
            continue;
        nbytes = atomic_load(&block->nbytes);
        /* Only a block that this process has is certain to keep its pages. */
        if (segment->local_refs[i] != 0 &&
            mpshm__is_sync(segment->data + mpshm__offset(segment, i), nbytes)) {
            out->lock_bytes += nbytes;
            continue;
        }
        if (segment->local_refs[i] != 0) {
            out->live_bytes += nbytes;
            out->live_blocks += 1;
        }
        if (segment->own &&
            (atomic_load(&block->in_flight) || atomic_load(&block->in_flight_overflow)))
            out->in_flight_bytes += nbytes;
    }
    if (segment->own)
        out->cached_bytes += atomic_load(&segment->header->cached);
}

void mpshm_get_stats(mpshm_stats *out)
{
    memset(out, 0, sizeof(*out));
    mpshm__thread_cache_flush();
    mpshm__lock();
    out->descriptors = (uint64_t)mpshm__fd_reserved();
    for (int t = 0; t < MPSHM__SESSIONS; t++) {
        const struct mpshm__session *session = mpshm__sessions[t];
        if (session == NULL)
            continue;
        out->descriptors += (session->sock.number >= 0) + (session->control_fd.number >= 0);
        out->mappings += session->control != NULL;
        out->cache_limit = session->control ? atomic_load(&session->control->cache_limit) : 0;
        out->session_cached_bytes +=
            session->control ? atomic_load(&session->control->cached_bytes) : 0;
        for (uint32_t a = 0; a < session->segment_top; a++)
            if (session->segments[a] != NULL)
                count_segment(session->segments[a], out);
    }
    mpshm__unlock();
}

void mpshm_empty_cache(void)
{
    mpshm__thread_cache_flush();
    mpshm__lock();
    for (int t = 0; t < MPSHM__SESSIONS; t++) {
        struct mpshm__session *session = mpshm__sessions[t];
        if (session == NULL)
            continue;
        for (uint32_t a = 0; a < session->segment_top; a++)
            if (session->segments[a] != NULL && session->segments[a]->own)
                mpshm__trim(session->control, session->segments[a]);
        if (session->control != NULL)
            mpshm__drop_stale_segments(session);
    }
    mpshm__unlock();
}
