/* Messages that expire, so that one that is never read does not keep its block for ever.
 *
 * Note [Messages that expire]
 *   A message carries its deadline in the handle. From then on no process receives it (-ETIME).
 *   The block remembers the latest deadline of all its messages. When that has passed, no process
 *   holds the block, and no message is counted beyond the bits of the mask, the manager frees it.
 *
 *   The free is that of mpshm__try_free, which reads the state, checks, and replaces the state by
 *   compare and exchange. Only its check differs: expired messages do not count. Meanwhile
 *
 *   - a receiver takes a reference: it sets its holder bit and then adds to the version. Either the
 *     exchange fails, or the receiver finds a dead block and gives up (-ETIME).
 *   - a receiver without a slot copies the bytes: it adds to in_flight_overflow and then to the
 *     version. The same.
 *   - a process sends the block once more: it needs a reference of its own for that, and notes the
 *     deadline while it has it. So a manager that sees no holder sees the deadline of each message.
 *
 *   A block that was reused 2^24 times has its old generation again. So the receiver of an expired
 *   message looks at the deadline itself.
 *
 *   A process that is killed
 *   - after it noted a deadline and before it set the message's bit: no message. A later deadline
 *     than necessary delays the free of other messages of the block.
 *   - after it set the bit: the message expires like any other.
 *   - the manager, anywhere: its successor reads the control file, and goes on.
 *   Deadlines only grow in one life of a block. MPSHM__NEVER, of a message without timeout, is the
 *   largest: one such message keeps the block as if there were no timeouts. A block that more than
 *   64 messages carry at one time is not freed, because the others are only counted. Neither is a
 *   block while a process holds it: to free its messages would give no memory back. */
#include "allocator/cache.h"
#include "base/clock.h"
#include "reference/message_timeout.h"
#include "segment/segment.h"

static _Atomic uint32_t timeout_ticks; /* of this process; 0: none */

void mpshm_set_message_timeout(uint64_t timeout_ns)
{
    uint64_t ticks = timeout_ns / MPSHM__TICK_NS + (timeout_ns % MPSHM__TICK_NS != 0);

    /* A timeout of 6 years is none. */
    atomic_store(&timeout_ticks, ticks < UINT32_MAX / 2 ? (uint32_t)ticks : 0);
}

uint32_t mpshm__message_deadline(void)
{
    uint32_t ticks = atomic_load_explicit(&timeout_ticks, memory_order_relaxed);

    /* One more, because the present tick has begun already. */
    return ticks == 0 ? MPSHM__NEVER : mpshm__tick() + ticks + 1;
}

/* Let the manager know how often it has to look, and wake it if it sleeps. */
static void announce(struct mpshm__control *control)
{
    uint32_t mine = atomic_load_explicit(&timeout_ticks, memory_order_relaxed);
    uint32_t shortest = atomic_load(&control->message_ticks);

    while (mine != 0 && (shortest == 0 || mine < shortest))
        if (atomic_compare_exchange_weak(&control->message_ticks, &shortest, mine)) {
            mpshm__cache_wake(control);
            return;
        }
}

void mpshm__note_deadline(struct mpshm__control *control, const struct mpshm__segment *segment,
                          uint32_t i, uint32_t generation, uint32_t deadline)
{
    _Atomic uint64_t *latest = &segment->sent[i].deadline;
    uint64_t seen = atomic_load(latest), mine = (uint64_t)generation << 32 | deadline;

    /* One of another life of the block has another generation, and is replaced. */
    while ((seen >> 32 != generation || seen < mine) &&
           !atomic_compare_exchange_weak(latest, &seen, mine))
        ;
    if (deadline != MPSHM__NEVER)
        announce(control);
}

int mpshm__has_expired(const struct mpshm__handle *handle)
{
    return handle->deadline != MPSHM__NEVER && mpshm__tick() >= handle->deadline;
}

int mpshm__all_expired(const struct mpshm__segment *segment, uint32_t i, uint32_t generation)
{
    uint64_t latest = atomic_load(&segment->sent[i].deadline);

    return latest >> 32 == generation && (uint32_t)latest != MPSHM__NEVER &&
           mpshm__tick() >= (uint32_t)latest;
}
