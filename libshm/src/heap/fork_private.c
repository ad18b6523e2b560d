/* Blocks whose content means nothing in another process (addresses, for example): after a fork the
 * child has a private copy of each, at the same address. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "heap/heap.h"
#include "reference/reference.h"
#include "segment/address_range.h"

static int (*keeps_private)(const void *data, uint64_t nbytes);

void mpshm_set_fork_private(int (*decide)(const void *data, uint64_t nbytes))
{
    keeps_private = decide;
}

/* Snapshots for the child, taken while the parent is inside fork. */
static struct snapshot {
    struct snapshot *next;
    struct mpshm__segment *segment;
    uint32_t index;
    uint64_t bytes;
} *snapshots;

static void take_snapshot(struct mpshm__segment *segment, uint32_t i)
{
    void *data = segment->data + (uint64_t)atomic_load(&segment->blocks[i].where) * 64;
    uint64_t nbytes = atomic_load(&segment->blocks[i].nbytes), bytes = mpshm__pages(nbytes);
    struct snapshot *s;

    if (!keeps_private(data, nbytes))
        return;
    s = mmap(NULL, MPSHM__PAGE + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED)
        return; /* a fork cannot be refused from here */
    memcpy((char *)s + MPSHM__PAGE, data, nbytes);
    *s = (struct snapshot){.next = snapshots, .segment = segment, .index = i, .bytes = bytes};
    snapshots = s;
}

static void take_snapshots(struct mpshm__segment *segment)
{
    if (segment->retained_blocks == 0)
        return;
    for (uint32_t i = 0, used = mpshm__used(segment); i < used; i++) {
        uint64_t at = mpshm__offset(segment, i);
        if (segment->local_refs[i] != 0 && at % MPSHM__PAGE == 0 && at < segment->room &&
            segment->index_at_page[at / MPSHM__PAGE] == i + 1)
            take_snapshot(segment, i);
    }
}

void mpshm__fork_private_before(void)
{
    if (keeps_private != NULL)
        mpshm__for_each_registered_segment(take_snapshots);
}

/* The child's copy replaces the shared pages at the same address. The child keeps its reference
 * for ever, so that no other block comes to lie at that address. */
void mpshm__fork_private_after(int in_child)
{
    while (snapshots != NULL) {
        struct snapshot s = *snapshots;
        char *copy = (char *)snapshots + MPSHM__PAGE;
        uint64_t where = (uint64_t)atomic_load(&s.segment->blocks[s.index].where) * 64;
        if (!in_child) {
            munmap(snapshots, MPSHM__PAGE + s.bytes);
        } else {
            mremap(copy, s.bytes, s.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, s.segment->data + where);
            munmap(snapshots, MPSHM__PAGE);
            s.segment->index_at_page[where / MPSHM__PAGE] = 0;
            s.segment->local_refs[s.index] |= MPSHM__PRIVATE;
        }
        snapshots = s.next;
    }
}
