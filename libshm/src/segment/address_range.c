/* From an address to its segment and its block, without a lock.
 *
 * Note [Addresses of the heap]
 *   free() must tell our memory from malloc's without a lock. The address ranges of the segments
 *   that the heap uses are in a table. A range is emptied before its segment is unmapped, which
 *   happens only when this process has no reference to any of its blocks. It may then be filled
 *   with another segment. A lookup may miss a range that is being changed, because no valid address
 * lies in it. The version of the range is odd during a change, and different after it, so a lookup
 *   notices. In each registered segment `index_at_page` has, for each page, the block that begins
 *   there while it is in use. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

#include "segment/address_range.h"

struct mpshm__range mpshm__ranges[MPSHM__RANGES];
_Atomic uint32_t mpshm__range_count;

static void set_range(uint32_t r, struct mpshm__segment *segment, uintptr_t begin, uintptr_t end)
{
    atomic_fetch_add(&mpshm__ranges[r].version, 1);
    atomic_store(&mpshm__ranges[r].begin, begin);
    atomic_store(&mpshm__ranges[r].end, end);
    atomic_store(&mpshm__ranges[r].segment, segment);
    atomic_fetch_add(&mpshm__ranges[r].version, 1);
}

int mpshm__range_register(struct mpshm__segment *segment)
{
    uint32_t n = atomic_load(&mpshm__range_count), r = 0;
    size_t bytes = (segment->room / MPSHM__PAGE + 1) * sizeof(uint32_t);
    void *index_at_page;

    if (segment->index_at_page != NULL)
        return 0;
    while (r < n && atomic_load(&mpshm__ranges[r].segment) != NULL)
        r++;
    if (r == MPSHM__RANGES)
        return -ENOSPC;
    index_at_page = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (index_at_page == MAP_FAILED)
        return -ENOMEM;
    segment->index_at_page = index_at_page;
    set_range(r, segment, (uintptr_t)segment->data, (uintptr_t)segment->data + segment->room);
    if (r == n)
        atomic_store_explicit(&mpshm__range_count, n + 1, memory_order_release);
    return 0;
}

void mpshm__range_unregister(struct mpshm__segment *segment)
{
    if (segment->index_at_page == NULL)
        return;
    for (uint32_t r = 0; r < atomic_load(&mpshm__range_count); r++)
        if (atomic_load(&mpshm__ranges[r].segment) == segment)
            set_range(r, NULL, UINTPTR_MAX, 0);
    munmap(segment->index_at_page, (segment->room / MPSHM__PAGE + 1) * sizeof(uint32_t));
    segment->index_at_page = NULL;
}

/* A binary search, since blocks lie in the order of their indices. */
uint32_t mpshm__index_before(struct mpshm__segment *segment, uint64_t at)
{
    uint32_t low = 0, high = mpshm__used(segment);

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint64_t where = atomic_load_explicit(&segment->blocks[middle].where, memory_order_relaxed);
        if (where * 64 <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void mpshm__for_each_registered_segment(void (*act)(struct mpshm__segment *segment))
{
    for (uint32_t r = 0; r < atomic_load(&mpshm__range_count); r++) {
        struct mpshm__segment *segment = atomic_load(&mpshm__ranges[r].segment);
        if (segment != NULL)
            act(segment);
    }
}
