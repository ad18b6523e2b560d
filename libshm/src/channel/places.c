/* The places of a queue, and the tasks of a joinable one: both are counts of messages.
 *
 * Note [A message is a place]
 *   A queue is full when `bound` messages are in it: those in the ring, and those that a process
 *   still keeps because the ring has no room for their bytes. The latter are reservations, which
 *   each process counts for itself:
 *
 *     messages in the queue = sent - number of the oldest record   + reservations of all processes
 *     unfinished tasks      = sent - aborts - done                 + reservations of all processes
 *
 *   The first terms are read from the ring. The owner of a process's reservations is the thread
 *   that sends the messages: it has their lock, which is robust, so a lock whose owner died tells
 *   that the messages are gone with it. There is no other count, so no death leaves one wrong.
 *
 *   Under `places` nothing is added: a writer keeps it from the look at the counts until its
 *   message is published, a process that reserves until it has counted.
 *
 *   dead process and step                       left behind           repair
 *   writer, before it moved tail                `sent` one too high   mpshm__ring_recount
 *   writer, in a message of several records     a part                ABORTED record, `aborts`
 *   writer, before its reservation is taken off a reservation         the next line
 *   process with reservations                   reservations          reap(), by who needs a place
 *   holder of `places`                          one of these          the next holder
 *   the same, stopped and not dead              `places` taken        reserve_beside_holder()
 *   reader, before it moved head                the message           the next reader takes it
 *   reader, after it moved head                 nothing: the place is free, a task is unfinished
 *   who was woken for a place                   sleepers              they look by themselves
 *   task_done, before the wake-up               joiners asleep        they look by themselves
 *
 *   Who finds a queue full, and who waits in join, first looks for the dead. */
#include <errno.h>

#include "base/clock.h"
#include "channel/channel.h"
#include "platform/linux/futex.h"

enum { UNUSED, INITIALISING, READY }; /* the state of reservations */

/* The ring as the process sees it from either end. */
static struct mpshm__view *view_of(mpshm_channel *end)
{
    return end->out.ring != NULL ? &end->out : &end->in;
}

/* ---- reservations ---- */

static uint64_t reserved(mpshm_channel *end)
{
    struct mpshm__channel *header = end->mapping->header;
    uint64_t count = atomic_load(&end->uncounted);

    for (uint32_t i = 0; i < atomic_load(&header->reservers); i++)
        count += atomic_load(&header->reservations[i].count);
    return count;
}

/* Drop the reservations of the dead. */
static void reap(mpshm_channel *end)
{
    struct mpshm__channel *header = end->mapping->header;

    for (uint32_t i = 0; i < atomic_load(&header->reservers); i++) {
        struct mpshm__reservations *of = &header->reservations[i];
        if (atomic_load(&of->count) == 0)
            continue;
        int err = pthread_mutex_trylock(&of->owner);
        if (err == EOWNERDEAD) {
            atomic_store(&of->count, 0);
            pthread_mutex_consistent(&of->owner);
        }
        if (err == 0 || err == EOWNERDEAD)
            pthread_mutex_unlock(&of->owner);
    }
}

static void look_for_the_dead(mpshm_channel *end, int fd)
{
    if (end->out.ring != NULL && fd >= 0)
        mpshm__repair_after_writer(end, fd);
    reap(end);
}

/* Take reservations that no thread has: 1. A process that dies while it initialises them leaves
 * them unused for ever. */
static int take(struct mpshm__reservations *of)
{
    uint32_t state = UNUSED;

    if (atomic_compare_exchange_strong(&of->state, &state, INITIALISING)) {
        if (mpshm__ring_mutex(&of->owner) < 0)
            return 0;
        pthread_mutex_lock(&of->owner);
        atomic_store(&of->state, READY);
        return 1;
    }
    int err = state == READY ? pthread_mutex_trylock(&of->owner) : EBUSY;
    if (err == EOWNERDEAD)
        pthread_mutex_consistent(&of->owner);
    return err == 0 || err == EOWNERDEAD;
}

void mpshm_channel_begin_reservations(mpshm_channel *end)
{
    struct mpshm__channel *header = end->mapping->header;
    uint32_t i = 0, used;

    while (i < MPSHM__RESERVERS && !take(&header->reservations[i]))
        i++;
    end->reservations = i < MPSHM__RESERVERS ? &header->reservations[i] : NULL;
    end->reserved = end->reservations != NULL ? &end->reservations->count : &end->uncounted;
    atomic_store(end->reserved, 0);
    used = atomic_load(&header->reservers);
    while (i < MPSHM__RESERVERS && used <= i &&
           !atomic_compare_exchange_weak(&header->reservers, &used, i + 1))
        ;
}

void mpshm_channel_end_reservations(mpshm_channel *end)
{
    atomic_store(end->reserved, 0);
    end->reserved = NULL;
    if (end->reservations != NULL)
        pthread_mutex_unlock(&end->reservations->owner);
    end->reservations = NULL;
    mpshm__futex_wake(&end->out.ring->place_wanted);
}

/* ---- places ---- */

/* Under `places`. */
static uint64_t messages(mpshm_channel *end)
{
    struct mpshm__view *view = view_of(end);
    uint64_t count = mpshm__ring_messages(view);

    atomic_store_explicit(&view->taken_seen, atomic_load(&view->ring->sent) - count,
                          memory_order_relaxed);
    return count + reserved(end);
}

/* 1 when it has a place for certain, by what was seen before: messages are only taken. */
static int has_place(mpshm_channel *end)
{
    uint64_t sent = atomic_load_explicit(&end->out.ring->sent, memory_order_relaxed);
    uint64_t taken = atomic_load_explicit(&end->out.taken_seen, memory_order_relaxed);

    return sent - taken + reserved(end) < end->out.ring->bound;
}

static int is_full(mpshm_channel *end)
{
    return !has_place(end) && messages(end) >= end->out.ring->bound;
}

/* Take `places` for a short time. -EAGAIN when its holder is stopped. */
static int lock(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    mpshm_waiter silent = mpshm__without_handlers(waiter);

    return mpshm__channel_lock(end, MPSHM__TO_COUNT, fd, mpshm__deadline(MPSHM__LOOK_NS), &silent);
}

int mpshm__begin_place(mpshm_channel *end, int fd, enum mpshm__place place,
                       const mpshm_waiter *waiter)
{
    if (end->out.ring->bound == 0)
        return 0;
    if (place != MPSHM__BOUNDED)
        return mpshm__channel_lock(end, MPSHM__TO_COUNT, fd, MPSHM__FOREVER, waiter);
    int rc = lock(end, fd, waiter);
    if (rc == 0 && is_full(end)) {
        mpshm__channel_unlock(end, MPSHM__TO_COUNT);
        rc = -ENOSPC;
    }
    return rc;
}

void mpshm__end_place(mpshm_channel *end, enum mpshm__place place, int sent)
{
    if (end->out.ring->bound == 0)
        return;
    if (sent && place == MPSHM__RESERVED)
        atomic_fetch_sub(end->reserved, 1);
    mpshm__channel_unlock(end, MPSHM__TO_COUNT);
}

/* The holder of `places` is stopped, and has perhaps a place that is not counted yet: count it as
 * one. Of two processes that try this at once, both may fail. */
static int reserve_beside_holder(mpshm_channel *end)
{
    if (end->reserved == NULL)
        return -EBADF;
    atomic_fetch_add(end->reserved, 1);
    if (messages(end) < end->out.ring->bound)
        return 0;
    atomic_fetch_sub(end->reserved, 1);
    return -ENOSPC;
}

int mpshm_channel_reserve(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    int rc = lock(end, fd, waiter);

    if (rc == -EAGAIN)
        return reserve_beside_holder(end);
    if (rc < 0)
        return rc;
    if (end->reserved == NULL)
        rc = -EBADF; /* the thread has ended */
    else if (is_full(end))
        rc = -ENOSPC;
    else
        atomic_fetch_add(end->reserved, 1);
    mpshm__channel_unlock(end, MPSHM__TO_COUNT);
    return rc;
}

void mpshm_channel_unreserve(mpshm_channel *end)
{
    atomic_fetch_sub(end->reserved, 1);
    mpshm__futex_wake_one(&end->out.ring->place_wanted);
}

int64_t mpshm_channel_messages(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    look_for_the_dead(end, fd);
    int rc = lock(end, fd, waiter);
    uint64_t count = messages(end);
    if (rc == 0)
        mpshm__channel_unlock(end, MPSHM__TO_COUNT);
    return (int64_t)count;
}

int mpshm_channel_has_rest(mpshm_channel *end)
{
    struct mpshm__record record;

    return end->out.ring != NULL && mpshm__ring_peek(&end->out, &record) > 0 &&
           record.kind == MPSHM__MORE;
}

static int has_moved(void *of, uint64_t head)
{
    return atomic_load_explicit(&((struct mpshm__ring *)of)->head, memory_order_seq_cst) != head;
}

/* Positive if there is a place, after a look for the dead if the queue seems to be full; 0 if there
 * is none, or a stopped process has the lock; or -errno. */
static int64_t find_place(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    int rc = lock(end, fd, waiter);

    if (rc < 0)
        return rc == -EAGAIN ? 0 : rc;
    int full = is_full(end);
    mpshm__channel_unlock(end, MPSHM__TO_COUNT);
    return full ? (int64_t)end->out.ring->bound - mpshm_channel_messages(end, fd, waiter) : 1;
}

int mpshm__wait_for_place(mpshm_channel *end, int fd, uint64_t deadline, const mpshm_waiter *waiter)
{
    struct mpshm__ring *ring = end->out.ring;

    if (ring->bound == 0 || has_place(end))
        return 0;
    for (int round = 0;; round++) {
        if (round > 0)
            atomic_store(&ring->place_wanted, 1);
        uint64_t head = atomic_load(&ring->head);
        int64_t found = find_place(end, fd, waiter);
        if (found > 0 && round > 1) /* one was woken for several places */
            mpshm__futex_wake_one(&ring->place_wanted);
        if (found > 0)
            return 0;
        int rc = found < 0 ? (int)found : mpshm__channel_has_reader(fd);
        if (rc < 0)
            return rc;
        uint64_t ns = mpshm__remaining(deadline, MPSHM__LOOK_NS);
        if (ns == 0)
            return -ENOSPC;
        struct mpshm__awaited moved = {has_moved, ring, head, &ring->reader_cpu};
        rc = round == 0 ? mpshm__spin_for(&end->for_place, &moved, 1, deadline, waiter)
                        : mpshm__sleep_on_flag(&ring->place_wanted, ns, waiter);
        if (rc < 0)
            return rc;
    }
}

int mpshm_channel_wait_for_place(mpshm_channel *end, int fd, int64_t timeout_ns,
                                 const mpshm_waiter *waiter)
{
    if (end->out.ring == NULL)
        return -EBADF;
    return mpshm__wait_for_place(end, fd, mpshm__deadline((uint64_t)timeout_ns), waiter);
}

void mpshm_channel_set_bound(mpshm_channel *end, uint32_t bound)
{
    end->out.ring->bound = bound;
}

int mpshm_channel_is_queue(mpshm_channel *end)
{
    return view_of(end)->ring->bound != 0;
}

/* ---- tasks ---- */

/* Each message that is under way is in at least one of the terms, in this order. */
static int64_t unfinished(mpshm_channel *end, uint64_t done)
{
    struct mpshm__ring *ring = view_of(end)->ring;
    uint64_t count = reserved(end);
    uint64_t aborts = atomic_load(&ring->aborts);

    return (int64_t)(count + atomic_load(&ring->sent) - aborts - done);
}

int mpshm_channel_task_done(mpshm_channel *end)
{
    struct mpshm__ring *ring = view_of(end)->ring;
    uint64_t done = atomic_load(&ring->done);

    do
        if (unfinished(end, done) <= 0)
            return -EINVAL;
    while (!atomic_compare_exchange_weak(&ring->done, &done, done + 1));
    if (unfinished(end, done + 1) <= 0 && atomic_exchange(&ring->join_wanted, 0))
        mpshm__futex_wake(&ring->join_wanted);
    return 0;
}

int mpshm_channel_join(mpshm_channel *end, int fd, int64_t timeout_ns, const mpshm_waiter *waiter)
{
    struct mpshm__ring *ring = view_of(end)->ring;
    uint64_t deadline = mpshm__deadline((uint64_t)timeout_ns);

    for (;;) {
        atomic_store(&ring->join_wanted, 1);
        if (unfinished(end, atomic_load(&ring->done)) <= 0)
            return 0;
        look_for_the_dead(end, fd);
        if (unfinished(end, atomic_load(&ring->done)) <= 0)
            return 0;
        uint64_t ns = mpshm__remaining(deadline, MPSHM__LOOK_NS);
        int rc = ns == 0 ? -EAGAIN : mpshm__sleep_on_flag(&ring->join_wanted, ns, waiter);
        if (rc < 0)
            return rc;
    }
}

int64_t mpshm_channel_tasks(mpshm_channel *end, int fd)
{
    look_for_the_dead(end, fd);
    int64_t count = unfinished(end, atomic_load(&view_of(end)->ring->done));
    return count > 0 ? count : 0;
}

/* ---- locks of the program ---- */

/* 0: free; 1: taken; 2: taken, and somebody may sleep. A holder that dies keeps it, as a standard
 * lock. */
static _Atomic uint32_t *user_lock(mpshm_channel *end, int which)
{
    return &view_of(end)->ring->user_lock[which];
}

int mpshm_channel_acquire(mpshm_channel *end, int which, int64_t timeout_ns,
                          const mpshm_waiter *waiter)
{
    _Atomic uint32_t *word = user_lock(end, which);
    uint64_t deadline = mpshm__deadline((uint64_t)timeout_ns);
    uint32_t free = 0;

    if (atomic_compare_exchange_strong(word, &free, 1))
        return 0;
    for (;;) {
        uint64_t ns = mpshm__remaining(deadline, MPSHM__LOOK_NS);
        if (ns == 0)
            return -EAGAIN;
        if (atomic_exchange(word, 2) == 0)
            return 0;
        waiter->begin_wait(waiter->self);
        mpshm__futex_wait_for(word, 2, ns);
        int rc = waiter->end_wait(waiter->self);
        if (rc < 0)
            return rc;
    }
}

int mpshm_channel_release(mpshm_channel *end, int which)
{
    _Atomic uint32_t *word = user_lock(end, which);
    uint32_t before = atomic_exchange(word, 0);

    if (before == 2)
        mpshm__futex_wake_one(word);
    return before == 0 ? -EPERM : 0;
}
