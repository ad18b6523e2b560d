/* Claims: who has a numbered message, its receiver or its sender, who took it back.
 *
 * The messages that can be taken back are numbered by their sender from 0 on, one after the other.
 * One word of the ring, `claimed`, is the number of those that are taken:
 *
 *       0 ......... claimed ......... sent
 *       | taken     | in the ring, or received and not begun
 *                   ^ the receiver moves it by 1 and has that message,
 *                     the sender moves it by any number and has all of those again
 *
 * Each moves it by compare-and-exchange, and only upwards. A message belongs to the process that
 * has moved it past the message's number, and never belongs to another.
 *
 * Note [A death at each instruction]
 *   Before the exchange nothing has happened, and after it the message has one owner.
 *
 *   the receiver is killed before it        the sender takes the message back
 *   the receiver is killed after it         the message was begun, and is the only one: the
 * receiver answers one before it claims the next the receiver is stopped, with or        the sender
 * takes messages back all the same; the receiver without the ring's locks                drops them
 * when it goes on the sender is killed or stopped         its messages are the receiver's */
#include "channel/channel.h"

int mpshm_channel_claim(mpshm_channel *end, uint64_t number)
{
    return atomic_compare_exchange_strong(&end->in.ring->claimed, &number, number + 1);
}

uint64_t mpshm_channel_take_back(mpshm_channel *end, uint64_t until)
{
    _Atomic uint64_t *claimed = &end->out.ring->claimed;
    uint64_t first = atomic_load(claimed);

    while (first < until && !atomic_compare_exchange_weak(claimed, &first, until))
        ;
    return first < until ? first : until;
}

uint64_t mpshm_channel_claimed(mpshm_channel *end)
{
    return atomic_load(&end->out.ring->claimed);
}
