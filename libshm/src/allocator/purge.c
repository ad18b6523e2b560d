/* Pages of free blocks given back to the system.
 *
 * Note [Purged under a living owner]
 *   When memory is short the manager purges free blocks of living processes, and such a process
 *   may want the block at the same moment. The page state decides, by compare and exchange:
 *
 *       manager   DIRTY -> PURGING -> (madvise) -> PURGED      or back to DIRTY after an error
 *       owner     DIRTY -> IN_USE                              has pages with old content
 *                 PURGED -> IN_USE                             reads as zero
 *                 PURGING                                      not now: the next one of the list
 *
 *   The flag LISTED stays as it is: only the owner decides in which list the block is.
 *
 *   - The manager is killed while PURGING: no process takes the block. The next manager purges it
 *     again and goes on. It has locked the manager's byte of the control file, so no other manager
 *     is purging.
 *   - The owner is killed: the block stays free, and is purged as an orphan's.
 *   - The manager is stopped: one block is out of use until it continues. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "allocator/cache.h"
#include "allocator/purge.h"
#include "allocator/size_class.h"
#include "segment/memory_object.h"

/* 1 when removed pages really go. An emulator may report success and do nothing (qemu-user 7.2
 * does), and a purged block must read as zero. Tried once, on a page of its own. */
static int pages_can_go(void)
{
    static _Atomic int known; /* 1: they go, -1: they stay */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (atomic_load(&known) == 0) {
        volatile char *at =
            mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            return 0; /* not known yet */
        *at = 1;
        int removed = madvise((void *)at, page, MADV_REMOVE) == 0 && *at == 0;
        atomic_store(&known, removed ? 1 : -1);
        munmap((void *)at, page);
    }
    return atomic_load(&known) > 0;
}

/* 1 when the range of whole pages has gone and reads as zero. */
static int remove_pages(struct mpshm__segment *segment, uint64_t at, uint64_t size)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    if (at % page != 0 || size % page != 0)
        return 0; /* all of it or nothing, because no state describes half a hole */
    /* madvise works through the mapping and needs no descriptor. It fails on locked pages, for
     * example; then the memory stays in use and keeps its content. */
    return pages_can_go() && madvise(segment->data + at, size, MADV_REMOVE) == 0;
}

/* 1 when blocks `first` to `last` have [at, at + size) for themselves. Blocks lie in the order
 * of their indices, so a stray write to one `where` contradicts the blocks beside it. Then
 * nothing is purged, because the range might belong to another block. */
static int is_exclusive(const struct mpshm__segment *segment, uint32_t first, uint32_t last,
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

    return size >= MPSHM__SLAB_LIMIT && is_exclusive(segment, i, i, at, size) &&
           remove_pages(segment, at, size);
}

/* The state of block `i` is PURGING, set by this process. */
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
    /* The owner takes it, or lists it. It is tried again the next time. */
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

    if (!is_exclusive(segment, slab->first, slab->first + slab->count - 1, slab->at, slab->size) ||
        !remove_pages(segment, slab->at, slab->size))
        return 0;
    /* A process that is killed from here on leaves blocks that are marked dirty and read as
     * zero, which does no harm. (An adopter reserves again where memory must be reserved.) */
    for (uint32_t i = slab->first; i < slab->first + slab->count; i++) {
        uint8_t state = atomic_load(&segment->metadata[i].page_state), purged;
        do {
            purged = (uint8_t)(MPSHM__PURGED | (state & MPSHM__LISTED));
            if (MPSHM__PAGE_STATE(state) == MPSHM__IN_USE) /* another process is just freeing it */
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
    /* Processes that have it mapped may read the tables once more. Reserved tables stay, so that
     * such a read is never a SIGBUS. */
    if (!mpshm__object_must_reserve(segment->strategy))
        madvise((char *)segment->header + page,
                segment->header->data_at > page ? segment->header->data_at - page : 0, MADV_REMOVE);
}
