/* Sending: a small message is one record, a large one passes through the ring in parts. */
#include <errno.h>

#include "base/clock.h"
#include "channel/channel.h"

/* The kernel is asked once a millisecond, and whenever a process has closed an end: before the lock
 * is taken, and under it, so that a reader that closes finds each message or its writer hears of it
 * (mpshm_channel_stop_reading). A message to a reader that was killed within the last millisecond
 * is lost like one to a reader that was killed just after it. */
enum { LOOK_AGAIN_NS = 1000000 };

static int check_reader(mpshm_channel *end, int fd)
{
    uint32_t closes = atomic_load_explicit(&end->mapping->header->closes, memory_order_relaxed);
    uint64_t now = mpshm__now_ns();

    if (closes == end->closes && now - end->looked < LOOK_AGAIN_NS)
        return 0;
    int rc = mpshm__channel_has_reader(fd);
    if (rc == 0) {
        end->closes = closes;
        end->looked = now;
    }
    return rc;
}

/* A message, and how it takes its place in a queue. */
struct outgoing {
    const char *data;
    uint64_t nbytes;
    enum mpshm__place place;
};

/* Under write_lock: append a record, with room for it. */
static int put(mpshm_channel *end, int fd, struct mpshm__record record, const void *payload,
               const struct outgoing *message, const mpshm_waiter *waiter)
{
    int ends = (const char *)payload + record.nbytes == message->data + message->nbytes;
    int begins = record.kind != MPSHM__MORE;
    uint32_t closes = atomic_load_explicit(&end->mapping->header->closes, memory_order_relaxed);
    int rc = closes == end->closes ? 0 : check_reader(end, fd);

    if (rc == 0 && begins)
        rc = mpshm__begin_place(end, fd, message->place, waiter);
    if (rc < 0)
        return rc;
    uint64_t to = mpshm__ring_write(&end->out, record, payload);
    if (ends && !begins)
        end->out.ring->large_end = to;
    /* From the wake-up on a reader may publish it: see wakeup.c. */
    if (ends && waiter->carries && waiter->leave != NULL)
        waiter->leave(waiter->self);
    rc = mpshm__wakeup_write(end, fd, to);
    if (rc == 0)
        mpshm__ring_publish(end->out.ring, to);
    else
        mpshm__ring_recount(&end->out);
    if (begins)
        mpshm__end_place(end, message->place, rc == 0);
    if (rc == 0 && begins && waiter->position != NULL)
        *waiter->position = to;
    return rc;
}

static int send_small(mpshm_channel *end, int fd, const struct outgoing *message, uint64_t deadline,
                      const mpshm_waiter *waiter)
{
    int64_t need = (int64_t)mpshm__record_size(message->nbytes);
    struct mpshm__record record = {
        .nbytes = (uint32_t)message->nbytes, .kind = MPSHM__WHOLE, .carries = waiter->carries != 0};

    for (;;) {
        int rc = mpshm__channel_lock(end, MPSHM__TO_WRITE, fd, deadline, waiter);
        if (rc < 0)
            return rc;
        int has_room = mpshm__ring_has_room(&end->out, need);
        if (has_room)
            rc = put(end, fd, record, message->data, message, waiter);
        mpshm__channel_unlock(end, MPSHM__TO_WRITE);
        if (has_room)
            return rc;
        rc = mpshm__wait_for_room(end, fd, (uint64_t)need, deadline, waiter);
        if (rc < 0)
            return rc;
    }
}

static int send_parts(mpshm_channel *end, int fd, const struct outgoing *message,
                      const mpshm_waiter *waiter)
{
    uint64_t nbytes = message->nbytes, done = 0;
    struct mpshm__record record = {
        .nbytes = sizeof(nbytes), .kind = MPSHM__FIRST, .carries = waiter->carries != 0};
    int rc =
        mpshm__wait_for_room(end, fd, mpshm__record_size(sizeof(nbytes)), MPSHM__FOREVER, waiter);

    if (rc < 0)
        return rc;
    end->out.ring->sent_before_large = atomic_load(&end->out.ring->sent);
    end->out.ring->aborts_before_large = atomic_load(&end->out.ring->aborts);
    end->out.ring->large_end = 0;
    atomic_signal_fence(memory_order_release);
    end->out.ring->large = 1;
    rc = put(end, fd, record, &nbytes, message, waiter);
    while (rc == 0 && done < nbytes) {
        record = (struct mpshm__record){.nbytes = MPSHM__LARGE, .kind = MPSHM__MORE};
        if (nbytes - done < MPSHM__LARGE)
            record.nbytes = (uint32_t)(nbytes - done);
        rc = mpshm__wait_for_room(end, fd, mpshm__record_size(record.nbytes), MPSHM__FOREVER,
                                  waiter);
        if (rc == 0)
            rc = put(end, fd, record, message->data + done, message, waiter);
        done += record.nbytes;
    }
    if (rc == 0)
        end->out.ring->large = 0;
    else
        mpshm__abort_message(&end->out);
    return rc;
}

static int send_in(mpshm_channel *end, int fd, const void *data, uint64_t nbytes,
                   int64_t timeout_ns, enum mpshm__place place, const mpshm_waiter *waiter)
{
    if (end->out.ring == NULL)
        return -EBADF;
    int rc = check_reader(end, fd);
    if (rc < 0)
        return rc;
    mpshm_waiter silent = mpshm__without_handlers(waiter);
    struct outgoing message = {data, nbytes, place};
    if (nbytes <= MPSHM__LARGE)
        return send_small(end, fd, &message, mpshm__deadline((uint64_t)timeout_ns),
                          timeout_ns == 0 ? &silent : waiter);
    if (timeout_ns >= 0)
        return -EAGAIN;
    rc = mpshm__channel_lock(end, MPSHM__TO_WRITE, fd, MPSHM__FOREVER, waiter);
    if (rc == 0) {
        rc = send_parts(end, fd, &message, waiter);
        mpshm__channel_unlock(end, MPSHM__TO_WRITE);
    }
    return rc;
}

int mpshm_channel_send(mpshm_channel *end, int fd, const void *data, uint64_t nbytes,
                       int64_t timeout_ns, const mpshm_waiter *waiter)
{
    return send_in(end, fd, data, nbytes, timeout_ns, MPSHM__ANY, waiter);
}

int mpshm_channel_send_reserved(mpshm_channel *end, int fd, const void *data, uint64_t nbytes,
                                const mpshm_waiter *waiter)
{
    return send_in(end, fd, data, nbytes, -1, MPSHM__RESERVED, waiter);
}

int mpshm_channel_put(mpshm_channel *end, int fd, const void *data, uint64_t nbytes,
                      int64_t timeout_ns, const mpshm_waiter *waiter)
{
    uint64_t deadline = mpshm__deadline((uint64_t)timeout_ns);

    for (;;) {
        int rc = send_in(end, fd, data, nbytes, 0, MPSHM__BOUNDED, waiter);
        if (rc != -ENOSPC)
            return rc;
        rc = mpshm__wait_for_place(end, fd, deadline, waiter);
        if (rc < 0)
            return rc;
    }
}
