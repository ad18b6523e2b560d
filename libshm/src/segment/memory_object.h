/* The memory object of a segment: a sealed memfd or a named POSIX object, by strategy. */
#ifndef MPSHM_MEMORY_OBJECT_H
#define MPSHM_MEMORY_OBJECT_H

#include "layout/control_file.h"

/* Create an object of `size` bytes. A named object is called after `nonce`. Returns a descriptor.
 */
int mpshm__object_create(int strategy, const uint64_t nonce[2], uint64_t size);
/* Open a named object. */
int mpshm__object_open_name(const uint64_t nonce[2]);
void mpshm__object_unlink(const uint64_t nonce[2]);
/* Remove the name that a dead process had created and not yet registered. */
void mpshm__object_unlink_unfinished(struct mpshm__control *control, struct mpshm__slot *maker);
/* Open the memfd of a segment through /proc, from the process that owns it. */
int mpshm__object_from_owner(const struct mpshm__segment_entry *entry);
/* 0 when only processes of this user, or of `user`, could truncate `fd`; otherwise -EBADMSG. */
int mpshm__object_check(int strategy, int fd, uint32_t user);
/* 1 when memory must be reserved before it is handed out, 0 when it may stay sparse. */
int mpshm__object_must_reserve(int strategy);

/* The two strategies. */
int mpshm__memfd_create(uint64_t size);
int mpshm__memfd_check(int fd);
int mpshm__named_create(const char *name, uint64_t size);

#endif
