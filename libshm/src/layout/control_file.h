/* The control file of a session, byte by byte: a slot for each process and an entry for each
 * segment.
 *
 * Note [Writers of shared memory]
 *
 *   session: all processes that share through one manager
 *   +-----------------------------------------------------------------------------+
 *   |  control file: slots (one per process), entries (one per segment)           |
 *   +-----------------------------------------------------------------------------+
 *     segment of process 0            segment of process 1           ...
 *   +--------+-------+---------+    +--------+-------+---------+
 *   | header | table | data    |    | header | table | data    |
 *   +--------+-------+---------+    +--------+-------+---------+
 *
 *   - A process allocates only in its own segments, so allocation needs no lock between processes.
 *   - Any process may take or release a reference to any block, with atomic operations on the
 *     block's descriptor.
 *   - The tables have no locks, so a process that dies cannot leave one locked. Those of rings are
 *     robust (channel/ring.h), and those of programs outlive their owners (sync_block.h). */
#ifndef MPSHM_CONTROL_FILE_LAYOUT_H
#define MPSHM_CONTROL_FILE_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "mpshm.h"

enum {
    MPSHM__SLOTS = 1024,    /* processes of a session that use shared memory at one time */
    MPSHM__SEGMENTS = 8192, /* segments of a session at one time */
    MPSHM__HOLDER_WORDS = MPSHM__SLOTS / 64,
    MPSHM__SITES = 256,  /* source lines that send, if senders give them */
    MPSHM__LOGGED = 256, /* handles that a process notes at one time; a multiple of 64 */
    MPSHM__LAYOUT = 6,   /* the version of both layouts */
    MPSHM__INCARNATIONS = 1 << 21,
};

/* Note [Liveness]
 *
 *      process                                 kernel                       control file
 *     +---------------------------+      +------------------+
 *     | mapping of the control    |----->| open file        |  lock   +-----+---+---+---+-----+
 *     | file (and a descriptor,   |      | description,     |-------->| ... |   | 7 |   | ... |
 *     | unless the program closed |----->| this process's   |         +-----+---+---+---+-----+
 *     | it)                       |      | alone            |          bytes: one per slot
 *     +---------------------------+      +------------------+
 *
 *   A process locks the byte of the control file whose offset is its slot number. It locks through
 *   an open file description that no other process has, and it maps the file through the same
 *   description. The kernel keeps a description while a descriptor *or a mapping* refers to it. So
 *   the process keeps the lock while it lives, whatever descriptors it closes, and loses it when it
 *   ends or calls exec: in any pid namespace, without /proc, with or without a manager. A forked
 *   child gets a description of its own and maps the file again through that one (fork.c);
 *   otherwise the parent's lock would live on in the child.
 *
 *   The lock alone decides:
 *     FREE  -> TAKEN  by the process that holds the lock of the byte; the slot is then its own
 *     TAKEN -> FREE   by the manager alone, while it holds the lock itself. It got the lock, so the
 *                     process is dead, and no process can take the slot before its references are
 *                     cleared. It locks to read, and a process to write: who asks meanwhile sees by
 *                     the kind of the lock that the process is dead
 *
 *   A kernel without such locks (valgrind) falls back on pid and start time: by_pid is set. */
enum { MPSHM__SLOT_FREE = 0, MPSHM__SLOT_TAKEN = 1 };

struct mpshm__slot {
    _Atomic uint32_t state;
    _Atomic int32_t pid;          /* 0 until a forked child has written its own */
    _Atomic uint64_t start_time;  /* of that pid, to tell a recycled pid from this process */
    _Atomic uint32_t incarnation; /* counts the processes that have had this slot, 1 to
                                     MPSHM__INCARNATIONS - 1 */
    uint32_t unused;
    _Atomic uint64_t making[2]; /* nonce of a named segment that is created and not registered */
    _Atomic uint32_t by_pid;    /* 1: this process could not lock its byte */
    unsigned char reserved[20];
};

struct mpshm__segment_entry {
    _Atomic uint64_t nonce[2]; /* 128 random bits, also in the name of a named segment; 0: free */
    _Atomic uint64_t size;
    _Atomic uint64_t created_ns;
    _Atomic uint32_t strategy;
    _Atomic uint32_t owner;    /* slot */
    _Atomic int32_t owner_pid; /* a new manager finds the descriptor in this process */
    _Atomic int32_t owner_fd;
    _Atomic uint32_t
        handed; /* slot + 1 of an adopter that has not confirmed yet: see reclaim_segment.c */
    unsigned char reserved[12];
};

/* A source line that sends, once for all processes of the session: see message_origin.c. If a
 * process is killed while it writes one, the entry stays unfinished until the session ends. */
enum { MPSHM__SITE_FREE = 0, MPSHM__SITE_BEGUN = 1, MPSHM__SITE_WRITTEN = 2 };

struct mpshm__site {
    _Atomic uint32_t state;
    char text[MPSHM_SITE_SIZE];
};

/* An in-flight reference of a message that lies in no ring: its reader has taken it and not
 * received it yet, or its writer has not sent it yet. See reference/handle_log.c. */
enum { MPSHM__HANDLE_FREE = 0, MPSHM__HANDLE_ABOUT = 1, MPSHM__HANDLE_HELD = 2 };

struct mpshm__logged {
    _Atomic uint64_t segment; /* first half of its nonce */
    _Atomic uint32_t segment_index;
    _Atomic uint32_t block;
    _Atomic uint32_t message; /* generation << 8 | the bit of in_flight, or MPSHM__NO_BIT */
    _Atomic uint32_t state;
};

/* "mpshmC", a zero and the version of the layout, read and written as one word. */
#define MPSHM__MAGIC ((uint64_t)0x00436d6873706d | (uint64_t)MPSHM__LAYOUT << 56)

struct mpshm__control {
    _Atomic uint64_t magic; /* 0 until the rest of this first part is written */
    unsigned char session[MPSHM_ID_SIZE];
    _Atomic uint64_t cached_bytes; /* free and dirty, in all segments of the session */
    _Atomic uint64_t cache_limit;
    _Atomic uint64_t ready;           /* 1 when a manager has filled this in */
    _Atomic uint64_t far;             /* 1 when a slot beyond the near ones has ever been taken */
    char version[24];                 /* of the library that created the file */
    _Atomic uint32_t cache_unwatched; /* 1: the process that caches first wakes the manager; see
                                         cache_limit.c */
    _Atomic uint32_t manager_starts;  /* how many managers the session has had */
    _Atomic uint32_t message_ticks;   /* the shortest message timeout that was used; 0: none was */
    unsigned char reserved[128 - 92];
    struct mpshm__slot slots[MPSHM__SLOTS];
    struct mpshm__segment_entry segments[MPSHM__SEGMENTS];
    struct mpshm__site sites[MPSHM__SITES];
    struct mpshm__logged handle_log[MPSHM__SLOTS][MPSHM__LOGGED];
};

/* The byte after those of the slots. The manager locks it, so that a session has only one. */
enum { MPSHM__MANAGER_BYTE = MPSHM__SLOTS };

_Static_assert(sizeof(struct mpshm__slot) == 64, "a slot is a cache line");
_Static_assert(sizeof(struct mpshm__segment_entry) == 64, "an entry is a cache line");
_Static_assert(sizeof(struct mpshm__site) == 128, "a site is two cache lines");
_Static_assert(offsetof(struct mpshm__control, slots) == 128, "slots begin on a cache line");

#endif
