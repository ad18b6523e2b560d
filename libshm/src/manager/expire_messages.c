/* Free the blocks whose messages have all expired: see reference/message_timeout.c.
 *
 * While no process of the session has used a timeout, message_ticks is 0 and the manager does not
 * look. The first message with one wakes it. It then looks at every block four times in the
 * shortest timeout, at least every five seconds and at most ten times a second.
 *
 * A manager that is stopped or absent frees nothing; the receivers refuse what has expired anyway.
 */
#include "base/clock.h"
#include "manager/manager.h"
#include "reference/reference.h"
#include "segment/segment.h"

enum { SOONEST_NS = MPSHM__TICK_NS };
static const uint64_t LATEST_NS = 5000000000u;

static uint64_t interval(const struct manager *m)
{
    uint64_t ns = (uint64_t)atomic_load(&m->session.control->message_ticks) * MPSHM__TICK_NS / 4;

    return ns < SOONEST_NS ? SOONEST_NS : ns < LATEST_NS ? ns : LATEST_NS;
}

void mpshm__messages_expire(struct manager *m)
{
    uint64_t now = mpshm__now_ns();

    if (mpshm__messages_timeout(m) != 0)
        return;
    m->messages_at = now;
    for (uint32_t i = 0; i < m->session.segment_top; i++)
        if (m->session.segments[i] != NULL)
            mpshm__free_expired(m->session.control, m->session.segments[i]);
}

int mpshm__messages_timeout(const struct manager *m)
{
    uint64_t now = mpshm__now_ns(), next = m->messages_at + interval(m);

    if (atomic_load(&m->session.control->message_ticks) == 0)
        return -1;
    return next <= now ? 0 : (int)((next - now) / 1000000) + 1;
}
