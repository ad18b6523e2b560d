/* Locks on platforms without shared memory: mpshm_sync_create fails, and without a block there is
 * nothing to call the others with. */
#include <errno.h>

#include "mpshm.h"

int mpshm_sync_create(int strategy, int kind, uint32_t value, uint32_t max, int flags,
                      mpshm_block *out)
{
    (void)strategy, (void)kind, (void)value, (void)max, (void)flags, (void)out;
    return -ENOSYS;
}

int mpshm_sync_kind(const mpshm_block *block)
{
    (void)block;
    return -ENOSYS;
}

int mpshm_lock_acquire(const mpshm_block *lock, int flags, uint64_t timeout_ns)
{
    (void)lock, (void)flags, (void)timeout_ns;
    return -ENOSYS;
}

int mpshm_lock_release(const mpshm_block *lock)
{
    (void)lock;
    return -ENOSYS;
}

int mpshm_lock_is_held(const mpshm_block *lock)
{
    (void)lock;
    return -ENOSYS;
}

int mpshm_semaphore_acquire(const mpshm_block *semaphore, int flags, uint64_t timeout_ns)
{
    (void)semaphore, (void)flags, (void)timeout_ns;
    return -ENOSYS;
}

int mpshm_semaphore_release(const mpshm_block *semaphore, int flags)
{
    (void)semaphore, (void)flags;
    return -ENOSYS;
}

uint32_t mpshm_semaphore_value(const mpshm_block *semaphore)
{
    (void)semaphore;
    return 0;
}

int mpshm_condition_enter(const mpshm_block *condition, int flags)
{
    (void)condition, (void)flags;
    return -ENOSYS;
}

int mpshm_condition_wait(const mpshm_block *condition, int place, uint64_t timeout_ns)
{
    (void)condition, (void)place, (void)timeout_ns;
    return -ENOSYS;
}

void mpshm_condition_leave(const mpshm_block *condition, int place)
{
    (void)condition, (void)place;
}

int mpshm_condition_notify(const mpshm_block *condition, uint32_t n, int flags)
{
    (void)condition, (void)n, (void)flags;
    return -ENOSYS;
}

int mpshm_condition_waiters(const mpshm_block *condition)
{
    (void)condition;
    return -ENOSYS;
}

void mpshm_event_set(const mpshm_block *event)
{
    (void)event;
}

void mpshm_event_clear(const mpshm_block *event)
{
    (void)event;
}

int mpshm_event_is_set(const mpshm_block *event)
{
    (void)event;
    return -ENOSYS;
}

int mpshm_event_wait(const mpshm_block *event, uint64_t timeout_ns)
{
    (void)event, (void)timeout_ns;
    return -ENOSYS;
}

int mpshm_barrier_arrive(const mpshm_block *barrier, int flags, uint64_t timeout_ns, int *place,
                         uint32_t *order)
{
    (void)barrier, (void)flags, (void)timeout_ns, (void)place, (void)order;
    return -ENOSYS;
}

int mpshm_barrier_wait(const mpshm_block *barrier, int place, uint64_t timeout_ns)
{
    (void)barrier, (void)place, (void)timeout_ns;
    return -ENOSYS;
}

void mpshm_barrier_leave(const mpshm_block *barrier, int place)
{
    (void)barrier, (void)place;
}

int mpshm_barrier_open(const mpshm_block *barrier)
{
    (void)barrier;
    return -ENOSYS;
}

void mpshm_barrier_break(const mpshm_block *barrier)
{
    (void)barrier;
}

void mpshm_barrier_reset(const mpshm_block *barrier)
{
    (void)barrier;
}

void mpshm_barrier_resign(const mpshm_block *barrier)
{
    (void)barrier;
}

int mpshm_barrier_waiters(const mpshm_block *barrier)
{
    (void)barrier;
    return -ENOSYS;
}

uint32_t mpshm_barrier_parties(const mpshm_block *barrier)
{
    (void)barrier;
    return 0;
}
