/* The lock of this process, and what a fork does to it.
 *
 * The forking thread holds it from before the fork to after it, so that no other thread is in the
 * middle of anything when memory is copied. Between the two the interpreter runs other hooks, and
 * they may drop or even make blocks on this same thread: what has the lock already passes. In the
 * child the lock is made anew, because it remembers an owner that does not exist there. */
#include <pthread.h>

#include "internal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int forking;

void mpshm__acquire(void)
{
    if (!forking)
        pthread_mutex_lock(&lock);
}

void mpshm__release(void)
{
    if (!forking)
        pthread_mutex_unlock(&lock);
}

void mpshm__hold_for_fork(void)
{
    pthread_mutex_lock(&lock);
    forking = 1;
}

void mpshm__after_fork(int in_child)
{
    forking = 0;
    if (in_child)
        pthread_mutex_init(&lock, NULL);
    else
        pthread_mutex_unlock(&lock);
}

int mpshm__is_forking(void)
{
    return forking;
}
