/* Slots: the number of a process in its session, and whether it lives. See control_file.h, Note
 * [Liveness]. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/failed_call.h"
#include "layout/segment_file.h"
#include "platform/linux/process.h"
#include "platform/platform.h"
#include "segment/reserve.h"
#include "session/process_slot.h"

struct mpshm__own_handle_log mpshm__own_handle_log;

void mpshm__handle_log_use(struct mpshm__logged *of_slot)
{
    for (int w = 0; w < MPSHM__LOGGED / 64; w++)
        atomic_store(&mpshm__own_handle_log.used[w], 0);
    atomic_store(&mpshm__own_handle_log.of_slot, of_slot);
}

static struct flock byte_at(int at, short type)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
}

static int lock(int control_fd, int at, short type)
{
    struct flock byte = byte_at(at, type);

    if (MPSHM__RETRY(fcntl(control_fd, F_OFD_SETLK, &byte)) == 0)
        return 0;
    if (errno == EINVAL)
        return MPSHM__NO_LOCKS;
    return errno == EACCES ? -EAGAIN : mpshm__failed("fcntl");
}

int mpshm__lock_byte(int control_fd, int at)
{
    return lock(control_fd, at, F_WRLCK);
}

int mpshm__lock_dead_slot(int control_fd, int slot)
{
    return lock(control_fd, slot, F_RDLCK);
}

void mpshm__unlock_byte(int control_fd, int at)
{
    struct flock byte = byte_at(at, F_UNLCK);

    MPSHM__RETRY(fcntl(control_fd, F_OFD_SETLK, &byte));
}

/* The lock that another description has: F_WRLCK, F_RDLCK or F_UNLCK, or -errno. */
static int type_of_lock(int control_fd, int at)
{
    struct flock byte = byte_at(at, F_WRLCK);

    /* Without such locks (EINVAL), there is none. */
    if (MPSHM__RETRY(fcntl(control_fd, F_OFD_GETLK, &byte)) < 0)
        return errno == EINVAL ? F_UNLCK : mpshm__failed("fcntl");
    return byte.l_type;
}

int mpshm__byte_is_locked(int control_fd, int at)
{
    int type = type_of_lock(control_fd, at);

    return type < 0 ? type : type != F_UNLCK;
}

/* A process killed after the lock leaves the slot free. Killed after the exchange it leaves the
 * slot taken and not locked, and the reaper clears it when the connection closes (reaper.c). */
static int take_slot(struct mpshm__control *control, int control_fd, int *busy)
{
    *busy = 0;
    for (int i = 0; i < MPSHM__SLOTS; i++) {
        struct mpshm__slot *slot = &control->slots[i];
        uint32_t is_free = MPSHM__SLOT_FREE;
        int locked;

        if (atomic_load(&slot->state) != MPSHM__SLOT_FREE)
            continue;
        locked = mpshm__lock_byte(control_fd, i);
        if (locked == -EAGAIN) { /* another process is taking it, or the manager examines it */
            *busy = 1;
            continue;
        }
        if (locked < 0)
            return locked;
        int err =
            mpshm__reserve(control_fd, (uint64_t)((char *)control->handle_log[i] - (char *)control),
                           sizeof(control->handle_log[i]));
        /* It counts before the slot is taken, so nobody takes its last process for this one. */
        if (err == 0 && atomic_load(&slot->state) == MPSHM__SLOT_FREE)
            atomic_store(&slot->incarnation,
                         atomic_load(&slot->incarnation) % (MPSHM__INCARNATIONS - 1) + 1);
        if (err < 0 || !atomic_compare_exchange_strong(&slot->state, &is_free, MPSHM__SLOT_TAKEN)) {
            if (locked == 0)
                mpshm__unlock_byte(control_fd, i);
            if (err < 0)
                return err;
            continue;
        }
        atomic_store(&slot->by_pid, locked == MPSHM__NO_LOCKS);
        atomic_store(&slot->making[0], 0);
        for (int k = 0; k < MPSHM__LOGGED; k++)
            atomic_store(&control->handle_log[i][k].state, MPSHM__HANDLE_FREE);
        mpshm__sign_slot(slot, getpid());
        /* This comes before any reference of the slot: from now on, processes that look for
         * references include the far slots. */
        if (i >= MPSHM__NEAR)
            atomic_store(&control->far, 1);
        return i;
    }
    return -EUSERS;
}

/* A new manager locks all free slots while it clears the references of the dead. That takes a
 * moment, and the limit covers a manager that is stopped in it. */
int mpshm__take_slot(struct mpshm__control *control, int control_fd)
{
    enum { WITHIN_MS = 500 };
    uint64_t give_up = mpshm__now_ns() + WITHIN_MS * 1000000ull;
    int busy, slot;

    while ((slot = take_slot(control, control_fd, &busy)) == -EUSERS && busy &&
           mpshm__now_ns() < give_up)
        mpshm__sleep_ms(1);
    return slot;
}

void mpshm__sign_slot(struct mpshm__slot *slot, int pid)
{
    atomic_store(&slot->start_time, mpshm__start_time(pid));
    atomic_store(&slot->pid, pid);
}

int mpshm__slot_lives(const struct mpshm__control *control, int control_fd, int i)
{
    const struct mpshm__slot *slot = &control->slots[i];
    int type = type_of_lock(control_fd, i);
    uint64_t started;

    if (type != F_UNLCK)
        return type != F_RDLCK; /* a lock to read is the manager's: it clears the references */
    if (!atomic_load(&slot->by_pid))
        return 0;
    started = mpshm__start_time(atomic_load(&slot->pid));
    return started == MPSHM__UNKNOWN || atomic_load(&slot->start_time) == MPSHM__UNKNOWN ||
           (started != 0 && started == atomic_load(&slot->start_time));
}
