/* Whether the owner of a lock lives. */
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

int mpshm__owner_is_dead(struct mpshm__session *session, uint32_t owner)
{
    int fd, opened = -1, dead = 0;

    owner &= ~MPSHM__WAITERS;
    if (owner >> MPSHM__OWNER_SHIFT == 0 || owner == mpshm__me(session))
        return 0;
    if (has_changed(session, owner))
        return 1;
    /* A thread that waits here may have the interpreter's lock, so it must not wait for ours. */
    if (!mpshm__try_lock())
        return 0;
    fd = mpshm__fd_get(&session->control_fd);
    if (fd < 0) /* the program has closed it */
        fd = opened = mpshm__control_lock(mpshm__control_open_again(session));
    if (fd >= 0)
        dead = !mpshm__slot_lives(session->control, fd,
                                  (int)(owner & ((1u << MPSHM__OWNER_SHIFT) - 1)));
    if (opened >= 0)
        close(opened);
    mpshm__unlock();
    return dead;
}
