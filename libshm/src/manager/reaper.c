/* The reaper: finds dead processes, clears their bits in every block of every segment, frees the
 * blocks that nobody else refers to, and frees their slots. It also keeps the manager's table of
 * mapped segments, and builds it again when a manager replaces one that was killed.
 *
 * Where pages go back to the system: of a block freed here, in mpshm__try_free (reference.c), at
 * once if its segment is an orphan or the cache is full. Otherwise the block stays cached for the
 * living owner of its segment, within the limit of cache_limit.c. Of a dead owner's segments, in
 * reclaim_segment.c. */
#define _GNU_SOURCE
#include <unistd.h>

#include "manager/manager.h"
#include "reference/reference.h"
#include "reference/handle_log.h"
#include "segment/memory_object.h"
#include "session/process_slot.h"

void mpshm__reaper_unwatch(struct manager *m, int slot)
{
    if (m->watched[slot]) {
        m->watched[slot] = 0;
        m->watching--;
    }
}

int mpshm__reaper_is_attached(const struct manager *m, int slot)
{
    for (int c = FIRST; c < m->top; c++)
        if (m->slot_of[c] == slot)
            return 1;
    return 0;
}

/* No connection belongs to `slot` any more, so that a later hang-up is not taken for the death
 * of the slot's next process. */
void mpshm__reaper_detach(struct manager *m, int slot)
{
    for (int c = FIRST; c < m->top; c++)
        if (m->slot_of[c] == slot)
            m->slot_of[c] = -1;
}

/* The processes of these slots are dead. */
static void clear_references(struct manager *m, const int *dead, int count)
{
    struct mpshm__control *control = m->session.control;
    uint64_t gone[MPSHM__HOLDER_WORDS] = {0};

    for (int k = 0; k < count; k++) {
        gone[dead[k] / 64] |= (uint64_t)1 << (dead[k] % 64);
        mpshm__handle_log_discard(&m->session, dead[k]); /* first: the blocks are freed below */
    }
    for (uint32_t i = 0; i < m->session.segment_top; i++) {
        struct mpshm__segment *segment = m->session.segments[i];
        if (segment == NULL)
            continue;
        uint32_t owner = atomic_load(&control->segments[i].owner);
        if (owner < MPSHM__SLOTS && gone[owner / 64] >> (owner % 64) & 1)
            mpshm__orphan_begin(m, i);
        mpshm__clear_dead_holders(control, segment, gone);
    }
    for (int k = 0; k < count; k++)
        mpshm__object_unlink_unfinished(control, &control->slots[dead[k]]);
}

/* Find the dead among the slots that are watched. A thousand may have died at once: all segments
 * are read once for all of them. The manager holds the locks of their slots itself while it clears
 * the references, so no process takes such a slot before that is done. If the manager is killed
 * meanwhile, a slot is taken and not locked, and the next manager does it again. */
void mpshm__reaper_poll(struct manager *m)
{
    int control = m->session.control_fd.number, dead[MPSHM__SLOTS], count = 0;

    for (int slot = 0; slot < MPSHM__SLOTS && m->watching > 0; slot++)
        /* The lock is refused when a living process has it after all. */
        if (m->watched[slot] && !mpshm__reaper_is_alive(m, slot) &&
            mpshm__lock_dead_slot(control, slot) >= 0) {
            dead[count++] = slot;
            mpshm__reaper_unwatch(m, slot);
            mpshm__reaper_detach(m, slot);
        }
    if (count == 0)
        return;
    clear_references(m, dead, count);
    for (int k = 0; k < count; k++) {
        atomic_store(&m->session.control->slots[dead[k]].pid, 0);
        atomic_store(&m->session.control->slots[dead[k]].state, MPSHM__SLOT_FREE);
        mpshm__unlock_byte(control, dead[k]);
    }
    mpshm__orphans_reclaim(m);
}

/* See control_file.h, Note [Liveness]. */
int mpshm__reaper_is_alive(const struct manager *m, int slot)
{
    return mpshm__slot_lives(m->session.control, m->session.control_fd.number, slot);
}

/* Watch the slots that are taken and have no connection. It runs at each hang-up, and a thousand
 * processes may die at once: one pass over the connections, not one for each slot. */
void mpshm__reaper_discover(struct manager *m)
{
    unsigned char attached[MPSHM__SLOTS] = {0};

    for (int c = FIRST; c < m->top; c++)
        if (m->slot_of[c] >= 0)
            attached[m->slot_of[c]] = 1;
    for (int slot = 0; slot < MPSHM__SLOTS; slot++)
        if (atomic_load(&m->session.control->slots[slot].state) == MPSHM__SLOT_TAKEN &&
            !attached[slot])
            mpshm__reaper_watch(m, slot);
}

int mpshm__reaper_has_pending(const struct manager *m)
{
    for (int slot = 0; slot < MPSHM__SLOTS; slot++)
        if (m->watched[slot] && mpshm__reaper_is_alive(m, slot))
            return 1;
    return 0;
}

void mpshm__reaper_watch(struct manager *m, int slot)
{
    if (!m->watched[slot]) {
        m->watched[slot] = 1;
        m->watching++;
    }
}

int mpshm__reaper_map_segment(struct manager *m, uint32_t i, int fd)
{
    struct mpshm__segment *segment;
    int err = mpshm__segment_map(fd, i, &m->session.control->segments[i], m->session.id,
                                 m->session.user, &segment);

    if (err < 0)
        return err;
    mpshm__fd_set(&segment->fd, fd);
    m->session.segments[i] = segment;
    if (i >= m->session.segment_top)
        m->session.segment_top = i + 1;
    return 0;
}

/* Processes, and maybe the owner, died while this segment was out of reach, and their bits are
 * still in it. */
void mpshm__reaper_catch_up(struct manager *m, uint32_t i)
{
    struct mpshm__control *control = m->session.control;
    struct mpshm__segment_entry *entry = &control->segments[i];
    uint64_t gone[MPSHM__HOLDER_WORDS] = {0};
    uint32_t owner = atomic_load(&entry->owner);

    if (owner >= MPSHM__SLOTS || atomic_load(&control->slots[owner].state) == MPSHM__SLOT_FREE ||
        atomic_load(&control->slots[owner].pid) != atomic_load(&entry->owner_pid)) {
        mpshm__orphan_begin(m, i);
    }
    /* A slot stays free while its lock is held here, and a process sets bits only after it has
     * the lock. */
    for (int slot = 0; slot < MPSHM__SLOTS; slot++) {
        if (atomic_load(&control->slots[slot].state) != MPSHM__SLOT_FREE ||
            mpshm__lock_dead_slot(m->session.control_fd.number, slot) < 0)
            continue;
        if (atomic_load(&control->slots[slot].state) == MPSHM__SLOT_FREE)
            gone[slot / 64] |= (uint64_t)1 << (slot % 64);
        else
            mpshm__unlock_byte(m->session.control_fd.number, slot);
    }
    mpshm__clear_dead_holders(control, m->session.segments[i], gone);
    for (int slot = 0; slot < MPSHM__SLOTS; slot++)
        if (gone[slot / 64] >> (slot % 64) & 1)
            mpshm__unlock_byte(m->session.control_fd.number, slot);
}

/* After the former manager was killed: find all that the control file lists. */
void mpshm__reaper_resume(struct manager *m)
{
    struct mpshm__control *control = m->session.control;

    for (uint32_t i = 0; i < MPSHM__SEGMENTS; i++) {
        struct mpshm__segment_entry *entry = &control->segments[i];
        uint64_t nonce[2] = {atomic_load(&entry->nonce[0]), atomic_load(&entry->nonce[1])};
        int fd;
        if (nonce[0] == 0)
            continue;
        if (atomic_load(&entry->strategy) == MPSHM_FILE_SYSTEM) {
            fd = mpshm__object_open_name(nonce);
        } else {
            /* The owner has the descriptor open, if it still is that process. If /proc does not
             * show it, the owner will register the segment again. */
            uint32_t owner = atomic_load(&entry->owner);
            if (owner >= MPSHM__SLOTS || !mpshm__reaper_is_alive(m, (int)owner) ||
                atomic_load(&control->slots[owner].pid) != atomic_load(&entry->owner_pid))
                continue;
            fd = mpshm__object_from_owner(entry);
        }
        if (fd >= 0 && mpshm__reaper_map_segment(m, i, fd) < 0)
            close(fd);
    }
    mpshm__reaper_discover(m); /* all slots: nobody is connected yet */
    mpshm__reaper_poll(m);
    for (uint32_t i = 0; i < m->session.segment_top; i++)
        if (m->session.segments[i] != NULL)
            mpshm__reaper_catch_up(m, i);
    mpshm__orphans_resume(m);
    mpshm__orphans_reclaim(m);
}
