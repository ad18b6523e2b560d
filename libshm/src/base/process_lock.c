/* The lock of this process: taken for a moment, never waited for by a finalizer.
 *
 * Note [Who may wait for the lock]
 *   Whoever asks the manager something holds the lock meanwhile, and that may take seconds when the
 *   manager is stopped. An allocation or a claim that must not wait says so and is refused; a
 *   release cannot be refused, so when the lock is taken it is put on a list, and whoever has the
 *   lock works the list off before it goes. The list is pushed to and emptied with one exchange, so
 *   a release never waits for anything. */
#include <pthread.h>
#include <stdlib.h>

#include "internal.h"

struct deferred {
    struct deferred *next;
    mpshm_block block;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct deferred *) list;

static void work_off(void)
{
    struct deferred *d = atomic_exchange(&list, NULL);

    while (d != NULL) {
        struct deferred *next = d->next;
        mpshm__release_block(&d->block);
        free(d);
        d = next;
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
        work_off();
        pthread_mutex_unlock(&lock);
        /* Pushed after we looked and before we let go: who pushed could not get the lock. */
    } while (atomic_load(&list) != NULL && mpshm__try_lock());
}

void mpshm__release_deferred(const mpshm_block *block)
{
    struct deferred *d = malloc(sizeof(*d));

    if (d == NULL) { /* then it has to wait after all */
        mpshm__lock();
        mpshm__release_block(block);
        mpshm__unlock();
        return;
    }
    d->block = *block;
    d->next = atomic_load(&list);
    while (!atomic_compare_exchange_weak(&list, &d->next, d))
        ;
    if (mpshm__try_lock())
        mpshm__unlock();
}

void mpshm__reset_lock_in_child(void)
{
    /* The thread that forked is the only one here, and it has the lock. Then made anew, because it
     * remembers an owner by a number that means nothing here. */
    pthread_mutex_unlock(&lock);
    pthread_mutex_init(&lock, NULL);
}
