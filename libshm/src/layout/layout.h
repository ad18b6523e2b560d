/* What lies in shared memory, byte by byte: the control file of a session and the segments of its
 * processes.
 *
 * Note [Who may write what]
 *
 *   session of processes
 *   +-----------------------------------------------------------------------------+
 *   |  control file: slots (a entry per process), segments (a entry per segment)          |
 *   +-----------------------------------------------------------------------------+
 *     segment of process 0              segment of process 1             ...
 *   +--------+-------+---------+    +--------+-------+---------+
 *   | header | table | data    |    | header | table | data    |
 *   +--------+-------+---------+    +--------+-------+---------+
 *
 *   - A process allocates in its own segments only, so allocation needs no lock between processes.
 *   - Any process may take or drop a reference on any block: atomics in the block's descriptor.
 *   - Nobody ever holds a lock in shared memory, so nobody can die retained_blocks one.
 *
 * Note [References]
 *
 *   A block is alive while its descriptor says so:
 *
 *     holders      one bit for each process (its slot number): that process has it. The first 256
 *                  slots are in the descriptor, the others in a table of their own
 *     outstanding  one bit for each message that carries it and that nobody has claimed yet
 *     overflow     how many more messages than there are bits
 *     state        generation | live | epoch
 *
 *   Bits and not a count, because a bit can be set and cleared twice without harm: whatever a
 *   process was doing when it was killed, clearing its bit everywhere is exact. Messages are not
 *   tied to a process at all, so they outlive their sender.
 *
 *   To take a reference: set the bit, then add to the epoch, and only then let go of what kept the
 *   block alive meanwhile (the message that is claimed, the own hold while sending).
 *   To free: read the state, see nothing in outstanding, overflow and holders (in that order),
 *   then exchange the state that was read for a dead one. Whoever took a reference in between has
 *   moved the epoch, so the exchange fails and the look is repeated.
 *
 *   Killed in between leaves: a message that is claimed but still outstanding (a leak, as if it
 *   had never been read), or a block with no reference that nobody freed (the sweep frees it). */
#ifndef MPSHM_LAYOUT_H
#define MPSHM_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "mpshm.h"

enum {
    MPSHM__SLOTS = 1024,    /* processes of a session that use shared memory at one time */
    MPSHM__NEAR = 256,      /* of these, the slots whose bits are in the descriptor itself */
    MPSHM__SEGMENTS = 8192, /* segments of a session at one time */
    MPSHM__PAGE = 4096,     /* granularity of what is given back */
    MPSHM__NEAR_WORDS = MPSHM__NEAR / 64,
    MPSHM__HOLDER_WORDS = MPSHM__SLOTS / 64,
    MPSHM__FAR_WORDS = MPSHM__HOLDER_WORDS - MPSHM__NEAR_WORDS,
    MPSHM__LAYOUT = 2,
};

/* A block begins below this offset, since `where` is 32 bits of 64 bytes. */
#define MPSHM__OFFSETS ((uint64_t)1 << 38)
/* A block is at most this large; one that is larger than the offsets reach has a segment of its own
 * and begins at 0. */
#define MPSHM__LARGEST ((uint64_t)1 << 43)

/* ---- the control file ---- */

/* Note [Who is alive]
 *
 *      process                                 kernel                       control file
 *     +---------------------------+      +------------------+
 *     | mapping of the control    |----->| open file        |  lock   +-----+---+---+---+-----+
 *     | file (and, if the program |      | description,     |-------->| ... |   | 7 |   | ... |
 *     | has not closed it, a fd)  |----->| this process's   |         +-----+---+---+---+-----+
 *     +---------------------------+      +------------------+          bytes: one per slot
 *
 *   A process locks the byte of the control file that has its slot's number, through a description
 *   that no other process has, and maps the file through the same description. The kernel keeps a
 *   description for as long as a descriptor *or a mapping* refers to it, so the lock cannot be lost
 *   while the process lives, whatever it closes, and is gone when the process is gone or has
 *   replaced itself by exec: in any pid namespace, without /proc, manager or not. A forked child
 *   gets a description of its own and maps the file again through that (fork.c), or the parent's
 *   lock would live on in the child.
 *
 *   The lock alone decides:
 *     FREE  -> TAKEN  by whoever holds the lock of that byte; then the slot is his
 *     TAKEN -> FREE   by the manager alone, while it holds the lock itself: it has got it, so the
 *                     process is dead, and nobody can take the slot before its references are
 *                     cleared
 *
 *   Where the kernel has no such locks (valgrind), pid and start time must do: by_pid is set. */
enum { MPSHM__SLOT_FREE = 0, MPSHM__SLOT_TAKEN = 1 };

struct mpshm__slot {
    _Atomic uint32_t state;
    _Atomic int32_t pid;         /* 0 until a forked child has written its own */
    _Atomic uint64_t start_time; /* of that pid, so that a recycled one is not mistaken for it */
    _Atomic uint64_t joined_ns;
    _Atomic uint64_t making[2]; /* nonce of a named segment that is made and not yet registered */
    _Atomic uint32_t by_pid;    /* 1: this process could not lock its byte */
    unsigned char reserved[20];
};

struct mpshm__segment_entry {
    _Atomic uint64_t
        nonce[2]; /* 128 random bits, also in the name of a named segment; 0: no segment */
    _Atomic uint64_t size;
    _Atomic uint64_t created_ns;
    _Atomic uint32_t strategy;
    _Atomic uint32_t owner;    /* slot */
    _Atomic int32_t owner_pid; /* where a replaced manager may find the descriptor again */
    _Atomic int32_t owner_fd;
    _Atomic uint32_t handed; /* slot + 1 of an adopter that has not confirmed yet: see orphan.c */
    unsigned char reserved[12];
};

/* "mpshmC", a zero, and the layout's number: read and written as one word, last of all. */
#define MPSHM__MAGIC ((uint64_t)0x00436d6873706d | (uint64_t)MPSHM__LAYOUT << 56)

struct mpshm__control {
    _Atomic uint64_t magic; /* 0 until the rest of this first part is there */
    unsigned char session[MPSHM_ID_SIZE];
    _Atomic uint64_t cached_bytes; /* free and warm, in all segments of the session */
    _Atomic uint64_t cache_limit;
    _Atomic uint64_t ready; /* 1 when a manager has filled this in */
    _Atomic uint64_t far;   /* 1 when a slot beyond the near ones has ever been taken */
    char version[24];       /* of the library that made the file, for those it must refuse */
    _Atomic uint32_t cache_unwatched; /* 1: who fills the cache wakes the manager, see cache.c */
    unsigned char reserved[128 - 84];
    struct mpshm__slot slots[MPSHM__SLOTS];
    struct mpshm__segment_entry segments[MPSHM__SEGMENTS];
};

/* The byte behind those of the slots: locked by the manager, so that there is one. */
enum { MPSHM__MANAGER_BYTE = MPSHM__SLOTS };

/* ---- a segment ---- */

/* state of a block: generation in the high 24 bits, then the live bit, then 39 bits of epoch. */
#define MPSHM__LIVE ((uint64_t)1 << 39)
#define MPSHM__GENERATION_SHIFT 40
#define MPSHM__GENERATION(state) ((uint32_t)((state) >> MPSHM__GENERATION_SHIFT))

struct mpshm__block {
    _Atomic uint64_t state;
    _Atomic uint64_t in_flight; /* while it is free: the link of the returned list */
    _Atomic uint64_t holders[MPSHM__NEAR_WORDS];
    _Atomic uint64_t nbytes; /* as asked for */
    _Atomic uint32_t in_flight_overflow;
    _Atomic uint32_t where; /* offset in the data, in units of 64 bytes */
};

/* What does not change while a block is alive stands in a second table, so that a descriptor is
 * exactly one cache line: its size class, and what its bytes are worth while it is free. */
enum {
    MPSHM__DIRTY = 0,   /* has been written to: the pages are there, the content is old */
    MPSHM__CLEAN = 1,   /* never written to: reads as zero */
    MPSHM__PURGED = 2,  /* given back: reads as zero, and has to be reserved again */
    MPSHM__IN_USE = 3,  /* not free, or not yet counted as such */
    MPSHM__PURGING = 4, /* the manager is giving it back: nobody may use it meanwhile */
    /* A flag beside these: the block is in a private list of its owner, or will be as soon as the
     * owner has emptied the list of returned blocks. An adopter believes this flag alone, see
     * adopt.c. */
    MPSHM__LISTED = 0x80,
};
#define MPSHM__PAGE_STATE(page_state) ((page_state) & ~(unsigned)MPSHM__LISTED)

struct mpshm__metadata {
    _Atomic uint8_t size_class;
    _Atomic uint8_t page_state;
};

/* Holders with a far slot, a third table: its pages come into being when a session has more
 * processes than fit in the descriptors, and until then nobody looks at it (control.far). */
struct mpshm__far {
    _Atomic uint64_t holders[MPSHM__FAR_WORDS];
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
    uint64_t data_at;
    uint32_t strategy;
    uint32_t reserved;
    _Atomic uint32_t orphan; /* the owner has died and nobody adopts it: purge what is freed */
    _Atomic uint32_t used;   /* entries that have ever been used; grows only */
    _Atomic uint64_t bumped; /* bytes of data that have ever been used; grows only */
    _Atomic uint64_t cached; /* bytes that are free and warm */
    _Atomic uint64_t
        remote_free; /* free blocks that the owner has not taken back: index + 1, 0 none */
};

_Static_assert(sizeof(struct mpshm__slot) == 64, "a slot is a cache line");
_Static_assert(sizeof(struct mpshm__segment_entry) == 64, "a entry is a cache line");
_Static_assert(sizeof(struct mpshm__block) == 64, "a descriptor is a cache line");
_Static_assert(sizeof(struct mpshm__metadata) == 2, "a trait is two bytes");
_Static_assert(sizeof(struct mpshm__far) == 96, "a entry of far holders is 96 bytes");
_Static_assert(offsetof(struct mpshm__control, slots) == 128, "slots begin on a cache line");

#endif
