/* Every session of this user and its processes: what each holds, and what it sent and no process
 * has received. It reads the tables of the session and writes nothing. */
#include <string.h>

#include "base/clock.h"
#include "base/process_lock.h"
#include "segment/holder_bits.h"
#include "session/own_session.h"
#include "session/runtime_folder.h"

struct listing {
    mpshm_session_info *sessions;
    mpshm_process_info *processes;
    int session_room, session_count, process_room, process_count;
    int first;                  /* of the processes of this session */
    int by_slot[MPSHM__SLOTS];  /* index of the process in a slot, or -1 */
    mpshm_process_info *latest; /* the process found last */
    uint64_t now;               /* one for all ages: the clock may tick between two messages */
};

/* The entry of a process of the present session, a new one if necessary. NULL without room: it is
 * counted, and the caller asks again with more. */
static mpshm_process_info *entry_of(struct listing *l, const struct mpshm__session *session,
                                    int pid)
{
    if (l->latest != NULL && l->latest->pid == pid)
        return l->latest;
    for (int i = l->first; i < l->process_count && i < l->process_room; i++)
        if (l->processes[i].pid == pid)
            return l->latest = &l->processes[i];
    if (l->process_count++ >= l->process_room)
        return NULL;
    l->latest = &l->processes[l->process_count - 1];
    memset(l->latest, 0, sizeof(*l->latest));
    memcpy(l->latest->session, session->id, MPSHM_ID_SIZE);
    l->latest->pid = pid;
    return l->latest;
}

static void list_slots(struct listing *l, const struct mpshm__session *session,
                       mpshm_session_info *about)
{
    for (int slot = 0; slot < MPSHM__SLOTS; slot++) {
        const struct mpshm__slot *s = &session->control->slots[slot];
        l->by_slot[slot] = -1;
        int pid = atomic_load(&s->pid);
        if (atomic_load(&s->state) != MPSHM__SLOT_TAKEN || pid == 0)
            continue;
        about->processes += 1;
        mpshm_process_info *entry = entry_of(l, session, pid);
        if (entry == NULL)
            continue;
        entry->attached = 1;
        l->by_slot[slot] = (int)(entry - l->processes);
    }
}

static void add_held(struct listing *l, const struct mpshm__session *session,
                     const struct mpshm__segment *segment, uint32_t i, uint64_t nbytes)
{
    for (int w = 0; w < MPSHM__HOLDER_WORDS; w++)
        for (uint64_t bits = mpshm__holders(session->control, segment, i, w); bits != 0;
             bits &= bits - 1) {
            int at = l->by_slot[w * 64 + __builtin_ctzll(bits)];
            if (at < 0)
                continue; /* it has just attached, or is dead and the reaper is on its way */
            l->processes[at].held_blocks += 1;
            l->processes[at].held_bytes += nbytes;
        }
}

/* Copy a line of source. Any process of the session can write there, so it is ended and cleaned. */
static void copy_site(const struct mpshm__control *control, uint32_t number, char *out)
{
    memset(out, 0, MPSHM_SITE_SIZE);
    if (number == 0 || number > MPSHM__SITES ||
        atomic_load(&control->sites[number - 1].state) != MPSHM__SITE_WRITTEN)
        return;
    memcpy(out, control->sites[number - 1].text, MPSHM_SITE_SIZE - 1);
    for (char *c = out; *c != 0; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
}

static void add_in_flight(struct listing *l, const struct mpshm__session *session,
                          const struct mpshm__segment *segment, uint32_t i, uint64_t nbytes)
{
    const struct mpshm__sent *sent = &segment->sent[i];
    uint64_t at = atomic_load(&sent->at_ns);
    mpshm_process_info *entry = entry_of(l, session, atomic_load(&sent->pid));

    if (entry == NULL)
        return;
    entry->in_flight_blocks += 1;
    entry->in_flight_bytes += nbytes;
    uint64_t age = l->now > at ? l->now - at : 0;
    if (entry->in_flight_blocks > 1 && age <= entry->oldest_ns)
        return;
    entry->oldest_ns = age;
    entry->oldest_bytes = nbytes;
    copy_site(session->control, atomic_load(&sent->site), entry->oldest_site);
}

static void list_segment(struct listing *l, const struct mpshm__session *session,
                         const struct mpshm__segment *segment)
{
    uint32_t owner = atomic_load(&session->control->segments[segment->index].owner);
    uint32_t used = mpshm__used(segment);

    if (owner < MPSHM__SLOTS && l->by_slot[owner] >= 0)
        l->processes[l->by_slot[owner]].cached_bytes += atomic_load(&segment->header->cached);
    for (uint32_t i = 0; i < used; i++) {
        const struct mpshm__block *block = &segment->blocks[i];
        if (!(atomic_load(&block->state) & MPSHM__LIVE))
            continue;
        uint64_t nbytes = atomic_load(&block->nbytes);
        add_held(l, session, segment, i, nbytes);
        if (atomic_load(&block->in_flight) || atomic_load(&block->in_flight_overflow))
            add_in_flight(l, session, segment, i, nbytes);
    }
}

static void list_session(const unsigned char *id, void *arg)
{
    struct listing *l = arg;
    struct mpshm__session *session;
    mpshm_session_info about = {0};
    int was_there = mpshm__session_is_attached(id);

    /* A session that has just ended, or whose manager cannot be reached, has nothing to show. */
    if (mpshm__session_attach(id, mpshm__is_own_session(id), &session) < 0)
        return;
    session->is_listed = !was_there;
    l->first = l->process_count;
    l->latest = NULL;
    memcpy(about.session, id, MPSHM_ID_SIZE);
    about.manager_starts = atomic_load(&session->control->manager_starts);
    about.cached_bytes = atomic_load(&session->control->cached_bytes);
    about.cache_limit = atomic_load(&session->control->cache_limit);
    list_slots(l, session, &about);
    for (uint32_t i = 0; i < MPSHM__SEGMENTS; i++) {
        uint64_t nonce = atomic_load(&session->control->segments[i].nonce[0]);
        struct mpshm__segment *segment;
        if (nonce != 0 && mpshm__segment_attach(session, i, nonce, &segment) == 0)
            list_segment(l, session, segment);
    }
    if (l->session_count < l->session_room)
        l->sessions[l->session_count] = about;
    l->session_count++;
    if (!was_there)
        mpshm__session_detach_idle(session);
}

void mpshm_list_processes(mpshm_session_info *sessions, int session_room, int *session_count,
                          mpshm_process_info *processes, int process_room, int *process_count)
{
    struct listing l = {.sessions = sessions,
                        .session_room = session_room,
                        .processes = processes,
                        .process_room = process_room,
                        .now = mpshm__coarse_ns()};

    mpshm__lock();
    mpshm__for_each_session(list_session, &l);
    mpshm__unlock();
    *session_count = l.session_count;
    *process_count = l.process_count;
}
