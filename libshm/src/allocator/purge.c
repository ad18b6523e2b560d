/* Pages of free blocks given back to the system, and the count of what is kept.
 *
 * Note [Purged under a living owner]
 *   When memory is short the manager purges free blocks of processes that live, and such a process
 * may want the block at the same moment. The page state decides, by compare and exchange:
 *
 *       manager   DIRTY -> PURGING -> (madvise) -> PURGED      or back to DIRTY when it was refused
 *       owner     DIRTY -> IN_USE                              the pages are there, content is old
 *                 PURGED -> IN_USE                             reads as zero
 *                 PURGING                                      not now: the next one of the list
 *
 *   The flag LISTED stays as it is: where the block is listed is the owner's business alone.
 *
 *   - The manager is killed while PURGING: nobody takes the block. The next manager purges it again
 *     and goes on. It holds the byte of the control file that says that no other manager does, see
 *     orphan.c, so it is never the second one at it.
 *   - The owner is killed: the block stays free, and is purged as that of an orphan.
 *   - The manager is stopped: one block is out of use until it goes on. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "allocator/cache.h"
#include "allocator/purge.h"
#include "allocator/size_class.h"
#include "segment/memory_object.h"

/* 1 when the range, whole pages, is gone and reads as zero. */
static int punch(struct mpshm__segment *segment, uint64_t at, uint64_t size)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    if (at % page != 0 || size % page != 0)
        return 0; /* all of it or nothing: what is half a hole is hard to keep books of */
    /* A hole through the mapping: it needs no descriptor. It fails on locked pages, for example;
     * then the memory stays in use and its content stays what it was. */
    return madvise(segment->data + at, size, MADV_REMOVE) == 0;
}

/* Do entries `first` to `last` have [at, at + size) for themselves? Blocks lie in the order of
 * their entries, so a stray write into one entry disagrees with its neighbours, and then nothing is
 * purged: what would be cleared might be somebody else's. */
static int is_theirs(const struct mpshm__segment *segment, uint32_t first, uint32_t last,
                     uint64_t at, uint64_t size)
{
    uint64_t end = segment->room, used = atomic_load(&segment->header->bumped);

    if (used < end)
        end = used;
    if (last + (uint64_t)1 < mpshm__used(segment) && mpshm__offset(segment, last + 1) < end)
        end = mpshm__offset(segment, last + 1);
    if (size > end || at > end - size)
        return 0;
    return first == 0 ||
           mpshm__offset(segment, first - 1) + mpshm__block_bytes(segment, first - 1) <= at;
}

int mpshm__purge_pages(struct mpshm__segment *segment, uint32_t i)
{
    uint64_t at = mpshm__offset(segment, i), size = mpshm__pages(mpshm__block_bytes(segment, i));

    return size >= MPSHM__SLAB_LIMIT && is_theirs(segment, i, i, at, size) &&
           punch(segment, at, size);
}

/* The block is PURGING, and it is us. */
static uint64_t purge(struct mpshm__control *control, struct mpshm__segment *segment, uint32_t i)
{
    if (!mpshm__purge_pages(segment, i)) {
        atomic_fetch_xor(&segment->metadata[i].page_state, MPSHM__PURGING ^ MPSHM__DIRTY);
        return 0;
    }
    atomic_fetch_xor(&segment->metadata[i].page_state, MPSHM__PURGING ^ MPSHM__PURGED);
    mpshm__cache_take(control, segment, mpshm__block_bytes(segment, i));
    return mpshm__block_bytes(segment, i);
}

uint64_t mpshm__purge_free(struct mpshm__control *control, struct mpshm__segment *segment,
                           uint32_t i)
{
    uint8_t state = atomic_load(&segment->metadata[i].page_state);

    if (MPSHM__PAGE_STATE(state) != MPSHM__DIRTY ||
        mpshm__block_bytes(segment, i) < MPSHM__SLAB_LIMIT)
        return 0;
    uint8_t purging = (uint8_t)(MPSHM__PURGING | (state & MPSHM__LISTED));
    /* The owner takes it, or lists it: then it is looked at again the next time. */
    if (!atomic_compare_exchange_strong(&segment->metadata[i].page_state, &state, purging))
        return 0;
    return purge(control, segment, i);
}

void mpshm__purge_finish(struct mpshm__control *control, struct mpshm__segment *segment)
{
    for (uint32_t i = 0, used = mpshm__used(segment); i < used; i++)
        if (MPSHM__PAGE_STATE(atomic_load(&segment->metadata[i].page_state)) == MPSHM__PURGING)
            purge(control, segment, i);
}

/* ---- slabs ---- */

int mpshm__purge_slab(struct mpshm__control *control, struct mpshm__segment *segment,
                      const struct mpshm__slab *slab)
{
    uint64_t size = mpshm__class_bytes(slab->size_class);

    if (!is_theirs(segment, slab->first, slab->first + slab->count - 1, slab->at, slab->size) ||
        !punch(segment, slab->at, slab->size))
        return 0;
    /* Killed from here on: blocks that say that they are dirty and read as zero, which is no harm.
     * (What has to be reserved first is reserved again by whoever adopts the segment.) */
    for (uint32_t i = slab->first; i < slab->first + slab->count; i++) {
        uint8_t state = atomic_load(&segment->metadata[i].page_state), purged;
        do {
            purged = (uint8_t)(MPSHM__PURGED | (state & MPSHM__LISTED));
            if (MPSHM__PAGE_STATE(state) == MPSHM__IN_USE) /* somebody is just freeing it */
                break;
        } while (!atomic_compare_exchange_weak(&segment->metadata[i].page_state, &state, purged));
        if (MPSHM__PAGE_STATE(state) == MPSHM__DIRTY)
            mpshm__cache_take(control, segment, size);
    }
    return 1;
}

void mpshm__purge_all(struct mpshm__segment *segment)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end = atomic_load(&segment->header->bumped);

    if (end > segment->room)
        end = segment->room;
    end = (end + page - 1) / page * page;
    madvise(segment->data, end, MADV_REMOVE);
    /* Who still maps it may look into the tables once more. Where they have to be reserved they
     * stay, so that such a look is never a SIGBUS. */
    if (!mpshm__object_must_reserve(segment->strategy))
        madvise((char *)segment->header + page,
                segment->header->data_at > page ? segment->header->data_at - page : 0, MADV_REMOVE);
}
