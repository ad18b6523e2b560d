/* Allocation in an own segment: a free block of the class with its pages, one without, or fresh
 * space at the end of the segment.
 *
 * All state is private to the owner and guarded by its process lock, except the remote-free list.
 * Every process pushes to that list, and the owner empties it with one exchange. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "allocator/allocator.h"
#include "allocator/cache.h"
#include "allocator/purge.h"
#include "allocator/size_class.h"
#include "allocator/slab.h"
#include "allocator/write_block.h"
#include "segment/reserve.h"

enum {
    ENTRIES_AT_A_TIME = 1024,
    ZERO_BY_PURGE = 1
        << 20, /* zeroed blocks of at least this size are purged instead of overwritten */
};

/* Put a block into a private list. A later adopter goes by the flag: see adopt_segment.c. */
static void push(struct mpshm__segment *segment, uint32_t *list, uint32_t i, uint8_t pages)
{
    atomic_store(&segment->metadata[i].page_state, (uint8_t)(pages | MPSHM__LISTED));
    segment->next[i] = *list;
    *list = i + 1;
}

/* Take the first block of the list that the manager is not purging; its page state goes to
 * `pages`. */
static uint32_t pop(struct mpshm__segment *segment, uint32_t *list, uint8_t *pages)
{
    for (uint32_t *link = list; *link != 0; link = &segment->next[*link - 1]) {
        uint32_t i = *link - 1;
        uint8_t state =
            atomic_load_explicit(&segment->metadata[i].page_state, memory_order_relaxed);
        while (MPSHM__PAGE_STATE(state) != MPSHM__PURGING)
            if (atomic_compare_exchange_weak(&segment->metadata[i].page_state, &state,
                                             MPSHM__IN_USE)) {
                *link = segment->next[i];
                *pages = (uint8_t)MPSHM__PAGE_STATE(state);
                return i + 1;
            }
    }
    return 0;
}

static int reads_as_zero(uint8_t pages)
{
    return pages == MPSHM__CLEAN || pages == MPSHM__PURGED;
}

void mpshm__list_block(struct mpshm__segment *segment, uint32_t i)
{
    uint32_t c = mpshm__block_class(segment, i);
    uint8_t pages = (uint8_t)MPSHM__PAGE_STATE(
        atomic_fetch_or(&segment->metadata[i].page_state, MPSHM__LISTED));
    uint32_t *list = reads_as_zero(pages) ? &segment->free_zero[c] : &segment->free_dirty[c];

    segment->next[i] = *list;
    *list = i + 1;
}

/* Walk the list twice: see adopt_segment.c, Note [Adopting a segment]. The number of steps is
 * limited, because other processes can write to the links.
 *
 * The block that was freed last comes first in the private list as well: it is given out next, and
 * its bytes are most likely still in a cache. So the list is turned around, and then pushed from
 * the block that was freed first. */
void mpshm__drain_remote_free(struct mpshm__segment *segment)
{
    uint64_t steps = segment->capacity, head, at, count = 0;
    uint32_t turned = 0;

    head = atomic_load_explicit(&segment->header->remote_free, memory_order_acquire);
    if (head == 0)
        return;
    for (at = head; at != 0 && at <= segment->capacity && steps-- > 0;
         at = atomic_load(&segment->blocks[at - 1].in_flight))
        atomic_fetch_or(&segment->metadata[at - 1].page_state, MPSHM__LISTED);
    head = atomic_exchange(&segment->header->remote_free, 0);
    steps = segment->capacity;
    while (head != 0 && head <= segment->capacity && steps-- > 0) {
        uint32_t i = (uint32_t)(head - 1);
        head = atomic_load(&segment->blocks[i].in_flight);
        segment->next[i] = turned;
        turned = i + 1;
        count++;
    }
    while (turned != 0 && count-- > 0) {
        uint32_t i = turned - 1;
        turned = segment->next[i];
        mpshm__list_block(segment, i);
    }
}

/* ---- reservation: memory that can be touched without a SIGBUS ---- */

static int reserve_entries(struct mpshm__segment *segment, uint32_t entries)
{
    struct mpshm__segment_header *h = segment->header;
    uint32_t from = segment->reserved_entries, to = entries + ENTRIES_AT_A_TIME;
    int err;

    if (!segment->must_reserve || entries <= from)
        return 0;
    if (to > segment->capacity)
        to = (uint32_t)segment->capacity;
    err = mpshm__segment_reserve(segment, h->blocks_at + from * sizeof(struct mpshm__block),
                                 (to - from) * sizeof(struct mpshm__block));
    if (err == 0)
        err =
            mpshm__segment_reserve(segment, h->metadata_at + from * sizeof(struct mpshm__metadata),
                                   (to - from) * sizeof(struct mpshm__metadata));
    if (err == 0) /* processes with a far slot write here, and cannot reserve it */
        err = mpshm__segment_reserve(segment, h->far_at + from * sizeof(struct mpshm__far),
                                     (to - from) * sizeof(struct mpshm__far));
    if (err == 0) /* so do all that send */
        err = mpshm__segment_reserve(segment, h->sent_at + from * sizeof(struct mpshm__sent),
                                     (to - from) * sizeof(struct mpshm__sent));
    if (err == 0)
        segment->reserved_entries = to;
    return err;
}

static int reserve_data(struct mpshm__segment *segment, uint64_t at, uint64_t size)
{
    return segment->must_reserve
               ? mpshm__segment_reserve(segment, segment->header->data_at + at, size)
               : 0;
}

/* Where memory need not be reserved this array is never touched, and costs no memory. */
static void set_committed(struct mpshm__segment *segment, uint32_t i, uint32_t pages)
{
    if (segment->must_reserve)
        segment->committed[i] = pages;
}

/* Reserve the pages of a free block that is about to be used for `nbytes`. */
static int reserve_block(struct mpshm__segment *segment, uint32_t i, uint64_t size, uint64_t nbytes,
                         uint8_t pages)
{
    int purged = pages == MPSHM__PURGED, small = size < MPSHM__SLAB_LIMIT, err;

    if (!segment->must_reserve)
        return 0;
    if (small) /* all of it: it may lie across two pages, and is not checked again */
        nbytes = size;
    uint32_t need = (uint32_t)(mpshm__pages(nbytes) / MPSHM__PAGE);
    /* Any process that freed a large block may have purged it. A small block is purged by its
     * owner alone, which then clears `committed`. */
    if (segment->committed[i] >= need && (small || !purged))
        return 0;
    err = reserve_data(segment, mpshm__offset(segment, i), nbytes);
    segment->committed[i] = err == 0 ? need : 0;
    return err;
}

/* ---- fresh space ---- */

static void initialise(struct mpshm__segment *segment, uint32_t i, uint64_t at, uint32_t size_class)
{
    atomic_store(&segment->blocks[i].where, (uint32_t)(at / 64));
    atomic_store(&segment->metadata[i].size_class, (uint8_t)size_class);
    atomic_store(&segment->metadata[i].page_state, MPSHM__IN_USE);
}

/* Bump-allocate a slab of the class. Its indices are consecutive, and all go to the list of zero
 * blocks. */
static int bump_slab(struct mpshm__segment *segment, uint32_t size_class)
{
    struct mpshm__segment_header *h = segment->header;
    uint64_t size = mpshm__class_bytes(size_class);
    uint64_t at = atomic_load(&h->bumped);
    uint32_t first = atomic_load(&h->used);
    uint64_t bytes = mpshm__slab_bytes(segment->slabs);
    uint32_t count = (uint32_t)(bytes / size);
    int err;

    if (at + bytes > segment->room || at + bytes > MPSHM__OFFSETS ||
        first + (uint64_t)count > segment->capacity)
        return -EXFULL;
    err = reserve_entries(segment, first + count);
    if (err == 0)
        err = reserve_data(segment, at, bytes);
    if (err < 0)
        return err;
    err = mpshm__slab_add(
        segment,
        &(struct mpshm__slab){
            .at = at, .size = bytes, .first = first, .count = count, .size_class = size_class});
    if (err < 0)
        return err;
    for (uint32_t k = count; k-- > 0;) {
        initialise(segment, first + k, at + k * size, size_class);
        set_committed(segment, first + k, MPSHM__SLAB_LIMIT / MPSHM__PAGE);
        push(segment, &segment->free_zero[size_class], first + k, MPSHM__CLEAN);
    }
    atomic_store(&h->bumped, at + bytes);
    atomic_store(&h->used, first + count);
    mpshm__segment_dump(segment);
    return 0;
}

static int bump_large(struct mpshm__segment *segment, uint32_t size_class, uint64_t nbytes,
                      uint32_t *out)
{
    struct mpshm__segment_header *h = segment->header;
    uint64_t room = segment->room, at = atomic_load(&h->bumped);
    uint64_t size = mpshm__pages(mpshm__class_bytes(size_class));
    uint32_t i = atomic_load(&h->used);
    int err;

    if (at + size > room || at >= MPSHM__OFFSETS || i + (uint64_t)1 > segment->capacity)
        return -EXFULL;
    err = reserve_entries(segment, i + 1);
    if (err == 0)
        err = reserve_data(segment, at, nbytes); /* the rest of the class is never touched */
    if (err < 0)
        return err;
    initialise(segment, i, at, size_class);
    set_committed(segment, i, (uint32_t)(mpshm__pages(nbytes) / MPSHM__PAGE));
    mpshm__note_pages(segment, i, 1);
    atomic_store(&h->bumped, at + size);
    atomic_store(&h->used, i + 1);
    mpshm__segment_dump(segment);
    *out = i;
    return 0;
}

/* A process that is killed in between leaves a block that is IN_USE and not live. No process
 * lists it again. */
static int reuse(struct mpshm__control *control, struct mpshm__segment *segment, uint32_t *list,
                 uint64_t size, uint64_t nbytes, int zeroed, uint32_t *out)
{
    uint8_t pages;
    uint32_t i = pop(segment, list, &pages);
    int err;

    if (i-- == 0)
        return -EXFULL;
    if (pages == MPSHM__DIRTY)
        mpshm__cache_take(control, segment, size);
    if (pages == MPSHM__DIRTY && zeroed && nbytes >= ZERO_BY_PURGE &&
        mpshm__purge_pages(segment, i))
        pages = MPSHM__PURGED;
    err = reserve_block(segment, i, size, nbytes, pages);
    if (err < 0) {
        if (pages == MPSHM__DIRTY)
            mpshm__cache_add(control, segment, size);
        push(segment, list, i, pages);
        return err;
    }
    if (size >= MPSHM__SLAB_LIMIT)
        mpshm__note_pages(segment, i, reads_as_zero(pages));
    if (zeroed && !reads_as_zero(pages))
        memset(segment->data + mpshm__offset(segment, i), 0, nbytes);
    *out = i;
    return 0;
}

int mpshm__allocate_in(struct mpshm__control *control, struct mpshm__segment *segment,
                       enum mpshm__source source, uint64_t nbytes, int zeroed, uint32_t *out)
{
    uint32_t c = mpshm__class_of(nbytes);
    uint64_t size = mpshm__class_bytes(c);
    int err;

    switch (source) {
    case MPSHM__FROM_DIRTY:
        mpshm__drain_remote_free(segment);
        /* To zero much dirty memory costs more than the page faults of the part that is really
         * touched. */
        if (zeroed && nbytes >= ZERO_BY_PURGE)
            return -EXFULL;
        return reuse(control, segment, &segment->free_dirty[c], size, nbytes, zeroed, out);
    case MPSHM__FROM_ZERO:
        return reuse(control, segment, &segment->free_zero[c], size, nbytes, zeroed, out);
    case MPSHM__FROM_FRESH_SPACE:
        if (size >= MPSHM__SLAB_LIMIT)
            return bump_large(segment, c, nbytes, out);
        err = bump_slab(segment, c);
        return err < 0 ? err
                       : reuse(control, segment, &segment->free_zero[c], size, nbytes, zeroed, out);
    default:
        return reuse(control, segment, &segment->free_dirty[c], size, nbytes, zeroed, out);
    }
}

/* ---- giving back ---- */

static void trim_large(struct mpshm__control *control, struct mpshm__segment *segment)
{
    for (uint32_t c = mpshm__class_of(MPSHM__SLAB_LIMIT); c < MPSHM__CLASSES; c++) {
        uint32_t i, kept = 0;
        uint8_t pages;
        while ((i = pop(segment, &segment->free_dirty[c], &pages)) != 0) {
            if (pages == MPSHM__DIRTY && !mpshm__purge_pages(segment, i - 1)) {
                push(segment, &kept, i - 1, pages);
                continue;
            }
            if (pages == MPSHM__DIRTY)
                mpshm__cache_take(control, segment, mpshm__class_bytes(c));
            push(segment, &segment->free_zero[c], i - 1, MPSHM__PURGED);
        }
        if (segment->free_dirty[c] == 0) {
            segment->free_dirty[c] = kept;
        } else { /* blocks that are being purged stay at the end of the list */
            uint32_t last = segment->free_dirty[c];
            while (segment->next[last - 1] != 0)
                last = segment->next[last - 1];
            segment->next[last - 1] = kept;
        }
    }
}

static int slab_is_idle(const struct mpshm__segment *segment, const struct mpshm__slab *slab)
{
    for (uint32_t k = 0; k < slab->count; k++)
        /* in use, or its last user is just releasing it */
        if ((atomic_load(&segment->blocks[slab->first + k].state) & MPSHM__LIVE) ||
            MPSHM__PAGE_STATE(atomic_load(&segment->metadata[slab->first + k].page_state)) ==
                MPSHM__IN_USE)
            return 0;
    return 1;
}

/* A block that another process has freed and not yet returned must keep its page state, which
 * decides the list that it will go to. So only blocks in the private lists are purged. */
static void trim_slabs(struct mpshm__control *control, struct mpshm__segment *segment)
{
    for (uint64_t s = 0; s < segment->slabs; s++) {
        struct mpshm__slab *slab = &segment->slab_list[s];

        if (!slab_is_idle(segment, slab) || atomic_load(&segment->header->remote_free) != 0 ||
            !mpshm__purge_slab(control, segment, slab))
            continue;
        for (uint32_t k = 0; k < slab->count; k++)
            set_committed(segment, slab->first + k, 0);
    }
    /* Purged blocks move to the list of zero blocks. */
    for (uint32_t c = 0; c < mpshm__class_of(MPSHM__SLAB_LIMIT); c++) {
        uint32_t i = segment->free_dirty[c], next;
        segment->free_dirty[c] = 0;
        for (; i != 0; i = next) {
            next = segment->next[i - 1];
            mpshm__list_block(segment, i - 1);
        }
    }
}

void mpshm__trim(struct mpshm__control *control, struct mpshm__segment *segment)
{
    mpshm__drain_remote_free(segment);
    trim_large(control, segment);
    trim_slabs(control, segment);
}
