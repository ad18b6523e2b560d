/* The blocks that locks live in, byte by byte.
 *
 * Note [Owners]
 *
 *   A word names its owner by slot and incarnation: the slot is the number of the process in its
 *   session, the incarnation counts the processes that have had it. So the word of a dead process
 *   never names a living one, and every process can ask the kernel whether the owner lives: the
 *   owner has the byte of its slot locked (control_file.h, Note [Liveness]).
 *
 *        31        30 ................ 10   9 ........ 0
 *     +---------+-------------------------+-------------+
 *     | waiters |   incarnation, not 0    |    slot     |     0: free
 *     +---------+-------------------------+-------------+
 *
 *   A process without a slot writes MPSHM__ANONYMOUS, and is taken to live for ever. */
#ifndef MPSHM_SYNC_BLOCK_LAYOUT_H
#define MPSHM_SYNC_BLOCK_LAYOUT_H

#include "layout/control_file.h"

#define MPSHM__WAITERS 0x80000000u
enum {
    MPSHM__OWNER_SHIFT = 10,
    MPSHM__ANONYMOUS = 1,
    MPSHM__SYNC_MAGIC = 0x6d707379,
};
_Static_assert(MPSHM__SLOTS == 1 << MPSHM__OWNER_SHIFT, "a slot fits into its bits");

/* At the beginning of each such block. */
struct mpshm__sync {
    uint32_t magic;
    uint32_t kind;         /* enum mpshm_sync_kind */
    _Atomic uint32_t word; /* the owner of a lock; of everything else, the owner of its guard */
    uint32_t max;          /* units of a semaphore, parties of a barrier */
    _Atomic uint32_t cpu;  /* where the process ran that owns it, or that released or set it last,
                              plus 1; see base/spin.c */
    uint32_t unused;
};

/* Note [A semaphore's units]
 *
 *   `held` has the units of each process, so that those of a dead process return. The guard
 *   protects all. A process that is killed in the middle of a change leaves `log` set, and the next
 *   owner of the guard undoes the change: nobody else can have changed anything since. */
struct mpshm__semaphore {
    struct mpshm__sync sync;
    _Atomic uint32_t value;
    _Atomic uint32_t sleepers; /* 1: a release has to wake one */
    _Atomic uint32_t events;   /* 1: a unit is an event and belongs to no process */
    _Atomic uint32_t log;      /* 1 + the index in `held` that is being changed, or 0 */
    _Atomic uint32_t log_value;
    _Atomic uint32_t next_look; /* word.c, Note [Looks] */
    _Atomic uint64_t log_held;
    _Atomic uint64_t held[MPSHM__SLOTS + 1]; /* incarnation << 32 | units; the last is nobody's */
};

struct mpshm__event {
    struct mpshm__sync sync;
    _Atomic uint32_t state; /* bit 0: set; bit 1: somebody sleeps; above: how often it was set */
};

/* Those who wait, each in an entry of its own, so that a dead one is told from a living one. */
enum { MPSHM__WAITERS_MOST = 1024 };
enum mpshm__waiter_state {
    MPSHM__NO_WAITER = 0,
    MPSHM__WAITING,
    MPSHM__WOKEN,  /* notified, or the barrier has opened */
    MPSHM__BROKEN, /* the barrier has broken */
};
struct mpshm__waiter {
    _Atomic uint32_t state;
    _Atomic uint32_t owner;
    _Atomic uint64_t ticket;
};
struct mpshm__wait_list {
    _Atomic uint32_t top; /* all entries from here on are unused */
    uint32_t unused;
    _Atomic uint64_t next_ticket;
    struct mpshm__waiter waiters[MPSHM__WAITERS_MOST];
};

struct mpshm__condition {
    struct mpshm__sync sync;
    struct mpshm__wait_list list;
};

enum mpshm__barrier_state { MPSHM__FILLING = 0, MPSHM__FULL, MPSHM__BARRIER_BROKEN };
struct mpshm__barrier {
    struct mpshm__sync sync;
    _Atomic uint32_t state;
    _Atomic uint32_t count;     /* parties that have arrived in this round */
    _Atomic uint32_t opener;    /* the last party to arrive: it runs the action, then opens */
    _Atomic uint32_t next_look; /* word.c, Note [Looks] */
    struct mpshm__wait_list list;
    _Atomic uint32_t members[MPSHM__SLOTS]; /* owner words of the processes that have taken part */
};

#endif
