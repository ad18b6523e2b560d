/* One end of a channel in this process; mpshm.h documents the public functions. */
#ifndef MPSHM_CHANNEL_H
#define MPSHM_CHANNEL_H

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
    /* Its own duplicate of the object's descriptor, made when it is passed on: the starter of a
     * process refuses one number twice. Only the second end of a new channel needs it. */
    struct mpshm__fd duplicate;
    int duplicates;
    struct mpshm__view in, out; /* ring is NULL where there is none */
    /* Several threads may use one end. */
    _Atomic uint32_t closes; /* as counted when the kernel was last asked for readers, */
    _Atomic uint64_t looked; /* and when that was */
    struct mpshm__spin for_record, for_room, for_part;
};

/* ---- channel.c ---- */

/* Whether a channel's memory may have that size. */
int mpshm__channel_has_size(uint64_t nbytes);

/* ---- lock.c ---- */

/* Take write_lock as the writer, write_lock as the reader who arms the wake-up, or read_lock;
 * repair first if its last holder died. `fd` is the end's descriptor. 0, -EAGAIN at the deadline,
 * -EDEADLK when this thread has it, or what end_wait returned. */
enum mpshm__purpose { MPSHM__TO_WRITE, MPSHM__TO_ARM, MPSHM__TO_READ };
int mpshm__channel_lock(mpshm_channel *end, enum mpshm__purpose purpose, int fd, uint64_t deadline,
                        const mpshm_waiter *waiter);
void mpshm__channel_unlock(mpshm_channel *end, enum mpshm__purpose purpose);
/* Reader: 1 when a writer is at work; otherwise 0, after the repair if it died. */
int mpshm__writer_is_at_work(mpshm_channel *end, int fd);

/* ---- wakeup.c ---- */

/* Writer, under write_lock, before it publishes: write the byte if it is armed. 0 or -EPIPE.
 */
int mpshm__wakeup_write(mpshm_channel *end, int fd);
/* Reader, under write_lock, with an empty ring: take the byte back and arm the wake-up. */
void mpshm__wakeup_arm(mpshm_channel *end, int fd);
/* Under write_lock after its holder died: compare the state with the byte. */
void mpshm__wakeup_repair(mpshm_channel *end, int fd, int is_reader);
/* Reader: arm the wake-up if the ring is empty, as a program that selects needs it. 0, or what
 * end_wait returned. */
int mpshm__wakeup_settle(mpshm_channel *end, int fd, const mpshm_waiter *waiter);

/* ---- waiting.c ---- */

/* Nanoseconds until `deadline`, at most `most`; 0 when it has passed. */
uint64_t mpshm__remaining(uint64_t deadline, uint64_t most);
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
