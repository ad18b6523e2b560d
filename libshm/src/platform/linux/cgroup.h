/* The control groups that limit a process: see cgroup.c. */
#ifndef MPSHM_CGROUP_H
#define MPSHM_CGROUP_H

#include <stdint.h>

enum { MPSHM__GROUP_PATH = 512 };

struct mpshm__group {
    int version;
    char folder[MPSHM__GROUP_PATH];
    uint64_t limit, most, used; /* set by mpshm__group_read; beyond `most` the kernel kills */
};

/* Append the groups of process `pid` ("self" or a number) for a controller ("memory" or "cpu"), at
 * every level, to the first `count` of `groups`, each once and up to `room`. Returns the new count.
 * `root` is put before every path; it is "" except in tests. */
int mpshm__groups_of(const char *root, const char *pid, const char *controller,
                     struct mpshm__group *groups, int count, int room);
/* Read limit and use: 1 when the group has a limit. Page cache does not count as used. */
int mpshm__group_read(struct mpshm__group *group);
/* Whether the memory groups of this process have so many bytes left, or swap takes the rest. Beyond
 * that the kernel kills a process of the group, and not always the one that has asked. */
int mpshm__groups_have_room(uint64_t size);
/* Whether the group grants the time of fewer than two processors. */
int mpshm__group_is_below_two_cpus(const struct mpshm__group *group);

#endif
