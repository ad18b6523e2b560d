/* One end of a channel in this process; mpshm.h documents the public functions. */
#ifndef MPSHM_CHANNEL_H
#define MPSHM_CHANNEL_H

#include <poll.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/spin.h"
#include "channel/ring.h"
#include "mpshm.h"

/* The mapping of a channel's memory, which both ends in one process share. */
struct mpshm__channel_mapping {
    _Atomic int ends;
    struct mpshm__channel *header;
    uint64_t nbytes;
    struct mpshm__fd object;
};

struct mpshm_channel {
    struct mpshm__channel_mapping *mapping;
    int side;
    /* Its own duplicate of the object's descriptor, made when it is passed on: the starter of a
     * process refuses one number twice. Only the second end of a new channel needs it. */
    struct mpshm__fd duplicate;
    int duplicates;
    _Atomic int foreign;        /* 1: bytes came that no writer of a channel has written */
    struct mpshm__view in, out; /* ring is NULL where there is none */
    /* Of this process; `reserved` counts here if there are too many processes. */
    struct mpshm__reservations *reservations;
    _Atomic uint32_t uncounted;
    _Atomic uint32_t *reserved;
    /* Several threads may use one end. */
    _Atomic uint32_t closes; /* as counted when the kernel was last asked for readers, */
    _Atomic uint64_t looked; /* and when that was */
    struct mpshm__spin for_record, for_room, for_part, for_place;
};

/* ---- channel.c ---- */

/* Whether a channel's memory may have that size. */
int mpshm__channel_has_size(uint64_t nbytes);

/* ---- ring_lock.c ---- */

/* Which lock, and what for. */
enum mpshm__purpose {
    MPSHM__TO_WRITE, /* write_lock, as a writer */
    MPSHM__TO_CHECK, /* write_lock, as a reader with read_lock that looks for a writer at work */
    MPSHM__TO_CLOSE, /* write_lock, as a reader without read_lock that closes its end */
    MPSHM__TO_READ,  /* read_lock */
    MPSHM__TO_COUNT, /* `places`: may be taken under write_lock, and is never kept for a wait */
};
/* Take a lock; repair first if its last holder died. `fd` is the end's descriptor. 0, -EAGAIN at
 * the deadline, -EDEADLK when this thread has it, or what end_wait returned. */
int mpshm__channel_lock(mpshm_channel *end, enum mpshm__purpose purpose, int fd, uint64_t deadline,
                        const mpshm_waiter *waiter);
/* Under write_lock, after its holder died or gave up: end an unfinished message. */
void mpshm__abort_message(struct mpshm__view *view);
void mpshm__channel_unlock(mpshm_channel *end, enum mpshm__purpose purpose);
/* Repair what the last writer has left, if it died. It does not wait. */
void mpshm__repair_after_writer(mpshm_channel *end, int fd);
/* Under read_lock: 1 when a writer is at work; otherwise 0, after the repair if it died. */
int mpshm__writer_is_at_work(mpshm_channel *end, int fd);

/* ---- wakeup.c ---- */

/* Under write_lock, before the records up to `to` are published: begin them, and write the byte if
 * it is armed. 0 or -EPIPE. */
int mpshm__wakeup_write(mpshm_channel *end, int fd, uint64_t to);
/* Under write_lock, for a record that nobody is woken for. */
void mpshm__wakeup_begin(struct mpshm__ring *ring, uint64_t to);
/* Under read_lock, with a ring that seems to be empty: publish the message of a writer that was
 * interrupted after the byte, or arm the wake-up. `fd` is the reader's; `woken` tells that it was
 * readable without a reason. */
void mpshm__wakeup_arm(mpshm_channel *end, int fd, int woken);
/* 1 when a writer has begun a record that it has not published. */
int mpshm__wakeup_is_begun(struct mpshm__ring *ring);
/* 1 when an empty ring is not armed, or not without doubt. */
int mpshm__wakeup_is_unsettled(struct mpshm__ring *ring);
/* Under read_lock: the pipe may have a byte too many. */
void mpshm__wakeup_doubt(struct mpshm__ring *ring);
/* Under write_lock after its holder died: publish what it has begun, or take it back. */
void mpshm__wakeup_repair(mpshm_channel *end, int fd, enum mpshm__purpose purpose);

/* ---- places.c ---- */

/* Which place of a queue a message takes: any, also if the queue is full; one of `bound`; or the
 * one that its process has reserved. */
enum mpshm__place { MPSHM__ANY, MPSHM__BOUNDED, MPSHM__RESERVED };
/* Under write_lock, around the record that begins a message: 0, or -ENOSPC when the queue is full.
 */
int mpshm__begin_place(mpshm_channel *end, int fd, enum mpshm__place place,
                       const mpshm_waiter *waiter);
void mpshm__end_place(mpshm_channel *end, enum mpshm__place place, int sent);
/* Wait until the queue has a place, which another process may take: 0, -ENOSPC at the deadline,
 * -EPIPE. */
int mpshm__wait_for_place(mpshm_channel *end, int fd, uint64_t deadline,
                          const mpshm_waiter *waiter);

/* ---- waiting.c ---- */

/* How often a sleeper looks for what no wake-up tells. */
enum { MPSHM__FIRST_LOOK_NS = 1000000, MPSHM__LOOK_NS = 250 * 1000000 };
/* Spin for what is awaited, so many times as long as is usual, but not beyond the deadline: 1 when
 * it is there, 0, or what end_wait returned. */
int mpshm__spin_for(struct mpshm__spin *spin, const struct mpshm__awaited *awaited, unsigned times,
                    uint64_t deadline, const mpshm_waiter *waiter);
/* Sleep for so long, UINT64_MAX for ever: how many descriptors are ready; -EINTR after a signal, or
 * what end_wait returned. */
int mpshm__poll(struct pollfd *polled, int count, uint64_t ns, const mpshm_waiter *waiter);
/* Sleep while the flag is 1. The sleeper has set it, and whoever clears it wakes. */
int mpshm__sleep_on_flag(_Atomic uint32_t *flag, uint64_t ns, const mpshm_waiter *waiter);

/* Reader: arm the wake-up if the ring is empty, as a program that selects needs it. */
void mpshm__wakeup_settle(mpshm_channel *end, int fd);
/* Wait until the ring has a record: 1; 0 at the end of the file; -EAGAIN at the deadline. */
int mpshm__wait_for_record(mpshm_channel *end, int fd, uint64_t deadline,
                           const mpshm_waiter *waiter);
/* Wait for the next record of a large message, under read_lock: 1, or 0 when none will come. */
int mpshm__wait_for_part(mpshm_channel *end, int fd, const mpshm_waiter *waiter);
/* Wait until `need` bytes are free, first in a spin: 0, -EPIPE, -EAGAIN at the deadline. With a
 * deadline that has passed it still spins, if that has paid before. */
int mpshm__wait_for_room(mpshm_channel *end, int fd, uint64_t need, uint64_t deadline,
                         const mpshm_waiter *waiter);
/* 0, or -EPIPE when the kernel says that no process has the reading end. */
int mpshm__channel_has_reader(int fd);
/* The waiter, with `resume` in the place of end_wait. */
mpshm_waiter mpshm__without_handlers(const mpshm_waiter *waiter);

#endif
