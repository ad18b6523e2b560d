/* A ring of messages in shared memory, and the bytes that both ends share.
 *
 * Note [The bytes of a channel]
 *
 *   memfd    +--------------------+---------------------------+---------------------------+
 *            | mpshm__channel     | ring 0: 256 KiB of records| ring 1, if duplex         |
 *            +--------------------+---------------------------+---------------------------+
 *
 *   ring         head                        tail
 *            ----+---------------------------+-----------------------------------------
 *      free      | record | record | record  |  being written: no reader looks at it
 *            ----+---------------------------+-----------------------------------------
 *                ^ a reader moves it            ^ a writer moves it, after the whole record
 *
 *   record   | nbytes, 4 | kind, 1 | carries, 1 | number, 2 | payload, padded to 8 |
 *
 * head and tail count bytes since the ring was made and never wrap; the place is the count modulo
 * the size. A message of more than MPSHM__LARGE bytes is one FIRST record with its size, and MORE
 * records with its bytes, which pass through the ring one after the other. An ABORTED record ends a
 * message whose writer gave up or died. `carries` is 1 if there are handles of blocks in the
 * message: its reader notes them before it moves head (reference/handle_log.c). `number` is the
 * count of the messages that were begun before the record, modulo 2^16, of which a ring has room
 * for half: what the ring has sent, less the number of its oldest record, is how many messages lie
 * in it.
 *
 * Note [A death at each step]
 *   A writer works under write_lock and a reader under read_lock. Both are robust mutexes: the
 *   kernel gives the lock of a dead holder to the next process, which repairs what is left.
 *
 *   dead process and step                       left behind      repair
 *   writer, before it moved tail                nothing          `sent` is as `last` tells
 *   writer, the message is begun in `wakeup`    a whole message  it is published: wakeup.c
 *   writer, between the records of one message  a part           `large` is set: an ABORTED record
 *   writer, after the last record of it         a whole message  the tail is at `large_end`: nothing
 *   reader, before it moved head                the message      the next reader takes it
 *   reader, between the records of one message  MORE records     the next reader skips them
 *   reader, ARMED is set, the byte not taken    a byte too many  DOUBT is set: wakeup.c
 *
 * A stopped holder delays the others until it continues. */
#ifndef MPSHM_RING_H
#define MPSHM_RING_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum {
    MPSHM__RING_BYTES = 256 << 10,
    MPSHM__LARGE = MPSHM__RING_BYTES / 4,
    /* A record that is only a header; each writer leaves room for an ABORTED one. */
    MPSHM__RECORD = 8,
    MPSHM__CHANNEL_HEADER = 16384,
    MPSHM__RESERVERS = 256,
};

enum { MPSHM__WHOLE = 1, MPSHM__FIRST, MPSHM__MORE, MPSHM__ABORTED };

struct mpshm__record {
    uint32_t nbytes;
    uint8_t kind, carries;
    uint16_t number;
};

struct mpshm__ring {
    /* Moved under write_lock. */
    _Alignas(64) _Atomic uint64_t tail;
    uint32_t large;               /* 1 between the records of one message; under write_lock */
    _Atomic uint32_t writer_cpu;  /* where the last writer ran, plus 1; see base/spin.c */
    _Atomic uint32_t part_wanted; /* 1: a reader sleeps on this word until a record comes */
    _Atomic uint64_t sent;        /* messages begun so far, */
    uint64_t last;                /* and where the last record begins; see mpshm__ring_recount */
    _Atomic uint64_t aborts; /* messages of those that ended before all their bytes were there */
    uint64_t sent_before_large, aborts_before_large; /* while `large` is set, */
    uint64_t large_end; /* and, from the last record on, where the message ends; 0 before */
    _Atomic uint64_t aborts_end; /* where the last ABORTED record ends */
    /* Moved under read_lock. */
    _Alignas(64) _Atomic uint64_t head;
    _Atomic uint32_t room_wanted;  /* 1: writers sleep on this word until there is room, */
    _Atomic uint32_t place_wanted; /* or until a message is taken */
    _Atomic uint32_t selectable;   /* 1: the program has asked for the descriptor; never cleared */
    _Atomic uint32_t reader_cpu;   /* where the last reader ran, plus 1 */
    _Alignas(64) pthread_mutex_t write_lock;
    _Atomic uint64_t wakeup; /* see wakeup.c */
    _Alignas(64) pthread_mutex_t read_lock;
    /* Moved by either side without a lock: see claims.c, and places.c for the others. */
    _Alignas(64) _Atomic uint64_t claimed;
    _Atomic uint64_t done;        /* tasks of a joinable queue */
    _Atomic uint32_t join_wanted; /* 1: joiners sleep on this word until all are done */
    uint32_t bound;               /* the most messages of a queue; 0: no queue. Never changes */
    _Atomic uint32_t user_lock[2];
    _Alignas(64) pthread_mutex_t places;
};

/* The reservations of one process: see places.c. */
struct mpshm__reservations {
    pthread_mutex_t owner;
    _Atomic uint32_t state; /* whether `owner` is initialised */
    _Atomic uint32_t count;
};

/* The layout's number, and what else both processes must agree on. */
#define MPSHM__CHANNEL_MAGIC (0x6d70636800000008u + ((uint64_t)sizeof(pthread_mutex_t) << 16))

struct mpshm__channel {
    uint64_t magic;
    uint32_t duplex;
    _Atomic uint32_t closes; /* how often a process has closed an end */
    uint64_t id;             /* even; the second ring's is one more */
    struct mpshm__ring ring[2];
    /* Of the first ring: a queue has one direction. `reservers` have been in use. */
    _Atomic uint32_t reservers;
    struct mpshm__reservations reservations[MPSHM__RESERVERS];
};
_Static_assert(sizeof(struct mpshm__channel) <= MPSHM__CHANNEL_HEADER, "rings begin on a page");

/* A ring as one process sees it.
 *
 * Each read of a word that the other side moves fetches its cache line from another processor,
 * which takes as long as all else of a small message. So each side keeps the last value that it
 * saw, and looks again when that is not enough: the words only grow, and an old one is a careful
 * one. */
struct mpshm__view {
    struct mpshm__ring *ring;
    char *data;
    uint64_t head_seen;          /* a writer's, under write_lock */
    _Atomic uint64_t taken_seen; /* messages taken, as counted under `places` */
    _Atomic uint64_t tail_seen;  /* a reader's */
};

/* Initialise a robust mutex that processes share: 0 or -errno. */
int mpshm__ring_mutex(pthread_mutex_t *mutex);
/* Initialise a ring in zeroed memory: 0 or -errno. */
int mpshm__ring_init(struct mpshm__ring *ring);
/* Free bytes, less the place of an ABORTED record. It may be negative. */
int64_t mpshm__ring_room(struct mpshm__ring *ring);
/* Under write_lock: whether so many bytes are free. */
int mpshm__ring_has_room(struct mpshm__view *view, int64_t nbytes);
int mpshm__ring_is_empty(struct mpshm__ring *ring);
/* Reader: 1 when there is a record, unless another reader takes it. */
int mpshm__ring_has_record(struct mpshm__view *view);
/* The messages in a ring. Under `places` of a queue it is exact; without, it may be a moment
 * old. */
uint64_t mpshm__ring_messages(struct mpshm__view *view);
/* Under write_lock, when the last record may not be published: set `sent`. */
void mpshm__ring_recount(struct mpshm__view *view);
/* The room that a record with that payload takes. */
uint64_t mpshm__record_size(uint64_t nbytes);

/* Under write_lock: write a record behind the last one, which no reader sees yet. The caller has
 * checked the room. Returns the count of bytes at its end. */
uint64_t mpshm__ring_write(struct mpshm__view *view, struct mpshm__record record,
                           const void *payload);
/* Under write_lock, after the byte that wakes others: let readers see the records up to that count,
 * and wake a reader that waits for a part of a message. */
void mpshm__ring_publish(struct mpshm__ring *ring, uint64_t end);

/* Under read_lock: 1 and the oldest record, 0 when there is none, -EBADMSG when the ring is
 * damaged.
 */
int mpshm__ring_peek(struct mpshm__view *view, struct mpshm__record *record);
/* Under read_lock: copy the payload of the oldest record. */
void mpshm__ring_copy(struct mpshm__view *view, const struct mpshm__record *record, void *to);
/* Under read_lock: remove the oldest record, then wake the writers that may go on. A system call may
 * let another process run first, so what has to follow the one at once comes before the other. */
void mpshm__ring_advance(struct mpshm__view *view, const struct mpshm__record *record);
void mpshm__ring_wake_writers(struct mpshm__view *view, const struct mpshm__record *record);
/* Advance, then wake. */
void mpshm__ring_drop(struct mpshm__view *view, const struct mpshm__record *record);
/* Under read_lock: remove the rest of messages that no process reads any more. As ring_peek. */
int mpshm__ring_skip_rest(struct mpshm__view *view, struct mpshm__record *record);
/* Under read_lock: 1 when the oldest record is a FIRST one whose message ended before all its bytes
 * were there; otherwise 0, also while they may still come. */
int mpshm__ring_is_aborted(struct mpshm__view *view);

#endif
