/* Pairs of connections whose ring is not made yet.
 *
 * Note [A ring is made when it is needed]
 *   Pipe() makes a pipe or a socket pair only. To make the ring's memory takes longer than that and
 * a descriptor, and many pipes carry no message: their ends tell when a process ends. Both ends are
 * in one process, and share a `lazy_pair`, until the first of these:
 *
 *   a message is sent, somebody waits for one, the descriptor     the ring is made
 *      is asked for, an end is pickled
 *   the process forks                                             the rings of all pairs are made
 *   an end is closed or dropped                                   the other end is `alone`
 *
 * No other process has one of the ends before, so nothing has been sent, and both sides always
 * agree whether there is a ring. Where there can be none (no memfd, no descriptor), both ends go on
 * as the ordinary connections that they are, as does an end that is alone, which is told by the
 * kernel that the other one is closed.
 *
 * - Threads. `lock` is held while a ring is made and while a pair is taken apart, so one is made,
 *   or none. It is taken with the GIL held, except by a fork in other C code; nothing under it
 *   waits, runs Python or needs the GIL.
 * - Signal handlers of Python run between calls into C, so none sees half of this.
 * - A fork holds the lock from before its rings are made until it is done: no pair can come in
 *   between, of which each process would make a ring of its own. These are pthread_atfork handlers,
 *   so a fork by other C code, which may not have the GIL, is covered. libshm's handlers are
 *   older than these, so they run inside: `lock` comes before the process locks. A raw clone() of
 *   the process runs no handlers, and the library does not support one anyway.
 * - A death frees all of it: a pair is memory of this process and two descriptors. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "channels/channel.h"
#include "channels/channels.h"

struct lazy_pair {
    Channel *end[2]; /* by side; each takes the pair apart before it goes */
    struct lazy_pair *next, **to_this;
    int duplex;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct lazy_pair *pairs;
static _Atomic uint64_t refused; /* ends whose ring could not be made */

void mp_count_refused_ring(void)
{
    atomic_fetch_add(&refused, 2);
}

/* Under the lock: the pair is no more, and each end is what the caller has made of it. */
static void dissolve(struct lazy_pair *pair)
{
    *pair->to_this = pair->next;
    if (pair->next != NULL)
        pair->next->to_this = pair->to_this;
    for (int side = 0; side < 2; side++)
        atomic_store(&pair->end[side]->lazy, NULL);
    free(pair);
}

/* Under the lock, perhaps without the GIL. */
static void make_ring(struct lazy_pair *pair)
{
    mpshm_channel *ends[2] = {NULL, NULL};

    if (mpshm_channel_create(pair->duplex, ends) < 0)
        mp_count_refused_ring();
    for (int side = 0; side < 2; side++)
        pair->end[side]->end = ends[side];
    dissolve(pair);
}

/* Make the rings of all pairs; keep the lock until the fork is done, so that no pair is added. */
static void make_all_rings_and_lock(void)
{
    pthread_mutex_lock(&lock);
    while (pairs != NULL)
        make_ring(pairs);
}

static void unlock(void)
{
    pthread_mutex_unlock(&lock);
}

int mp_lazy_pair(Channel *first, Channel *second, int duplex)
{
    static int armed;
    struct lazy_pair *pair = malloc(sizeof(*pair));

    if (pair == NULL || (!armed && pthread_atfork(make_all_rings_and_lock, unlock, unlock) != 0)) {
        free(pair);
        return -1;
    }
    armed = 1;
    *pair = (struct lazy_pair){.end = {first, second}, .duplex = duplex, .to_this = &pairs};
    pthread_mutex_lock(&lock);
    pair->next = pairs;
    if (pairs != NULL)
        pairs->to_this = &pair->next;
    pairs = pair;
    atomic_store(&first->lazy, pair);
    atomic_store(&second->lazy, pair);
    pthread_mutex_unlock(&lock);
    return 0;
}

int mp_has_ring(Channel *self)
{
    if (atomic_load(&self->lazy) != NULL) {
        pthread_mutex_lock(&lock);
        struct lazy_pair *pair = atomic_load(&self->lazy); /* a fork may have been first */
        if (pair != NULL)
            make_ring(pair);
        pthread_mutex_unlock(&lock);
    }
    return self->end != NULL;
}

void mp_lazy_leave(Channel *self)
{
    if (atomic_load(&self->lazy) == NULL)
        return;
    pthread_mutex_lock(&lock);
    struct lazy_pair *pair = atomic_load(&self->lazy);
    if (pair != NULL) {
        pair->end[0]->alone = pair->end[1]->alone = 1;
        dissolve(pair);
    }
    pthread_mutex_unlock(&lock);
}

/* channels_refused() -> how many ends could not get a ring */
PyObject *mp_py_channels_refused(PyObject *module, PyObject *unused)
{
    return PyLong_FromUnsignedLongLong(atomic_load(&refused));
}
