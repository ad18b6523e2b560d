/* Records into a ring and out of it. Nothing here waits or makes a system call except to wake a
 * sleeping peer; ring.h has the bytes and the locks. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "base/spin.h"
#include "channel/ring.h"
#include "platform/linux/futex.h"

int mpshm__ring_mutex(pthread_mutex_t *mutex)
{
    pthread_mutexattr_t attributes;
    int err = pthread_mutexattr_init(&attributes);

    if (err == 0)
        err = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    if (err == 0)
        err = pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    /* A signal handler that sends on the connection that it interrupts gets EDEADLK. */
    if (err == 0)
        err = pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK);
    if (err == 0)
        err = pthread_mutex_init(mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return -err;
}

int mpshm__ring_init(struct mpshm__ring *ring)
{
    int rc = mpshm__ring_mutex(&ring->write_lock);

    if (rc == 0)
        rc = mpshm__ring_mutex(&ring->read_lock);
    return rc == 0 ? mpshm__ring_mutex(&ring->places) : rc;
}

/* The loads of the two functions below are sequentially consistent, because a sleeper sets
 * room_wanted or part_wanted before them: Arm may perform an acquiring load before that store. So
 * are the others of what the other side stores, which the model (tools/model.py) knows in no other
 * order. */

int64_t mpshm__ring_room(struct mpshm__ring *ring)
{
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_seq_cst);
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);

    return (int64_t)MPSHM__RING_BYTES - (int64_t)(tail - head) - MPSHM__RECORD;
}

int mpshm__ring_has_room(struct mpshm__view *view, int64_t nbytes)
{
    uint64_t tail = atomic_load_explicit(&view->ring->tail, memory_order_relaxed);

    for (int look = 0;; look++) {
        int64_t room = (int64_t)MPSHM__RING_BYTES - (int64_t)(tail - view->head_seen);
        if (room - MPSHM__RECORD >= nbytes || look)
            return room - MPSHM__RECORD >= nbytes;
        view->head_seen = atomic_load_explicit(&view->ring->head, memory_order_seq_cst);
    }
}

/* The bytes of unread records: those seen before, and if there are none, those of now. */
static uint64_t unread(struct mpshm__view *view, uint64_t head)
{
    uint64_t tail = atomic_load_explicit(&view->tail_seen, memory_order_seq_cst);

    if ((int64_t)(tail - head) <= 0) {
        tail = atomic_load_explicit(&view->ring->tail, memory_order_seq_cst);
        atomic_store_explicit(&view->tail_seen, tail, memory_order_release);
    }
    return tail - head;
}

int mpshm__ring_has_record(struct mpshm__view *view)
{
    return unread(view, atomic_load_explicit(&view->ring->head, memory_order_relaxed)) != 0;
}

int mpshm__ring_is_empty(struct mpshm__ring *ring)
{
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_seq_cst);

    return atomic_load_explicit(&ring->tail, memory_order_seq_cst) == head;
}

uint64_t mpshm__record_size(uint64_t nbytes)
{
    return MPSHM__RECORD + ((nbytes + 7) & ~(uint64_t)7);
}

/* Copy between the ring and private memory, in two pieces where the ring ends. */
static void copy_in(char *ring, uint64_t at, const void *from, uint64_t nbytes)
{
    uint64_t place = at % MPSHM__RING_BYTES, first = MPSHM__RING_BYTES - place;

    if (first > nbytes)
        first = nbytes;
    memcpy(ring + place, from, first);
    memcpy(ring, (const char *)from + first, nbytes - first);
}

static void copy_out(const char *ring, uint64_t at, void *to, uint64_t nbytes)
{
    uint64_t place = at % MPSHM__RING_BYTES, first = MPSHM__RING_BYTES - place;

    if (first > nbytes)
        first = nbytes;
    memcpy(to, ring + place, first);
    memcpy((char *)to + first, ring, nbytes - first);
}

static int begins_message(const struct mpshm__record *record)
{
    return record->kind == MPSHM__WHOLE || record->kind == MPSHM__FIRST;
}

uint64_t mpshm__ring_write(struct mpshm__view *view, struct mpshm__record record,
                           const void *payload)
{
    uint64_t tail = atomic_load_explicit(&view->ring->tail, memory_order_relaxed);
    uint64_t sent = atomic_load_explicit(&view->ring->sent, memory_order_relaxed);

    record.number = (uint16_t)sent;
    copy_in(view->data, tail, &record, sizeof(record));
    if (record.nbytes > 0)
        copy_in(view->data, tail + sizeof(record), payload, record.nbytes);
    atomic_signal_fence(memory_order_release); /* a killed writer leaves them in this order */
    view->ring->last = tail;
    atomic_signal_fence(memory_order_release);
    if (begins_message(&record))
        atomic_store_explicit(&view->ring->sent, sent + 1, memory_order_release);
    return tail + mpshm__record_size(record.nbytes);
}

/* The record at `last` is whole. Its number and whether tail has passed it tell what `sent` is,
 * whatever the writer had done of both. */
void mpshm__ring_recount(struct mpshm__view *view)
{
    struct mpshm__ring *ring = view->ring;
    uint64_t sent = atomic_load(&ring->sent);
    struct mpshm__record record;

    copy_out(view->data, ring->last, &record, sizeof(record));
    sent -= (uint64_t)(int16_t)((uint16_t)sent - record.number);
    if (atomic_load(&ring->tail) > ring->last && begins_message(&record))
        sent++;
    atomic_store(&ring->sent, sent);
}

/* The messages between the two places that ended before all their bytes were there. */
static uint64_t aborted(struct mpshm__view *view, uint64_t at, uint64_t end)
{
    struct mpshm__record record;
    uint64_t found = 0;

    for (int begun = 0; at < end; at += mpshm__record_size(record.nbytes)) {
        copy_out(view->data, at, &record, sizeof(record));
        found += begun && record.kind == MPSHM__ABORTED;
        begun = record.kind == MPSHM__FIRST || (begun && record.kind == MPSHM__MORE);
    }
    return found;
}

uint64_t mpshm__ring_messages(struct mpshm__view *view)
{
    struct mpshm__ring *ring = view->ring;

    for (;;) {
        uint64_t head = atomic_load_explicit(&ring->head, memory_order_seq_cst);
        struct mpshm__record record;
        if (atomic_load_explicit(&ring->tail, memory_order_seq_cst) == head)
            return 0;
        copy_out(view->data, head, &record, sizeof(record));
        uint64_t aborts_end = atomic_load_explicit(&ring->aborts_end, memory_order_acquire);
        uint64_t less = head < aborts_end ? aborted(view, head, aborts_end) : 0;
        atomic_thread_fence(memory_order_acquire);
        uint64_t sent = atomic_load_explicit(&ring->sent, memory_order_acquire);
        /* Nobody has written over it if it is the oldest record still. */
        if (atomic_load_explicit(&ring->head, memory_order_relaxed) == head)
            return (uint16_t)((uint16_t)sent - record.number - less);
    }
}

void mpshm__ring_publish(struct mpshm__ring *ring, uint64_t end)
{
    mpshm__note_cpu(&ring->writer_cpu);
    atomic_store_explicit(&ring->tail, end, memory_order_seq_cst);
    if (atomic_load_explicit(&ring->part_wanted, memory_order_seq_cst)) {
        atomic_store(&ring->part_wanted, 0);
        mpshm__futex_wake(&ring->part_wanted);
    }
}

int mpshm__ring_peek(struct mpshm__view *view, struct mpshm__record *record)
{
    uint64_t head = atomic_load_explicit(&view->ring->head, memory_order_relaxed);
    uint64_t used = unread(view, head);

    if (used == 0)
        return 0;
    if (used > MPSHM__RING_BYTES || used < sizeof(*record))
        return -EBADMSG;
    copy_out(view->data, head, record, sizeof(*record));
    if (record->kind < MPSHM__WHOLE || record->kind > MPSHM__ABORTED ||
        mpshm__record_size(record->nbytes) > used)
        return -EBADMSG;
    return 1;
}

void mpshm__ring_copy(struct mpshm__view *view, const struct mpshm__record *record, void *to)
{
    uint64_t head = atomic_load_explicit(&view->ring->head, memory_order_relaxed);

    copy_out(view->data, head + sizeof(*record), to, record->nbytes);
}

void mpshm__ring_advance(struct mpshm__view *view, const struct mpshm__record *record)
{
    struct mpshm__ring *ring = view->ring;
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

    mpshm__note_cpu(&ring->reader_cpu);
    atomic_store_explicit(&ring->head, head + mpshm__record_size(record->nbytes),
                          memory_order_seq_cst);
}

void mpshm__ring_wake_writers(struct mpshm__view *view, const struct mpshm__record *record)
{
    struct mpshm__ring *ring = view->ring;

    /* Half of the ring at once, so that a stream does not wake its writer for each record. */
    if (atomic_load_explicit(&ring->room_wanted, memory_order_seq_cst) &&
        mpshm__ring_room(ring) >= MPSHM__RING_BYTES / 2) {
        atomic_store(&ring->room_wanted, 0);
        mpshm__futex_wake(&ring->room_wanted);
    }
    if (atomic_load_explicit(&ring->place_wanted, memory_order_seq_cst) && begins_message(record)) {
        atomic_store(&ring->place_wanted, 0);
        mpshm__futex_wake_one(&ring->place_wanted); /* it wakes the next one: places.c */
    }
}

void mpshm__ring_drop(struct mpshm__view *view, const struct mpshm__record *record)
{
    mpshm__ring_advance(view, record);
    mpshm__ring_wake_writers(view, record);
}

int mpshm__ring_skip_rest(struct mpshm__view *view, struct mpshm__record *record)
{
    int rc;

    while ((rc = mpshm__ring_peek(view, record)) > 0 &&
           (record->kind == MPSHM__MORE || record->kind == MPSHM__ABORTED))
        mpshm__ring_drop(view, record);
    return rc;
}

int mpshm__ring_is_aborted(struct mpshm__view *view)
{
    uint64_t head = atomic_load_explicit(&view->ring->head, memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(&view->ring->tail, memory_order_seq_cst);
    struct mpshm__record record;
    uint64_t nbytes = 0, done = 0;

    for (uint64_t at = head; at < tail; at += mpshm__record_size(record.nbytes)) {
        copy_out(view->data, at, &record, sizeof(record));
        if (at == head)
            copy_out(view->data, at + sizeof(record), &nbytes, sizeof(nbytes));
        else if (record.kind == MPSHM__MORE)
            done += record.nbytes;
        else
            return done < nbytes;
    }
    return 0;
}
