/* The lock of this process. It is held for a moment, and finalizers never wait for it.
 *
 * Note [Waiting for the process lock]
 *   A thread that asks the manager something holds the lock meanwhile, and that may take seconds
 *   when the manager is stopped. An allocation or a receive with MPSHM_NOWAIT fails instead of
 *   waiting. A release cannot fail, so when the lock is taken it is appended to a list, and each
 *   thread that has the lock runs the list before it unlocks. One exchange appends to the list and
 *   one empties it, so a release never waits. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "base/process_lock.h"
#include "mpshm.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct mpshm__deferred *) list;

static void run_deferred(void)
{
    struct mpshm__deferred *work = atomic_exchange(&list, NULL);

    while (work != NULL) {
        struct mpshm__deferred *next = work->next;
        work->run(work);
        work = next;
    }
}

void mpshm__lock(void)
{
    pthread_mutex_lock(&lock);
}

int mpshm__try_lock(void)
{
    return pthread_mutex_trylock(&lock) == 0;
}

void mpshm__unlock(void)
{
    do {
        run_deferred();
        pthread_mutex_unlock(&lock);
        /* Work that another thread deferred between these two calls: that thread could not get the
         * lock, so it is done here. */
    } while (atomic_load(&list) != NULL && mpshm__try_lock());
}

/* With MPSHM_NOWAIT, not even for the lock: its holder may be waiting for the manager. */
int mpshm__lock_by_flags(int flags)
{
    if (flags & MPSHM_NOWAIT)
        return mpshm__try_lock();
    mpshm__lock();
    return 1;
}

void mpshm__lock_defer(struct mpshm__deferred *work)
{
    work->next = atomic_load(&list);
    while (!atomic_compare_exchange_weak(&list, &work->next, work))
        ;
    if (mpshm__try_lock())
        mpshm__unlock();
}

void mpshm__reset_lock_in_child(void)
{
    /* The thread that forked is the only one here, and it has the lock. The mutex is initialised
     * again because it stores its owner as a thread id that means nothing in the child. */
    pthread_mutex_unlock(&lock);
    pthread_mutex_init(&lock, NULL);
}
