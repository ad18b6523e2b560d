/* Every segment of every session of this user, with its contents and the processes that use it. */
#include <string.h>

#include "base/clock.h"
#include "base/process_lock.h"
#include "segment/holder_bits.h"
#include "session/own_session.h"
#include "session/runtime_folder.h"

struct listing {
    mpshm_info *entries;
    int room, count;
};

static void describe(const struct mpshm__session *session, const struct mpshm__segment *segment,
                     mpshm_info *entry)
{
    const struct mpshm__segment_entry *about = &session->control->segments[segment->index];
    uint64_t holders[MPSHM__HOLDER_WORDS] = {0};
    uint32_t owner = atomic_load(&about->owner), used = mpshm__used(segment);

    memset(entry, 0, sizeof(*entry));
    memcpy(entry->session, session->id, MPSHM_ID_SIZE);
    entry->index = segment->index;
    entry->strategy = segment->strategy;
    entry->owner_pid = owner < MPSHM__SLOTS ? atomic_load(&session->control->slots[owner].pid) : 0;
    entry->age_ns = mpshm__now_ns() - atomic_load(&about->created_ns);
    entry->cached_bytes = atomic_load(&segment->header->cached);
    for (uint32_t i = 0; i < used; i++) {
        const struct mpshm__block *block = &segment->blocks[i];
        if (!(atomic_load(&block->state) & MPSHM__LIVE))
            continue;
        uint64_t nbytes = atomic_load(&block->nbytes);
        entry->live_blocks += 1;
        entry->live_bytes += nbytes;
        if (atomic_load(&block->in_flight) || atomic_load(&block->in_flight_overflow))
            entry->in_flight_bytes += nbytes;
        for (int w = 0; w < MPSHM__HOLDER_WORDS; w++)
            holders[w] |= mpshm__holders(session->control, segment, i, w);
    }
    for (int slot = 0; slot < MPSHM__SLOTS; slot++)
        if (holders[slot / 64] >> (slot % 64) & 1)
            entry->holder_pids[entry->holders++] = atomic_load(&session->control->slots[slot].pid);
}

static void list_session(const unsigned char *id, void *arg)
{
    struct listing *l = arg;
    struct mpshm__session *session;
    int was_there = mpshm__session_is_attached(id);

    /* A session that has just ended, or whose manager cannot be reached, has no segments to
     * show. */
    if (mpshm__session_attach(id, mpshm__is_own_session(id), &session) < 0)
        return;
    session->is_listed = !was_there;
    for (uint32_t i = 0; i < MPSHM__SEGMENTS; i++) {
        uint64_t nonce = atomic_load(&session->control->segments[i].nonce[0]);
        struct mpshm__segment *segment;
        if (nonce == 0 || mpshm__segment_attach(session, i, nonce, &segment) < 0)
            continue;
        if (l->count < l->room)
            describe(session, segment, &l->entries[l->count]);
        l->count++;
    }
    if (!was_there)
        mpshm__session_detach_idle(session);
}

int mpshm_list(mpshm_info *entries, int room)
{
    struct listing l = {.entries = entries, .room = room};

    mpshm__lock();
    mpshm__for_each_session(list_session, &l);
    mpshm__unlock();
    return l.count;
}
