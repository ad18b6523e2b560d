/* The slot of a process: its number in the session, and a lock that exists while it lives. */
#ifndef MPSHM_SLOT_H
#define MPSHM_SLOT_H

#include "layout/control_file.h"

/* Lock one byte of the control file through this description: 0, -EAGAIN when another description
 * has the lock, or MPSHM__NO_LOCKS when the kernel has no such locks (valgrind). */
enum { MPSHM__NO_LOCKS = 1 };
int mpshm__lock_byte(int control_fd, int at);
/* The same for the manager, which clears the references of a dead process: a lock to read, so that
 * nobody takes the manager for that process. */
int mpshm__lock_dead_slot(int control_fd, int slot);
void mpshm__unlock_byte(int control_fd, int at);
/* 1 when another description has the lock, -errno when the system does not tell: assume a lock. */
int mpshm__byte_is_locked(int control_fd, int at);
/* Take a free slot and lock its byte: its number, or -EUSERS. */
int mpshm__take_slot(struct mpshm__control *control, int control_fd);
/* Write the identity of process `pid` into its slot. */
void mpshm__sign_slot(struct mpshm__slot *slot, int pid);
/* 1 when the process of that slot lives. Only other processes may ask. */
int mpshm__slot_lives(const struct mpshm__control *control, int control_fd, int slot);

/* The notes of this process in its slot of the own session, and which of them are in use: see
 * reference/handle_log.c. */
struct mpshm__own_handle_log {
    _Atomic(struct mpshm__logged *) of_slot;   /* NULL: no slot */
    _Atomic uint64_t used[MPSHM__LOGGED / 64]; /* a bit for each */
    _Atomic uint64_t number[MPSHM__LOGGED];    /* of the message that a reader has taken, or 0 */
};
extern struct mpshm__own_handle_log mpshm__own_handle_log;
/* From now on this process notes there, and has no note yet. */
void mpshm__handle_log_use(struct mpshm__logged *of_slot);

#endif
