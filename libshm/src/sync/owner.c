/* Whether the owner of a lock lives. */
#include <errno.h>
#include <unistd.h>

#include "base/process_lock.h"
#include "session/control_lock.h"
#include "session/process_slot.h"
#include "sync/owner.h"

static int has_changed(const struct mpshm__session *session, uint32_t owner)
{
    const struct mpshm__slot *slot =
        &session->control->slots[owner & ((1u << MPSHM__OWNER_SHIFT) - 1)];

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
        dead = !mpshm__slot_lives(session->control, fd,
                                  (int)(owner & ((1u << MPSHM__OWNER_SHIFT) - 1))) ||
               has_changed(session, owner);
    if (opened >= 0)
        close(opened);
    return dead;
}

int mpshm__owner_is_dead(struct mpshm__session *session, uint32_t owner)
{
    int dead;

    owner &= ~MPSHM__WAITERS;
    if (owner >> MPSHM__OWNER_SHIFT == 0 || owner == mpshm__me(session))
        return 0;
    if (has_changed(session, owner))
        return 1;
    /* A thread that waits here may have the interpreter's lock, so it must not wait for ours. */
    if (!mpshm__try_lock())
        return 0;
    dead = is_dead(session, owner);
    mpshm__unlock();
    return dead;
}

uint32_t mpshm_own_word(const mpshm_block *block)
{
    return mpshm__me(mpshm__session_of(block));
}

int mpshm_word_lives(const mpshm_block *block, uint32_t word, int flags)
{
    struct mpshm__session *session = mpshm__session_of(block);
    int dead;

    if (word >> MPSHM__OWNER_SHIFT == 0 || word == mpshm__me(session))
        return 1;
    if (has_changed(session, word))
        return 0;
    if (!mpshm__lock_by_flags(flags))
        return -EAGAIN;
    dead = is_dead(session, word);
    mpshm__unlock();
    return !dead;
}
