/* One wait for many channels, and for descriptors beside them. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "base/clock.h"
#include "channel/channel.h"

enum { FEW = 32 };

/* Mark the channels that have a record: how many. */
static int mark_ready(mpshm_awaited_channel *channels, int n)
{
    int found = 0;

    for (int i = 0; i < n; i++) {
        channels[i].ready = mpshm__ring_has_record(&channels[i].end->in) ? MPSHM_HAS_MESSAGE : 0;
        found += channels[i].ready != 0;
    }
    return found;
}

static int any_has_record(void *of, uint64_t n)
{
    mpshm_awaited_channel *channels = of;

    for (uint64_t i = 0; i < n; i++)
        if (mpshm__ring_has_record(&channels[i].end->in))
            return 1;
    return 0;
}

/* Make the descriptors of the empty channels readable by the next message: 0, or -EAGAIN when
 * another process has a lock that this needs. */
static int arm(mpshm_awaited_channel *channels, int n, const struct pollfd *polled)
{
    const mpshm_waiter none = {0};
    int rc = 0;

    for (int i = 0; i < n; i++) {
        mpshm_channel *end = channels[i].end;
        if (mpshm__channel_lock(end, MPSHM__TO_READ, channels[i].fd, 1, &none) < 0) {
            rc = -EAGAIN;
            continue;
        }
        if (mpshm__ring_is_empty(end->in.ring))
            mpshm__wakeup_arm(end, channels[i].fd, polled[i].revents & POLLIN);
        mpshm__channel_unlock(end, MPSHM__TO_READ);
    }
    return rc;
}

/* After a sleep: what is ready. */
static int look(mpshm_awaited_channel *channels, int n, const struct pollfd *polled, int m,
                unsigned char *readable)
{
    int found = mark_ready(channels, n);

    for (int i = 0; i < n; i++)
        if (channels[i].ready == 0 && (polled[i].revents & ~POLLIN) != 0) {
            channels[i].ready = MPSHM_HUNG_UP;
            found++;
        }
    for (int i = 0; i < m; i++) {
        readable[i] = polled[n + i].revents != 0;
        found += readable[i];
    }
    return found;
}

/* The processor of a writer that ran on this one, else of the first. */
static const _Atomic uint32_t *cpu_of_writers(const mpshm_awaited_channel *channels, int n)
{
    uint32_t here = mpshm__this_cpu();

    for (int i = 0; i < n; i++) {
        const _Atomic uint32_t *cpu = &channels[i].end->in.ring->writer_cpu;
        if (atomic_load_explicit(cpu, memory_order_relaxed) == here)
            return cpu;
    }
    return &channels[0].end->in.ring->writer_cpu;
}

/* Look for a while, that many times as long as a wait would: 1, 0, or what end_wait returned. */
static int spin(mpshm_awaited_channel *channels, int n, unsigned times, uint64_t deadline,
                const mpshm_waiter *waiter)
{
    struct mpshm__awaited awaited = {.has = any_has_record,
                                     .of = channels,
                                     .value = (uint64_t)n,
                                     .cpu = cpu_of_writers(channels, n)};

    return mpshm__spin_for(&channels[0].end->for_record, &awaited, times, deadline, waiter);
}

/* Spin, then sleep: how many are ready; 0 at the deadline or after a signal; or what end_wait
 * returned. */
static int spin_then_poll(struct pollfd *polled, mpshm_awaited_channel *channels, int n,
                          const int *fds, int m, unsigned char *readable, uint64_t deadline,
                          const mpshm_waiter *waiter)
{
    int rc = n > 0 ? spin(channels, n, 1, deadline, waiter) : 0;

    for (int i = 0; i < n; i++)
        polled[i] = (struct pollfd){.fd = channels[i].fd, .events = POLLIN | POLLRDHUP};
    for (int i = 0; i < m; i++)
        polled[n + i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    for (int idle = 0; rc >= 0; idle++) {
        uint64_t ns = mpshm__remaining(deadline, UINT64_MAX);
        if (arm(channels, n, polled) < 0 && ns > MPSHM__FIRST_LOOK_NS)
            ns = MPSHM__FIRST_LOOK_NS;
        int found = mark_ready(channels, n);
        if (found > 0)
            return found;
        /* A byte of the program, or of a writer that is stopped, must not make this a busy loop. */
        if (idle >= 16 && ns > 0)
            mpshm__sleep_ms(1);
        rc = mpshm__poll(polled, n + m, ns, waiter);
        if (rc >= 0 && ((found = look(channels, n, polled, m, readable)) > 0 ||
                        mpshm__remaining(deadline, 1) == 0))
            return found;
    }
    return rc == -EINTR ? 0 : rc;
}

int mpshm_channel_wait_any(mpshm_awaited_channel *channels, int n, const int *fds, int m,
                           unsigned char *readable, int64_t timeout_ns, const mpshm_waiter *waiter)
{
    uint64_t deadline = mpshm__deadline((uint64_t)timeout_ns);
    struct pollfd few[FEW], *polled = few;
    int found = mark_ready(channels, n);

    for (int i = 0; i < m; i++)
        readable[i] = 0;
    if (found > 0)
        return found;
    if (n + m > FEW && (polled = calloc((size_t)(n + m), sizeof(*polled))) == NULL)
        return -ENOMEM;
    found = spin_then_poll(polled, channels, n, fds, m, readable, deadline, waiter);
    if (polled != few)
        free(polled);
    return found;
}

int mpshm_channel_spin(mpshm_channel *end, const mpshm_waiter *waiter)
{
    enum { TIMES = 2 }; /* the answer of a process that has to be woken first comes in so long */
    mpshm_awaited_channel one = {.end = end};
    int rc = any_has_record(&one, 1) ? 0 : spin(&one, 1, TIMES, MPSHM__FOREVER, waiter);

    return rc < 0 ? rc : any_has_record(&one, 1);
}

int mpshm_channel_next(mpshm_channel *end, int fd, const mpshm_waiter *waiter)
{
    /* A writer may have been killed or stopped just before it published. */
    if (!mpshm__ring_has_record(&end->in) && mpshm__wakeup_is_begun(end->in.ring)) {
        mpshm_awaited_channel one = {.end = end, .fd = fd};
        struct pollfd none = {0};
        arm(&one, 1, &none);
    }
    if (!mpshm__ring_has_record(&end->in))
        return -EAGAIN;
    return mpshm_channel_take(end, fd, waiter);
}
