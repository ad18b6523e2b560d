/* Descriptors that are identified by the file they refer to: see descriptor.c. */
#ifndef MPSHM_DESCRIPTOR_H
#define MPSHM_DESCRIPTOR_H

#include <stdint.h>

struct mpshm__fd {
    int number; /* -1: none */
    uint64_t device, inode;
};
#define MPSHM__NO_FD ((struct mpshm__fd){.number = -1})

/* Take over descriptor `number`, under another number if it is one of a standard stream; -1 for none. */
void mpshm__fd_set(struct mpshm__fd *fd, int number);
/* Its number, or -1 when there is none or the program has closed it. Call it before each use. */
int mpshm__fd_get(struct mpshm__fd *fd);
/* 1 when descriptor `number` refers to the same file. */
int mpshm__fd_is(const struct mpshm__fd *fd, int number);
void mpshm__fd_close(struct mpshm__fd *fd);

/* Fill the reserve with duplicates of `like`. */
void mpshm__fd_reserve(int like);
/* 1 when `err` is -EMFILE and a descriptor of the reserve was closed, so that the caller should try
 * again. */
int mpshm__fd_use_reserve(int err);
/* The number of descriptors in the reserve. */
int mpshm__fd_reserved(void);
void mpshm__fd_drop_reserve(void);

#endif
