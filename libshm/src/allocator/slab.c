/* Slabs: runs of small blocks of one class. */
#include <errno.h>
#include <stdlib.h>

#include "allocator/size_class.h"
#include "allocator/slab.h"

/* The first slabs are small, so that the first small array of a process does not pay for many.
 * An adopter finds the slabs by their number. */
uint64_t mpshm__slab_bytes(uint64_t nth)
{
    return nth < 16 ? MPSHM__SLAB_BYTES / 4 : MPSHM__SLAB_BYTES;
}

int mpshm__slab_add(struct mpshm__segment *segment, const struct mpshm__slab *slab)
{
    if (segment->slabs == segment->slabs_room) {
        uint64_t room = segment->slabs_room ? 2 * segment->slabs_room : 16;
        void *list = realloc(segment->slab_list, room * sizeof(struct mpshm__slab));
        if (list == NULL)
            return -ENOMEM;
        segment->slab_list = list;
        segment->slabs_room = room;
    }
    segment->slab_list[segment->slabs++] = *slab;
    return 0;
}

int mpshm__slab_from_table(const struct mpshm__segment *segment, uint32_t first, uint64_t nth,
                           struct mpshm__slab *slab)
{
    uint32_t size_class = atomic_load(&segment->metadata[first].size_class),
             used = mpshm__used(segment);
    uint64_t size = mpshm__class_bytes(size_class), bytes = mpshm__slab_bytes(nth);
    uint64_t at = mpshm__offset(segment, first);
    uint32_t count = (uint32_t)(bytes / size);

    if (count == 0 || count > used - first || at > segment->room || bytes > segment->room - at)
        return -EBADMSG;
    for (uint32_t k = 0; k < count; k++)
        if (atomic_load(&segment->metadata[first + k].size_class) != size_class ||
            mpshm__offset(segment, first + k) != at + k * size)
            return -EBADMSG;
    *slab = (struct mpshm__slab){
        .at = at, .size = bytes, .first = first, .count = count, .size_class = size_class};
    return 0;
}
