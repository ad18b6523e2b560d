/* A segment, byte by byte: a header, the tables that describe its blocks, and the data.
 *
 * Note [References]
 *
 *   A block is alive while its descriptor says so:
 *
 *     holders             one bit per process (its slot number): that process has a reference. The
 *                         bits of the first 256 slots are in the descriptor, the others in a table
 *     in_flight           one bit per message that carries the block and was not received yet
 *     in_flight_overflow  the number of such messages beyond the 64 bits
 *     state               generation | live | version
 *
 *   The references are bits and not a count, because setting or clearing a bit twice does no harm:
 *   whatever a process was doing when it was killed, clearing its bit everywhere is exact. Messages
 *   belong to no process, so they outlive their sender.
 *
 *   To take a reference: set the bit, then add to the version, and only then give up the reference
 *   that kept the block alive so far (the message that is received, or the sender's own bit).
 *   To free: read the state; see that in_flight, in_flight_overflow and holders (in that order) are
 *   empty; then replace the state by a dead one, with compare and exchange. A process that took a
 *   reference in between has changed the version, so the exchange fails and the check is repeated.
 *
 *   A process that is killed in between leaves either a message that was received but is still in
 *   flight (a leak, as if it had never been received), or a block without references that was not
 *   freed (the reaper frees it). */
#ifndef MPSHM_SEGMENT_FILE_LAYOUT_H
#define MPSHM_SEGMENT_FILE_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#include "layout/control_file.h"

enum {
    MPSHM__NEAR = 256,  /* the slots whose bits are in the descriptor itself */
    MPSHM__PAGE = 4096, /* memory is reserved and purged in units of this */
    MPSHM__NEAR_WORDS = MPSHM__NEAR / 64,
    MPSHM__FAR_WORDS = MPSHM__HOLDER_WORDS - MPSHM__NEAR_WORDS,
    MPSHM__CLASSES = 192,
    MPSHM__SLAB_LIMIT = 32 * 1024, /* blocks of smaller classes are cut from slabs */
    MPSHM__SLAB_BYTES = 256 * 1024,
};

/* Every block begins below this offset, since `where` has 32 bits and counts 64 bytes. */
#define MPSHM__OFFSETS ((uint64_t)1 << 38)
/* No block is larger. A block larger than MPSHM__OFFSETS has a segment of its own and begins at 0.
 */
#define MPSHM__LARGEST ((uint64_t)1 << 43)

/* The state of a block: 24 bits of generation, then the live bit, then 39 bits of version. */
#define MPSHM__LIVE ((uint64_t)1 << 39)
#define MPSHM__GENERATION_SHIFT 40
#define MPSHM__GENERATION(state) ((uint32_t)((state) >> MPSHM__GENERATION_SHIFT))

/* Whether a block with this state is the one of a message with this generation. */
static inline int mpshm__is_live(uint64_t state, uint32_t generation)
{
    return (state & MPSHM__LIVE) && MPSHM__GENERATION(state) == generation;
}

struct mpshm__block {
    _Atomic uint64_t state;
    _Atomic uint64_t in_flight; /* of a free block: the link of the remote-free list */
    _Atomic uint64_t holders[MPSHM__NEAR_WORDS];
    _Atomic uint64_t nbytes; /* the size that was asked for */
    _Atomic uint32_t in_flight_overflow;
    _Atomic uint32_t where; /* offset in the data, in units of 64 bytes */
};

/* The state of a block's pages. */
enum {
    MPSHM__DIRTY = 0,   /* written: the pages are present, with old content */
    MPSHM__CLEAN = 1,   /* never written: reads as zero */
    MPSHM__PURGED = 2,  /* given back: reads as zero, and must be reserved again */
    MPSHM__IN_USE = 3,  /* not free, or freed a moment ago and not yet counted */
    MPSHM__PURGING = 4, /* the manager is giving it back; no process may use it meanwhile */
    /* A flag beside these: the block is in a private list of its owner, or will be when the owner
     * drains the remote-free list. An adopter goes by this flag alone: see adopt_segment.c. */
    MPSHM__LISTED = 0x80,
};
#define MPSHM__PAGE_STATE(byte) ((byte) & ~(unsigned)MPSHM__LISTED)

/* Metadata that is constant while a block is alive. It has a table of its own, so that a descriptor
 * is exactly one cache line. */
struct mpshm__metadata {
    _Atomic uint8_t size_class;
    _Atomic uint8_t page_state;
};

/* The holders with far slots. The pages of this table are touched only when a session has more than
 * 256 processes (control.far). */
struct mpshm__far {
    _Atomic uint64_t holders[MPSHM__FAR_WORDS];
};

/* The message that has been in flight for longest, for people who look. It is written before the
 * first in-flight bit is set, and means nothing while there is none. Two processes that send at the
 * same moment may mix their entries. */
struct mpshm__sent {
    _Atomic uint64_t at_ns; /* on the coarse monotonic clock */
    _Atomic int32_t pid;
    _Atomic uint16_t site; /* index + 1 in the control file; 0: unknown */
    /* slot + 1 of the writer that has its only message in hand; 0: none has. The reaper discards
     * the message of a dead writer: reference/handle_log.c. */
    _Atomic uint16_t writer;
    /* When the last of its messages expires: generation << 32 | tick. See message_timeout.c. */
    _Atomic uint64_t deadline;
};

struct mpshm__segment_header {
    char magic[8];
    unsigned char session[MPSHM_ID_SIZE];
    uint64_t nonce[2];
    uint64_t size;      /* of the whole object */
    uint64_t capacity;  /* entries of the tables */
    uint64_t blocks_at; /* offsets of the parts */
    uint64_t metadata_at;
    uint64_t far_at;
    uint64_t sent_at;
    uint64_t data_at;
    uint32_t strategy;
    uint32_t reserved;
    _Atomic uint32_t orphan;      /* the owner is dead and no process adopts it: purge on free */
    _Atomic uint32_t used;        /* entries that have ever been used; only grows */
    _Atomic uint64_t bumped;      /* bytes of data that have ever been used; only grows */
    _Atomic uint64_t cached;      /* bytes that are free and dirty */
    _Atomic uint64_t remote_free; /* blocks that other processes freed: index + 1; 0 for none */
};

_Static_assert(sizeof(struct mpshm__block) == 64, "a descriptor is a cache line");
_Static_assert(sizeof(struct mpshm__metadata) == 2, "metadata is two bytes");
_Static_assert(sizeof(struct mpshm__sent) == 24, "the record of a message is 24 bytes");
_Static_assert(sizeof(struct mpshm__far) == 96, "far holders of a block are 96 bytes");

#endif
