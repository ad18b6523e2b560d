/* A segment that its dead owner has left, made one's own.
 *
 * Note [What an adopter believes]
 *
 *   Which blocks are free stands in the table; in which list of its owner a free block is stood in
 *   the dead owner's private memory. A block that is not live may be in one of these places:
 *
 *        the owner's           page state has        who has it now
 *        private lists         LISTED                nobody: the adopter takes it
 *        returned list         nothing, or LISTED    nobody: the adopter takes it
 *        hands (allocating)    IN_USE                nobody, but that cannot be told from:
 *        -                     IN_USE, or DIRTY      a process that lives, and that has exchanged
 *                                                    the state and will push it to the returned
 *                                                    list in a moment
 *
 *   To list a block of the last kind is the one thing that must not happen: it would come back over
 *   the returned list, be in two lists, and belong to two arrays. So LISTED is what counts. An
 * owner sets it when it puts a block into a list and clears it when it takes one out; what neither
 * has the flag nor comes over the returned list is left. That is at most one block for each process
 *   that was killed, until the segment goes.
 *
 *   The returned list is emptied in two walks:
 *
 *       head -> c -> b -> a          walk, and set LISTED in c, b, a; the list stays as it is
 *       head -> d -> c -> b -> a     (somebody frees d meanwhile)
 *       exchange(head, none)         now d, c, b, a are ours
 *       walk again: list all, set LISTED where it is not (d)
 *
 *   - An owner is killed before the exchange: a, b, c are LISTED and still in the returned list.
 * The adopter empties that list first, and only then lists the entries that are LISTED: each once.
 *   - After the exchange: a, b and c are LISTED. d is lost, until the segment goes.
 *   - The adopter is killed before it has confirmed (orphan.c): the manager has it as before.
 *   - In the middle of what follows here: as an owner that is killed while it empties the list. All
 *     else that is written here is private.
 *   - It forks here: it does not, the process's lock is taken. */
#define _GNU_SOURCE
#include <string.h>

#include "allocator/allocator.h"
#include "allocator/cache.h"
#include "allocator/size_class.h"
#include "allocator/slab.h"

static int find_slabs(struct mpshm__segment *segment, uint32_t used)
{
    struct mpshm__slab slab;
    int err;

    segment->slabs = 0;
    for (uint32_t i = 0; i < used; i++) {
        if (mpshm__block_bytes(segment, i) >= MPSHM__SLAB_LIMIT)
            continue;
        err = mpshm__slab_from_table(segment, i, segment->slabs, &slab);
        if (err == 0)
            err = mpshm__slab_add(segment, &slab);
        if (err < 0)
            return err;
        i += slab.count - 1;
    }
    return 0;
}

int mpshm__segment_adopt(struct mpshm__control *control, struct mpshm__segment *segment)
{
    uint64_t cached = atomic_load(&segment->header->cached), counted = 0;
    uint32_t used = mpshm__used(segment);
    int err = mpshm__segment_become_owner(segment);

    if (err == 0)
        err = find_slabs(segment, used);
    if (err < 0)
        return err;
    mpshm__drain_remote_free(segment);
    /* That has listed some; here all are, each once. */
    memset(segment->free_dirty, 0, sizeof(segment->free_dirty));
    memset(segment->free_zero, 0, sizeof(segment->free_zero));
    for (uint32_t i = used; i-- > 0;) {
        uint8_t state = atomic_load(&segment->metadata[i].page_state);
        if (MPSHM__PAGE_STATE(state) == MPSHM__DIRTY)
            counted += mpshm__block_bytes(segment, i);
        /* How far its pages are reserved is not known: that is done again. */
        if (segment->must_reserve)
            segment->committed[i] = 0;
        if (state & MPSHM__LISTED)
            mpshm__list_block(segment, i);
    }
    mpshm__cache_recount(control, segment, cached, counted);
    segment->reserved_entries = used;
    mpshm__segment_dump(segment);
    return 0;
}
