/* Segments whose owner has died: kept for an adopter, purged, dropped.
 *
 * Note [Orphaned segments]
 *
 *        owner lives ---- dies ---> waiting (GRACE) --------> purged ------> dropped
 *             ^                        |                        |            when no block is live
 *             |        ADOPT           |        ADOPT           |
 *             +------------------------+------------------------+
 *
 *   waiting   as it was left, with its pages: the next worker of a pool finds it dirty
 *   purged    the pages of free blocks have gone, and a process that frees a block purges it
 *
 *   The control file says who owns a segment: MPSHM__NO_SLOT is no owner. To hand it over:
 *
 *        manager   handed = slot + 1         1
 *                  owner_pid, owner = slot   2
 *                  answers                   3
 *        adopter   handed: slot + 1 -> 0     4   by compare and exchange, before any change
 *                  adopts                        see adopt_segment.c
 *
 *   - The manager dies after 1: there is no owner, so its successor clears `handed`.
 *   - After 2 or 3: the adopter asks the successor, which gives the same answer.
 *   - The adopter dies after 2: its segment is an orphan again.
 *   - The adopter is stopped before 4, or has given up asking: the manager takes the segment back
 *     after CONFIRM_WITHIN, by the same compare and exchange, so one of the two wins. */
#include <errno.h>

#include "allocator/cache.h"
#include "allocator/purge.h"
#include "allocator/size_class.h"
#include "allocator/slab.h"
#include "base/clock.h"
#include "manager/manager.h"
#include "segment/memory_object.h"
#include "segment/segment.h"

enum {
    GRACE_MS = 500,
    CONFIRM_WITHIN_MS = 2000,
    POLL_MS = 500, /* for orphans that are purged and still in use */
};
#define TAKEN_BACK 0xffffffffu

void mpshm__orphan_begin(struct manager *m, uint32_t i)
{
    struct mpshm__segment_entry *entry = &m->session.control->segments[i];

    atomic_store(&entry->owner, MPSHM__NO_SLOT);
    atomic_store(&entry->handed, 0);
    m->since[i] = mpshm__now_ns();
    m->poll_at = 0;
    m->orphans = 1; /* counted at the next poll */
}

/* After the former manager was killed: continue its work. */
void mpshm__orphans_resume(struct manager *m)
{
    for (uint32_t i = 0; i < m->session.segment_top; i++) {
        struct mpshm__segment_entry *entry = &m->session.control->segments[i];
        if (m->session.segments[i] == NULL)
            continue;
        if (atomic_load(&entry->handed) == TAKEN_BACK ||
            atomic_load(&entry->owner) == MPSHM__NO_SLOT)
            mpshm__orphan_begin(m, i);
        mpshm__purge_finish(m->session.control, m->session.segments[i]);
    }
}

/* ---- purge and drop ---- */

/* 1 when a block is live. The one of the last poll is checked first. */
static int is_live(struct manager *m, uint32_t i)
{
    struct mpshm__segment *segment = m->session.segments[i];
    uint32_t used = mpshm__used(segment);

    if (m->live_index[i] < used &&
        atomic_load(&segment->blocks[m->live_index[i]].state) & MPSHM__LIVE)
        return 1;
    for (uint32_t k = 0; k < used; k++)
        if (atomic_load(&segment->blocks[k].state) & MPSHM__LIVE) {
            m->live_index[i] = k;
            return 1;
        }
    return 0;
}

static int slab_is_live(const struct mpshm__segment *segment, const struct mpshm__slab *slab)
{
    for (uint32_t k = slab->first; k < slab->first + slab->count; k++)
        if (atomic_load(&segment->blocks[k].state) & MPSHM__LIVE)
            return 1;
    return 0;
}

/* No block comes to life while the segment has no owner. */
static void purge_free_blocks(struct manager *m, struct mpshm__segment *segment)
{
    uint64_t slabs = 0;

    for (uint32_t k = 0, used = mpshm__used(segment); k < used; k++) {
        uint32_t c = atomic_load(&segment->metadata[k].size_class) % MPSHM__CLASSES;
        struct mpshm__slab slab;
        if (mpshm__class_bytes(c) < MPSHM__SLAB_LIMIT) {
            if (mpshm__slab_from_table(segment, k, slabs++, &slab) < 0)
                return; /* a process has written into its tables */
            if (!slab_is_live(segment, &slab))
                mpshm__purge_slab(m->session.control, segment, &slab);
            k += slab.count - 1;
        } else if (!(atomic_load(&segment->blocks[k].state) & MPSHM__LIVE)) {
            /* Its owner died while it allocated the block, or a process is just freeing it and
             * will mark it dirty, which does no harm if the pages have gone. */
            if (MPSHM__PAGE_STATE(atomic_load(&segment->metadata[k].page_state)) == MPSHM__IN_USE)
                mpshm__purge_pages(segment, k);
            else
                mpshm__purge_free(m->session.control, segment, k);
        }
    }
}

void mpshm__drop_segment(struct manager *m, uint32_t i)
{
    struct mpshm__segment *segment = m->session.segments[i];
    struct mpshm__segment_entry *entry = &m->session.control->segments[i];

    mpshm__cache_take(m->session.control, segment, atomic_load(&segment->header->cached));
    atomic_store(&entry->nonce[0], 0);
    atomic_store(&entry->handed, 0);
    if (segment->strategy == MPSHM_FILE_SYSTEM)
        mpshm__object_unlink(segment->nonce);
    mpshm__segment_unmap(segment);
    m->session.segments[i] = NULL;
}

/* 1 when the segment is gone, 0 while it must be kept. */
static int reclaim(struct manager *m, uint32_t i, uint64_t now)
{
    struct mpshm__segment *segment = m->session.segments[i];

    if (m->since[i] == 0)
        m->since[i] = now;
    if (now - m->since[i] < GRACE_MS * 1000000ull)
        return 0;
    if (!is_live(m, i)) {
        mpshm__purge_all(segment);
        mpshm__drop_segment(m, i);
        m->since[i] = 0;
        return 1;
    }
    if (atomic_exchange(&segment->header->orphan, 1) == 0 ||
        atomic_load(&segment->header->cached) != m->left_cached[i])
        purge_free_blocks(m, segment);
    m->left_cached[i] = atomic_load(&segment->header->cached);
    return 0;
}

void mpshm__orphans_reclaim(struct manager *m)
{
    uint64_t now = mpshm__now_ns();
    int orphans = 0, soon = 0;

    if (now < m->poll_at)
        return;
    for (uint32_t i = 0; i < m->session.segment_top; i++) {
        struct mpshm__segment_entry *entry = &m->session.control->segments[i];
        if (m->session.segments[i] == NULL)
            continue;
        uint32_t handed = atomic_load(&entry->handed);
        uint32_t expected = handed;
        if (handed != 0 && now - m->since[i] > CONFIRM_WITHIN_MS * 1000000ull &&
            atomic_compare_exchange_strong(&entry->handed, &expected, TAKEN_BACK))
            mpshm__orphan_begin(m, i);
        if (handed != 0) {
            orphans++, soon = 1;
        } else if (atomic_load(&entry->owner) == MPSHM__NO_SLOT) {
            orphans += !reclaim(m, i, now);
            soon |= m->since[i] != 0 && now - m->since[i] < GRACE_MS * 1000000ull;
        }
    }
    m->orphans = orphans;
    m->poll_at = now + (soon ? TICK_MS : POLL_MS) * 1000000ull;
}

int mpshm__orphans_timeout(const struct manager *m)
{
    uint64_t now = mpshm__now_ns();

    if (m->orphans == 0)
        return -1;
    return m->poll_at <= now ? 0 : (int)((m->poll_at - now) / 1000000) + 1;
}

/* ---- hand over ---- */

static int has_room(const struct mpshm__segment *segment, uint64_t nbytes)
{
    uint32_t c = mpshm__class_of(nbytes), used = mpshm__used(segment);
    uint64_t size = mpshm__class_bytes(c), bumped = atomic_load(&segment->header->bumped);
    uint64_t fresh = size < MPSHM__SLAB_LIMIT ? MPSHM__SLAB_BYTES : mpshm__pages(size);
    uint64_t entries = size < MPSHM__SLAB_LIMIT ? MPSHM__SLAB_BYTES / size : 1;

    if (bumped <= segment->room && fresh <= segment->room - bumped && bumped < MPSHM__OFFSETS &&
        used + entries <= segment->capacity)
        return 1;
    for (uint32_t k = 0; k < used; k++)
        if (atomic_load(&segment->metadata[k].size_class) == c &&
            (atomic_load(&segment->metadata[k].page_state) & MPSHM__LISTED))
            return 1;
    return 0;
}

/* Index + 1 of the orphan with the most cached memory; 0 for none. */
static uint32_t choose(struct manager *m, const struct mpshm__frame *f, uint32_t slot,
                       uint64_t *left)
{
    uint64_t most = 0;
    uint32_t best = 0;

    *left = 0;
    for (uint32_t i = 0; i < m->session.segment_top; i++) {
        const struct mpshm__segment *segment = m->session.segments[i];
        const struct mpshm__segment_entry *entry = &m->session.control->segments[i];
        if (segment == NULL || segment->strategy != f->strategy)
            continue;
        uint32_t owner = atomic_load(&entry->owner), handed = atomic_load(&entry->handed);
        if (owner == slot && handed == slot + 1)
            return i + 1; /* the client asked before, and the answer was lost */
        if (owner != MPSHM__NO_SLOT || handed != 0)
            continue;
        *left += segment->room;
        uint64_t cached = atomic_load(&segment->header->cached) + 1;
        if (cached > most && segment->room >= f->nonce[0] && has_room(segment, f->size)) {
            most = cached;
            best = i + 1;
        }
    }
    return best;
}

int mpshm__orphan_hand_over(struct manager *m, int c, struct mpshm__frame *f, int *fd)
{
    uint64_t left = 0;
    uint32_t i;

    if (m->slot_of[c] < 0 || f->size > MPSHM__LARGEST)
        return -EBADMSG;
    uint32_t slot = (uint32_t)m->slot_of[c];
    i = choose(m, f, slot, &left);
    if (i-- == 0) {
        f->size = left;
        return -ENOENT;
    }
    struct mpshm__segment_entry *entry = &m->session.control->segments[i];
    struct mpshm__segment *segment = m->session.segments[i];
    m->since[i] = mpshm__now_ns();
    atomic_store(&entry->handed, slot + 1);
    atomic_store(&entry->owner_fd, -1); /* the adopter will write it */
    atomic_store(&entry->owner_pid, atomic_load(&m->session.control->slots[slot].pid));
    atomic_store(&entry->owner, slot);
    atomic_store(&segment->header->orphan, 0);
    m->orphans = 1; /* until it is confirmed */
    f->a = i;
    *fd = mpshm__fd_get(&segment->fd);
    return 0;
}
