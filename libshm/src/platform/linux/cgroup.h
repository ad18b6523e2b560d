/* The control groups that limit the memory of a process: cgroup.c. */
#ifndef MPSHM_CGROUP_H
#define MPSHM_CGROUP_H

#include <stdint.h>

enum { MPSHM__GROUP_PATH = 512 };

struct mpshm__group {
    int version;
    char folder[MPSHM__GROUP_PATH];
    uint64_t limit, used; /* as of the last mpshm__group_read */
};

/* Add the memory groups of process `pid` ("self", or a number) at every level to the `count` that
 * are there already, each once, and at most `room`. Returns how many there are now. `root` stands
 * before every path: "" but for tests. */
int mpshm__groups_of(const char *root, const char *pid, struct mpshm__group *groups, int count,
                     int room);
/* Read limit and use: 1 when it has a limit. What the kernel takes back by itself is not in use. */
int mpshm__group_read(struct mpshm__group *group);

#endif
