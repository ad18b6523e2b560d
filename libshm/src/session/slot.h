/* A number for each process of a session, and a lock that says that it lives: slot.c. */
#ifndef MPSHM_SLOT_H
#define MPSHM_SLOT_H

#include "layout/layout.h"

/* Lock one byte of the control file through that description: 0, -EAGAIN when another has it, or
 * MPSHM__NO_LOCKS where the kernel has no such locks (valgrind). */
enum { MPSHM__NO_LOCKS = 1 };
int mpshm__lock_byte(int control_fd, int at);
void mpshm__unlock_byte(int control_fd, int at);
/* By another description than this one? */
int mpshm__byte_is_locked(int control_fd, int at);
/* Take a free slot and lock its byte: its number, or -EUSERS. */
int mpshm__take_slot(struct mpshm__control *control, int control_fd);
void mpshm__sign_slot(struct mpshm__slot *slot, int pid);
/* Does the process of that slot live? Asked by another process than that one. */
int mpshm__slot_lives(const struct mpshm__control *control, int control_fd, int slot);

#endif
