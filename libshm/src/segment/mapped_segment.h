/* A segment as one process has it mapped. */
#ifndef MPSHM_MAPPED_SEGMENT_H
#define MPSHM_MAPPED_SEGMENT_H

#include "base/descriptor.h"
#include "layout/segment_file.h"

struct mpshm__session;

/* Blocks of less than 32 KiB are cut from slabs: all of one class, with consecutive indices. */
struct mpshm__slab {
    uint64_t at, size;
    uint32_t first, count;
    uint32_t size_class;
};

struct mpshm__segment {
    struct mpshm__segment_header *header; /* the mapping */
    struct mpshm__block *blocks;
    struct mpshm__metadata *metadata;
    struct mpshm__far *far;
    struct mpshm__sent *sent;
    char *data;
    uint64_t size;
    uint64_t capacity; /* of the tables; checked once and not read from the header again */
    uint64_t room;     /* bytes of data */
    int dump;          /* MPSHM_DUMP=1: core dumps include what was allocated, */
    uint64_t dumped;   /* up to this offset so far */
    uint64_t nonce[2];
    struct mpshm__session *session;
    uint32_t index; /* of its entry in the control file */
    int strategy;
    struct mpshm__fd fd;      /* of own segments, and of some others in case the manager dies */
    int own;                  /* this process allocates in it */
    uint32_t *local_refs;     /* for each block: the references of this process */
    uint64_t retained_blocks; /* blocks with at least one */
    uint32_t *index_at_page; /* for each page: index + 1 of the heap's block that begins there; NULL
                                until the heap uses the segment */
    /* Of the owner alone: */
    struct mpshm__segment *next_own; /* the list that begins in session->own */
    uint32_t *next;                  /* links of the free lists: index + 1 */
    uint32_t free_dirty[MPSHM__CLASSES];
    uint32_t free_zero[MPSHM__CLASSES]; /* clean or purged: reads as zero */
    uint32_t *committed; /* reserved pages of each large block, if pages must be reserved at all */
    uint8_t *writes;     /* for each large block: whether its pages were touched and are mapped */
    int must_reserve;
    uint32_t reserved_entries;
    uint64_t slabs; /* how many are in the list */
    uint64_t slabs_room;
    struct mpshm__slab *slab_list;
};

static inline uint64_t mpshm__pages(uint64_t nbytes) /* rounded up to whole pages */
{
    return (nbytes + MPSHM__PAGE - 1) & ~(uint64_t)(MPSHM__PAGE - 1);
}

/* The number of entries that have been used, at most the capacity. */
static inline uint32_t mpshm__used(const struct mpshm__segment *segment)
{
    uint32_t used = atomic_load(&segment->header->used);

    return used <= segment->capacity ? used : (uint32_t)segment->capacity;
}

static inline uint64_t mpshm__offset(const struct mpshm__segment *segment, uint32_t i)
{
    return (uint64_t)atomic_load_explicit(&segment->blocks[i].where, memory_order_relaxed) * 64;
}

#endif
