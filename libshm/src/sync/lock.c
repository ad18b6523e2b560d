/* Locks. */
#include "sync/word.h"

int mpshm_lock_acquire(const mpshm_block *lock, int flags, uint64_t timeout_ns)
{
    struct mpshm__session *session = mpshm__session_of(lock);
    struct mpshm__sync *sync = lock->data;
    int rc = mpshm__word_try(&sync->word, mpshm__me(session));

    if (rc == 0)
        mpshm__note_cpu(&sync->cpu);
    if (rc == 0 || ((flags & MPSHM_NOWAIT) && timeout_ns != 0))
        return rc;
    if (timeout_ns != 0) {
        rc = mpshm__word_wait(session, sync, mpshm__deadline(timeout_ns));
        if (rc >= 0)
            mpshm__note_cpu(&sync->cpu);
        return rc;
    }
    rc = mpshm__word_take_over(session, &sync->word);
    return rc == MPSHM_OWNER_DIED || (flags & MPSHM_NOWAIT) ? rc : -ETIMEDOUT;
}

int mpshm_lock_release(const mpshm_block *lock)
{
    return mpshm__word_release(&((struct mpshm__sync *)lock->data)->word);
}

int mpshm_lock_is_held(const mpshm_block *lock)
{
    return (atomic_load(&((struct mpshm__sync *)lock->data)->word) & ~MPSHM__WAITERS) != 0;
}
