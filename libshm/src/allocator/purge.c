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
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

/* A process that is killed between two additions leaves the sums too high or too low by one block.
 * They never go below zero, which would switch the cache off for good; the manager corrects them,
 * see cache.c. */
static void take_away(_Atomic uint64_t *sum, uint64_t size)
{
    uint64_t now = atomic_load(sum);

    while (!atomic_compare_exchange_weak(sum, &now, now > size ? now - size : 0))
        ;
}

void mpshm__cache_add(struct mpshm__control *control, struct mpshm__arena *arena, uint64_t size)
{
    atomic_fetch_add(&arena->header->cached, size);
    atomic_fetch_add(&control->cached_bytes, size);
}

void mpshm__cache_take(struct mpshm__control *control, struct mpshm__arena *arena, uint64_t size)
{
    take_away(&arena->header->cached, size);
    take_away(&control->cached_bytes, size);
}

static uint64_t place(const struct mpshm__arena *arena, uint32_t i)
{
    return (uint64_t)atomic_load(&arena->blocks[i].where) * 64;
}

static uint64_t bytes_of(const struct mpshm__arena *arena, uint32_t i)
{
    return mpshm__class_bytes(atomic_load(&arena->traits[i].size_class) % MPSHM__CLASSES);
}

/* 1 when the range, whole pages, is gone and reads as zero. */
static int punch(struct mpshm__arena *arena, uint64_t at, uint64_t size)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    if (at % page != 0 || size % page != 0)
        return 0; /* all of it or nothing: what is half a hole is hard to keep books of */
    /* A hole through the mapping: it needs no descriptor. It fails on locked pages, for example;
     * then the memory stays in use and its content stays what it was. */
    return madvise(arena->data + at, size, MADV_REMOVE) == 0;
}

/* Do rows `first` to `last` have [at, at + size) for themselves? Blocks lie in the order of their
 * rows, so a stray write into one row disagrees with its neighbours, and then nothing is purged:
 * what would be cleared might be somebody else's. */
static int is_theirs(const struct mpshm__arena *arena, uint32_t first, uint32_t last, uint64_t at,
                     uint64_t size)
{
    uint64_t end = arena->room, used = atomic_load(&arena->header->carved);

    if (used < end)
        end = used;
    if (last + (uint64_t)1 < mpshm__used(arena) && place(arena, last + 1) < end)
        end = place(arena, last + 1);
    if (size > end || at > end - size)
        return 0;
    return first == 0 || place(arena, first - 1) + bytes_of(arena, first - 1) <= at;
}

int mpshm__purge_pages(struct mpshm__arena *arena, uint32_t i)
{
    uint64_t at = place(arena, i), size = mpshm__pages(bytes_of(arena, i));

    return size >= MPSHM__SLAB_LIMIT && is_theirs(arena, i, i, at, size) && punch(arena, at, size);
}

/* The block is PURGING, and it is us. */
static uint64_t purge(struct mpshm__control *control, struct mpshm__arena *arena, uint32_t i)
{
    if (!mpshm__purge_pages(arena, i)) {
        atomic_fetch_xor(&arena->traits[i].warmth, MPSHM__PURGING ^ MPSHM__WARM);
        return 0;
    }
    atomic_fetch_xor(&arena->traits[i].warmth, MPSHM__PURGING ^ MPSHM__PUNCHED);
    mpshm__cache_take(control, arena, bytes_of(arena, i));
    return bytes_of(arena, i);
}

uint64_t mpshm__purge_free(struct mpshm__control *control, struct mpshm__arena *arena, uint32_t i)
{
    uint8_t state = atomic_load(&arena->traits[i].warmth);

    if (MPSHM__PAGES(state) != MPSHM__WARM || bytes_of(arena, i) < MPSHM__SLAB_LIMIT)
        return 0;
    uint8_t purging = (uint8_t)(MPSHM__PURGING | (state & MPSHM__LISTED));
    /* The owner takes it, or lists it: then it is looked at again the next time. */
    if (!atomic_compare_exchange_strong(&arena->traits[i].warmth, &state, purging))
        return 0;
    return purge(control, arena, i);
}

void mpshm__purge_finish(struct mpshm__control *control, struct mpshm__arena *arena)
{
    for (uint32_t i = 0, used = mpshm__used(arena); i < used; i++)
        if (MPSHM__PAGES(atomic_load(&arena->traits[i].warmth)) == MPSHM__PURGING)
            purge(control, arena, i);
}

/* ---- slabs ---- */

int mpshm__slab_from_rows(const struct mpshm__arena *arena, uint32_t first, uint64_t nth,
                          struct mpshm__slab *slab)
{
    uint32_t size_class = atomic_load(&arena->traits[first].size_class), used = mpshm__used(arena);
    uint64_t size = mpshm__class_bytes(size_class), bytes = mpshm__slab_bytes(nth);
    uint64_t at = place(arena, first);
    uint32_t count = (uint32_t)(bytes / size);

    if (count == 0 || count > used - first || at > arena->room || bytes > arena->room - at)
        return -EBADMSG;
    for (uint32_t k = 0; k < count; k++)
        if (atomic_load(&arena->traits[first + k].size_class) != size_class ||
            place(arena, first + k) != at + k * size)
            return -EBADMSG;
    *slab = (struct mpshm__slab){
        .at = at, .size = bytes, .first = first, .count = count, .size_class = size_class};
    return 0;
}

int mpshm__purge_slab(struct mpshm__control *control, struct mpshm__arena *arena,
                      const struct mpshm__slab *slab)
{
    uint64_t size = mpshm__class_bytes(slab->size_class);

    if (!is_theirs(arena, slab->first, slab->first + slab->count - 1, slab->at, slab->size) ||
        !punch(arena, slab->at, slab->size))
        return 0;
    /* Killed from here on: blocks that say that they are dirty and read as zero, which is no harm.
     * (What has to be reserved first is reserved again by whoever adopts the segment.) */
    for (uint32_t i = slab->first; i < slab->first + slab->count; i++) {
        uint8_t state = atomic_load(&arena->traits[i].warmth), purged;
        do {
            purged = (uint8_t)(MPSHM__PUNCHED | (state & MPSHM__LISTED));
            if (MPSHM__PAGES(state) == MPSHM__IN_USE) /* somebody is just freeing it */
                break;
        } while (!atomic_compare_exchange_weak(&arena->traits[i].warmth, &state, purged));
        if (MPSHM__PAGES(state) == MPSHM__WARM)
            mpshm__cache_take(control, arena, size);
    }
    return 1;
}

void mpshm__purge_all(struct mpshm__arena *arena)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end = atomic_load(&arena->header->carved);

    if (end > arena->room)
        end = arena->room;
    end = (end + page - 1) / page * page;
    madvise(arena->data, end, MADV_REMOVE);
    /* Who still maps it may look into the tables once more. Where they have to be reserved they
     * stay, so that such a look is never a SIGBUS. */
    if (!mpshm__object_must_reserve(arena->strategy))
        madvise((char *)arena->header + page,
                arena->header->data_at > page ? arena->header->data_at - page : 0, MADV_REMOVE);
}
