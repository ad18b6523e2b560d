/* Whether the owner of a lock lives. */
#include <errno.h>
#include <unistd.h>

#include "base/process_lock.h"
#include "session/control_lock.h"
#include "session/process_slot.h"
#include "sync/owner.h"

static uint32_t slot_of(uint32_t owner)
{
    return owner & ((1u << MPSHM__OWNER_SHIFT) - 1);
}

static int has_changed(const struct mpshm__session *session, uint32_t owner)
{
    const struct mpshm__slot *slot = &session->control->slots[slot_of(owner)];

    return atomic_load(&slot->state) == MPSHM__SLOT_FREE ||
           atomic_load(&slot->incarnation) != owner >> MPSHM__OWNER_SHIFT;
}

/* Ask for the byte of its slot. Call it with the process lock. */
static int is_dead(struct mpshm__session *session, uint32_t owner)
{
    int opened = -1, dead = 0, fd = mpshm__fd_get(&session->control_fd);

    if (fd < 0) /* the program has closed it */
        fd = opened = mpshm__control_lock(mpshm__control_open_again(session));
    if (fd >= 0) /* and another process may have got its slot, and the lock, by now */
        dead = !mpshm__slot_lives(session->control, fd, (int)slot_of(owner)) ||
               has_changed(session, owner);
    if (opened >= 0)
        close(opened);
    return dead;
}

/* Whether the owner has ended: 1, 0, or -EAGAIN where the flags forbid to wait for the process
 * lock. */
static int has_ended(struct mpshm__session *session, uint32_t owner, int flags)
{
    if (owner >> MPSHM__OWNER_SHIFT == 0 || owner == mpshm__me(session))
        return 0;
    if (has_changed(session, owner))
        return 1;
    if (!mpshm__lock_by_flags(flags))
        return -EAGAIN;
    int dead = is_dead(session, owner);
    mpshm__unlock();
    return dead;
}

int mpshm__owner_is_dead(struct mpshm__session *session, uint32_t owner)
{
    /* A thread that waits here may have the interpreter's lock, so it must not wait for ours. */
    return has_ended(session, owner & ~MPSHM__WAITERS, MPSHM_NOWAIT) > 0;
}

uint32_t mpshm_own_word(const mpshm_block *block)
{
    return mpshm__me(mpshm__session_of(block));
}

int mpshm_word_lives(const mpshm_block *block, uint32_t word, int flags)
{
    int ended = has_ended(mpshm__session_of(block), word, flags);

    return ended < 0 ? ended : !ended;
}
