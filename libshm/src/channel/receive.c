/* Receiving and polling. */
#include <errno.h>

#include "base/clock.h"
#include "channel/channel.h"

/* Move on past the last record of a message of `nbytes` bytes, which is the reader's then: what it
 * carries is noted in `log`, unless that is NULL, see handle_log.c, Note [A reader that is killed].
 */
static void take_last(mpshm_channel *end, const struct mpshm__record *record, const void *message,
                      uint64_t nbytes, const mpshm_handle_log *log, const mpshm_waiter *waiter)
{
    if (log != NULL)
        *waiter->taken = log->begin(message, nbytes);
    mpshm__ring_advance(&end->in, record);
    if (log != NULL)
        log->commit(*waiter->taken);
    mpshm__ring_wake_writers(&end->in, record);
}

/* Under read_lock: 1 when all parts arrived, 0 when the writer gave up or died. A reader that is
 * killed between the parts leaves the blocks in flight: what it has of the message may end in the
 * middle of a handle. */
static int take_parts(mpshm_channel *end, int fd, char *to, uint64_t nbytes,
                      const mpshm_handle_log *log, const mpshm_waiter *waiter)
{
    struct mpshm__record record;
    uint64_t done = 0;

    while (done < nbytes) {
        int rc = mpshm__ring_peek(&end->in, &record);
        if (rc == 0)
            rc = mpshm__wait_for_part(end, fd, waiter);
        else if (rc > 0 && (record.kind != MPSHM__MORE || record.nbytes > nbytes - done))
            rc = 0; /* skip_rest() removes it, if it is no message */
        else if (rc > 0) {
            mpshm__ring_copy(&end->in, &record, to + done);
            done += record.nbytes;
            if (done < nbytes)
                mpshm__ring_drop(&end->in, &record);
            else
                take_last(end, &record, to, nbytes, log, waiter);
        }
        if (rc <= 0)
            return rc;
    }
    return 1;
}

enum { ANY_SIZE, SMALL_ONLY };

/* Under read_lock: 1 when a message was taken, 0 when there is none; -EINPROGRESS, and the message
 * stays, when its blocks can only be noted after a wait. */
static int take(mpshm_channel *end, int fd, int sizes, const mpshm_handle_log *log,
                const mpshm_waiter *waiter)
{
    struct mpshm__record record;
    uint64_t nbytes;

    for (;;) {
        int rc = mpshm__ring_skip_rest(&end->in, &record);
        if (rc <= 0)
            return rc;
        nbytes = record.nbytes;
        if (record.kind == MPSHM__FIRST) {
            if (sizes == SMALL_ONLY)
                return -EMSGSIZE;
            if (record.nbytes != sizeof(nbytes))
                return -EBADMSG;
            mpshm__ring_copy(&end->in, &record, &nbytes);
        }
        const mpshm_handle_log *notes = record.carries ? log : NULL;
        if (notes != NULL && notes->prepare(0) < 0)
            return -EINPROGRESS;
        void *to = waiter->allocate(waiter->self, nbytes);
        if (to == NULL)
            return -ENOMEM; /* the message stays */
        if (record.kind == MPSHM__WHOLE) {
            mpshm__ring_copy(&end->in, &record, to);
            take_last(end, &record, to, nbytes, notes, waiter);
        } else
            mpshm__ring_drop(&end->in, &record);
        if (waiter->position != NULL)
            *waiter->position = atomic_load_explicit(&end->in.ring->head, memory_order_relaxed);
        rc = record.kind == MPSHM__WHOLE ? 1 : take_parts(end, fd, to, nbytes, notes, waiter);
        if (rc != 0)
            return rc;
    }
}

static int receive(mpshm_channel *end, int fd, uint64_t deadline, int sizes,
                   const mpshm_waiter *waiter)
{
    const mpshm_handle_log *log = waiter->log;

    if (end->in.ring == NULL)
        return -EBADF;
    for (;;) {
        int rc = mpshm__wait_for_record(end, fd, deadline, waiter);
        if (rc <= 0)
            return rc;
        rc = mpshm__channel_lock(end, MPSHM__TO_READ, fd, deadline, waiter);
        if (rc < 0)
            return rc;
        rc = take(end, fd, sizes, log, waiter);
        mpshm__channel_unlock(end, MPSHM__TO_READ);
        if (rc == -EINPROGRESS) {
            waiter->begin_wait(waiter->self);
            if (log->prepare(1) < 0)
                log = NULL; /* it receives without notes */
            rc = waiter->end_wait(waiter->self);
        }
        if (rc == 1 && atomic_load(&end->in.ring->selectable))
            mpshm__wakeup_settle(end, fd);
        if (rc != 0)
            return rc;
    }
}

int mpshm_channel_receive(mpshm_channel *end, int fd, int64_t timeout_ns,
                          const mpshm_waiter *waiter)
{
    return receive(end, fd, mpshm__deadline((uint64_t)timeout_ns), ANY_SIZE, waiter);
}

int mpshm_channel_take(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    return receive(end, fd, mpshm__deadline(0), SMALL_ONLY, waiter);
}

/* 1 when the oldest record begins a message, 0 when the ring has none. */
static int has_message(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    struct mpshm__record record;

    if (mpshm__ring_is_empty(end->in.ring) && !mpshm__wakeup_is_begun(end->in.ring))
        return 0;
    /* A reader that keeps the lock for a millisecond is taking a large message. */
    int rc = mpshm__channel_lock(end, MPSHM__TO_READ, fd, mpshm__deadline(1000000), waiter);
    if (rc < 0)
        return rc == -EAGAIN ? 0 : rc;
    if (mpshm__ring_is_empty(end->in.ring))
        mpshm__wakeup_arm(end, fd, 0);
    while ((rc = mpshm__ring_skip_rest(&end->in, &record)) > 0 && record.kind == MPSHM__FIRST) {
        mpshm__writer_is_at_work(end, fd); /* a dead one is found out here */
        if (!mpshm__ring_is_aborted(&end->in))
            break;
        mpshm__ring_drop(&end->in, &record);
    }
    mpshm__channel_unlock(end, MPSHM__TO_READ);
    return rc;
}

int mpshm_channel_poll(mpshm_channel *end, int fd, int64_t timeout_ns, const mpshm_waiter *waiter)
{
    uint64_t deadline = mpshm__deadline((uint64_t)timeout_ns);

    if (end->in.ring == NULL)
        return -EBADF;
    for (;;) {
        int rc = has_message(end, fd, waiter);
        if (rc != 0)
            return rc;
        if (atomic_load(&end->in.ring->selectable))
            mpshm__wakeup_settle(end, fd);
        rc = mpshm__wait_for_record(end, fd, deadline, waiter);
        if (rc == 0)
            return 1; /* the end of the file can be read */
        if (rc < 0)
            return rc == -EAGAIN ? 0 : rc;
        if (mpshm__remaining(deadline, 1) == 0)
            return has_message(end, fd, waiter);
    }
}

void mpshm_channel_selectable(mpshm_channel *end, int fd)
{
    if (end->in.ring != NULL && !atomic_exchange(&end->in.ring->selectable, 1))
        mpshm__wakeup_settle(end, fd);
}
