/* Rebuild the owner's private state in a segment whose owner is dead.
 *
 * Note [Adopting a segment]
 *
 *   The table tells which blocks are free. Only the dead owner's private memory told in which of
 *   its lists a free block was. A block that is not live may be in one of these places:
 *
 *        place                 page state has        present holder
 *        private lists         LISTED                no process: the adopter takes it
 *        remote-free list      nothing, or LISTED    no process: the adopter takes it
 *        being allocated       IN_USE                no process, but this looks the same as:
 *        being freed           IN_USE, or DIRTY      a living process, which has replaced the
 *                                                    state and is about to push the block to the
 *                                                    remote-free list
 *
 *   The adopter must not list a block of the last kind: it would come back over the remote-free
 *   list, be in two lists, and belong to two arrays. So the adopter goes by LISTED. An owner sets
 *   it when it puts a block into a list and clears it when it takes one out. The adopter leaves a
 *   block that neither has the flag nor comes over the remote-free list. That is at most one block
 *   for each process that was killed, until the segment goes.
 *
 *   The remote-free list is drained in two walks:
 *
 *       head -> c -> b -> a          walk, and set LISTED in c, b, a; the list stays as it is
 *       head -> d -> c -> b -> a     (another process frees d meanwhile)
 *       exchange(head, none)         now d, c, b, a are the owner's
 *       walk again: list all, set LISTED where it is not (d)
 *
 *   - The owner is killed before the exchange: a, b, c are LISTED and still in the remote-free
 *     list. The adopter drains that list first, and only then lists the LISTED blocks: each once.
 *   - After the exchange: a, b and c are LISTED. d is lost, until the segment goes.
 *   - The adopter is killed before it has confirmed (reclaim_segment.c): the manager has the
 *     segment as before.
 *   - The adopter is killed after that: as an owner that is killed while it drains the list. All
 *     else that it writes here is private.
 *   - The adopter cannot fork here, because it has the process lock. */
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
    /* That listed some blocks. This lists all of them, each once. */
    memset(segment->free_dirty, 0, sizeof(segment->free_dirty));
    memset(segment->free_zero, 0, sizeof(segment->free_zero));
    for (uint32_t i = used; i-- > 0;) {
        uint8_t state = atomic_load(&segment->metadata[i].page_state);
        if (MPSHM__PAGE_STATE(state) == MPSHM__DIRTY)
            counted += mpshm__block_bytes(segment, i);
        /* It is not known how many of its pages are reserved, so they are reserved again. */
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
