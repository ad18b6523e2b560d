/* When, by which process and from which line a block was sent. Only people who look for a leak read
 * it (process_list.c), so a process may be killed between any two of these lines: the message then
 * has an old time, or no line. The reaper reads the last: whether the process has the message in
 * hand (handle_log.c). */
#include <string.h>

#include "base/clock.h"
#include "reference/message_origin.h"
#include "segment/segment.h"
#include "session/own_session.h"

static _Thread_local char line[MPSHM_SITE_SIZE];

void mpshm_set_site(const char *text)
{
    memset(line, 0, sizeof(line));
    if (text != NULL)
        memcpy(line, text, strnlen(text, sizeof(line) - 1));
}

/* The number of the thread's line in the session: its index + 1, or 0 when there is no room. An
 * entry that another process is writing at this moment is skipped, so a line may have two. */
static uint32_t site_number(struct mpshm__control *control)
{
    uint32_t hash = 2166136261u;

    for (const char *c = line; *c != 0; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    for (uint32_t k = 0; k < MPSHM__SITES; k++) {
        uint32_t at = (hash + k) % MPSHM__SITES, state = MPSHM__SITE_FREE;
        struct mpshm__site *site = &control->sites[at];
        if (atomic_compare_exchange_strong(&site->state, &state, MPSHM__SITE_BEGUN)) {
            memcpy(site->text, line, sizeof(line));
            atomic_store(&site->state, MPSHM__SITE_WRITTEN);
            return at + 1;
        }
        if (state == MPSHM__SITE_WRITTEN && memcmp(site->text, line, sizeof(line)) == 0)
            return at + 1;
    }
    return 0;
}

void mpshm__note_origin(const struct mpshm__session *session, const struct mpshm__segment *segment,
                        uint32_t i, int is_held)
{
    struct mpshm__sent *sent = &segment->sent[i];
    /* The slot has the pid already; getpid() would be a system call. */
    int32_t pid = session->slot >= 0
                      ? atomic_load_explicit(&session->control->slots[session->slot].pid,
                                             memory_order_relaxed)
                      : 0;

    atomic_store_explicit(&sent->at_ns, mpshm__coarse_ns(), memory_order_relaxed);
    atomic_store_explicit(&sent->pid, pid, memory_order_relaxed);
    atomic_store_explicit(&sent->site, line[0] != 0 ? (uint16_t)site_number(session->control) : 0,
                          memory_order_relaxed);
    int has = is_held && session->slot >= 0 && mpshm__is_own_session(session->id);
    atomic_store_explicit(&sent->writer, has ? (uint16_t)(session->slot + 1) : 0,
                          memory_order_relaxed);
}
