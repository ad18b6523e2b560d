/* Locks, semaphores, conditions, events and barriers. */
#ifndef MPSHM_PUBLIC_SYNC_H
#define MPSHM_PUBLIC_SYNC_H
#include <stdint.h>

#include "mpshm/block.h"

/* Each of these lives in a block: mpshm_sync_create makes the block, mpshm_block_send and
 * mpshm_block_receive pass it on, mpshm_block_release gives it back. All of them outlive a process
 * that is killed at any point, while others use them. A process that cannot have a slot may use
 * them too, but nobody learns of its death.
 *
 * `flags` are 0 or MPSHM_NOWAIT. With MPSHM_NOWAIT a call makes no system call if it succeeds, and
 * fails with -EBUSY instead of waiting for another thread or process that is inside such a call.
 *
 * `timeout_ns` of 0 does not wait; MPSHM_NO_TIMEOUT, the largest number, has no end. A call with a
 * timeout fails with -ETIMEDOUT, and with -EINTR when a signal handler has run, so that a binding
 * can run handlers of its own; the caller calls again with the time that is left. With
 * mpshm_sync_return_from_sleeps(1), a wait also fails with -EINTR each time that it has slept, 2 ms
 * at first and then up to 100: a signal that comes between two sleeps interrupts none. */
enum mpshm_sync_kind {
    MPSHM_LOCK = 1,
    MPSHM_SEMAPHORE,
    MPSHM_CONDITION,
    MPSHM_EVENT,
    MPSHM_BARRIER
};
enum { MPSHM_OWNER_DIED = 1 };
void mpshm_sync_return_from_sleeps(int whether);
#define MPSHM_NO_TIMEOUT UINT64_MAX

/* `value` are the units of a semaphore, `max` the most it can have, or the parties of a barrier.
 * Otherwise as mpshm_block_allocate. */
int mpshm_sync_create(int strategy, int kind, uint32_t value, uint32_t max, int flags,
                      mpshm_block *out);
/* The kind of a block that mpshm_sync_create made in any process, -EINVAL for any other block. */
int mpshm_sync_kind(const mpshm_block *block);

/* Acquire a lock: 0, or MPSHM_OWNER_DIED when its owner had died with it. With MPSHM_NOWAIT,
 * -EAGAIN when another owner has it; if `timeout_ns` is not 0, the caller is about to call again
 * and wait, and nobody asks yet whether that owner lives. The lock belongs to the process, not to
 * the thread. */
int mpshm_lock_acquire(const mpshm_block *lock, int flags, uint64_t timeout_ns);
/* Any process may release it. -EPERM when it was free. */
int mpshm_lock_release(const mpshm_block *lock);
/* 1 when a process has it. */
int mpshm_lock_is_held(const mpshm_block *lock);

/* Take a unit: 0, or MPSHM_OWNER_DIED when units of a dead process have returned. With
 * MPSHM_NOWAIT, -EAGAIN when there is none.
 *
 * A unit belongs to the process that took it, and returns when that process dies. The first release
 * by a process that has no unit shows that units are events and not property, and so does a first
 * value of 0: from then on no unit returns. */
int mpshm_semaphore_acquire(const mpshm_block *semaphore, int flags, uint64_t timeout_ns);
/* Give a unit back. -EOVERFLOW when the semaphore has all its units. */
int mpshm_semaphore_release(const mpshm_block *semaphore, int flags);
uint32_t mpshm_semaphore_value(const mpshm_block *semaphore);

/* Become a waiter, before releasing the lock that belongs to the condition: returns a place.
 * -EUSERS when 1024 wait already. */
int mpshm_condition_enter(const mpshm_block *condition, int flags);
/* Wait at that place: 0 when notified. With -EINTR the caller is still a waiter, otherwise not. */
int mpshm_condition_wait(const mpshm_block *condition, int place, uint64_t timeout_ns);
/* Cease to be one after -EINTR. A notification that has come is passed on. */
void mpshm_condition_leave(const mpshm_block *condition, int place);
/* Wake the `n` that have waited longest, except dead ones; or, with 1024 and more, all. Returns how
 * many. */
int mpshm_condition_notify(const mpshm_block *condition, uint32_t n, int flags);
int mpshm_condition_waiters(const mpshm_block *condition);

void mpshm_event_set(const mpshm_block *event);
void mpshm_event_clear(const mpshm_block *event);
int mpshm_event_is_set(const mpshm_block *event);
/* 0 when the event is set, or was since the wait began: `*since` is 0 in its first call, and is left
 * as it is for those after -EINTR. */
int mpshm_event_wait(const mpshm_block *event, uint32_t *since, uint64_t timeout_ns);

/* Arrive at a barrier: 0 when the caller has to wait at `*place`; 1 when it is the last party, and
 * has to open the barrier. `*order` counts the parties of a round from 0. -EPIPE when the barrier
 * is broken; -EUSERS when 1024 wait already. A process that has arrived once is a member. */
int mpshm_barrier_arrive(const mpshm_block *barrier, int flags, uint64_t timeout_ns, int *place,
                         uint32_t *order);
/* Wait at that place: 0 when the barrier has opened, -EPIPE when it is broken. It breaks when this
 * call times out (-ETIMEDOUT), and when a member dies. */
int mpshm_barrier_wait(const mpshm_block *barrier, int place, uint64_t timeout_ns);
/* Cease to wait after -EINTR. */
void mpshm_barrier_leave(const mpshm_block *barrier, int place);
/* Open the barrier: 0, or -EPIPE when it has broken meanwhile. */
int mpshm_barrier_open(const mpshm_block *barrier);
/* Break it, until mpshm_barrier_reset. */
void mpshm_barrier_break(const mpshm_block *barrier);
/* Begin a new round without members; all who wait get -EPIPE. */
void mpshm_barrier_reset(const mpshm_block *barrier);
/* This process is no member any more, so that its end breaks nothing. */
void mpshm_barrier_resign(const mpshm_block *barrier);
/* The parties that wait, or -EPIPE. */
int mpshm_barrier_waiters(const mpshm_block *barrier);
uint32_t mpshm_barrier_parties(const mpshm_block *barrier);

#endif
