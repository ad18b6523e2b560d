/* The control groups that limit the memory and the processor time of a process, of version 1 and 2,
 * at every level.
 *
 * A process is in one group of each hierarchy (/proc/<pid>/cgroup). /proc/self/mountinfo tells
 * where a hierarchy is mounted; in a container the mount begins somewhere inside the hierarchy.
 * Each folder from the process's group up to the mount has a limit of its own, and the lowest
 * applies. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "platform/linux/cgroup.h"

/* The number at the start of a file, or UINT64_MAX when there is none ("max") or no file. */
static uint64_t number_in(const char *folder, const char *leaf)
{
    char path[MPSHM__GROUP_PATH + 64];
    unsigned long long number;

    snprintf(path, sizeof(path), "%s/%s", folder, leaf);
    FILE *file = fopen(path, "re");
    int good = file != NULL && fscanf(file, "%llu", &number) == 1;

    if (file != NULL)
        fclose(file);
    return good ? number : UINT64_MAX;
}

/* Version 1 has a number beyond any machine for "no limit". */
static const uint64_t NO_LIMIT = (uint64_t)1 << 60;

/* The share of page cache and slabs, which the kernel frees when memory is short. */
static uint64_t reclaimable(const struct mpshm__group *group)
{
    char path[MPSHM__GROUP_PATH + 64], name[64];
    unsigned long long number;
    uint64_t sum = 0;

    snprintf(path, sizeof(path), "%s/memory.stat", group->folder);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    while (fscanf(file, "%63s %llu", name, &number) == 2) {
        const char *plain = strncmp(name, "total_", 6) == 0 ? name + 6 : name;
        if ((plain == name) == (group->version == 2) &&
            (strcmp(plain, "inactive_file") == 0 || strcmp(plain, "active_file") == 0 ||
             strcmp(plain, "slab_reclaimable") == 0))
            sum += number;
    }
    fclose(file);
    return sum;
}

int mpshm__group_read(struct mpshm__group *group)
{
    uint64_t high = UINT64_MAX;

    if (group->version == 2) {
        group->limit = number_in(group->folder, "memory.max");
        high = number_in(group->folder, "memory.high");
        group->used = number_in(group->folder, "memory.current");
    } else {
        group->limit = number_in(group->folder, "memory.limit_in_bytes");
        group->used = number_in(group->folder, "memory.usage_in_bytes");
    }
    group->most = group->limit;
    if (high < group->limit)
        group->limit = high;
    if (group->limit >= NO_LIMIT || group->used == UINT64_MAX)
        return 0;
    uint64_t files = reclaimable(group);
    group->used -= files < group->used ? files : group->used;
    return 1;
}

int mpshm__group_is_below_two_cpus(const struct mpshm__group *group)
{
    char path[MPSHM__GROUP_PATH + 64];
    long long time = -1, period = 0; /* no limit is "max" or -1 */

    if (group->version == 2) {
        snprintf(path, sizeof(path), "%s/cpu.max", group->folder);
        FILE *file = fopen(path, "re");
        if (file != NULL && fscanf(file, "%lld %lld", &time, &period) != 2)
            time = -1;
        if (file != NULL)
            fclose(file);
    } else {
        uint64_t quota = number_in(group->folder, "cpu.cfs_quota_us");
        time = quota > INT64_MAX ? -1 : (int64_t)quota;
        period = (int64_t)number_in(group->folder, "cpu.cfs_period_us");
    }
    return time > 0 && period > 0 && time < 2 * period;
}

/* 1 when `word` is in the comma-separated list `text`. */
static int lists(const char *text, const char *word)
{
    size_t n = strlen(word);

    for (const char *at = text; at != NULL; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, word, n) == 0 && (at[n] == 0 || at[n] == ','))
            return 1;
    return 0;
}

/* Find where the hierarchy of that version is mounted, and which of its folders the mount shows. */
static int find_mount(const char *root, int version, const char *controller, char *mount,
                      char *shows)
{
    char path[MPSHM__GROUP_PATH], *line = NULL;
    size_t room = 0;
    int found = 0;

    snprintf(path, sizeof(path), "%s/proc/self/mountinfo", root);
    FILE *file = fopen(path, "re");
    while (file != NULL && !found && getline(&line, &room, file) > 0) {
        char at[MPSHM__GROUP_PATH], in[MPSHM__GROUP_PATH], type[32], options[512];
        const char *rest = strstr(line, " - ");
        if (rest == NULL || sscanf(line, "%*s %*s %*s %511s %511s", in, at) != 2 ||
            sscanf(rest, " - %31s %*s %511s", type, options) != 2)
            continue;
        if (version == 2 ? strcmp(type, "cgroup2") == 0
                         : strcmp(type, "cgroup") == 0 && lists(options, controller)) {
            strcpy(mount, at);
            strcpy(shows, in);
            found = 1;
        }
    }
    free(line);
    if (file != NULL)
        fclose(file);
    return found;
}

static int add(struct mpshm__group *groups, int count, int room, int version, const char *folder)
{
    for (int i = 0; i < count; i++)
        if (groups[i].version == version && strcmp(groups[i].folder, folder) == 0)
            return count;
    if (count == room)
        return count;
    groups[count].version = version;
    snprintf(groups[count].folder, sizeof(groups[count].folder), "%s", folder);
    return count + 1;
}

static int add_levels(const char *root, int version, const char *controller, const char *path,
                      struct mpshm__group *groups, int count, int room)
{
    char mount[MPSHM__GROUP_PATH], shows[MPSHM__GROUP_PATH], folder[MPSHM__GROUP_PATH];

    if (!find_mount(root, version, controller, mount, shows))
        return count;
    size_t n = strcmp(shows, "/") == 0 ? 0 : strlen(shows);
    /* The mount does not show this path (it is seen from another namespace), so the folder of
     * the mount itself is the nearest one. */
    const char *below = strncmp(path, shows, n) == 0 && (path[n] == '/' || path[n] == 0) &&
                                strstr(path, "/..") == NULL
                            ? path + n
                            : "";
    size_t top = strlen(root) + strlen(mount);
    if (top + strlen(below) >= sizeof(folder))
        return count;
    snprintf(folder, sizeof(folder), "%s%s", root, mount);
    strcat(folder, below);
    for (;;) {
        size_t end = strlen(folder);
        while (end > top && folder[end - 1] == '/')
            folder[--end] = 0;
        count = add(groups, count, room, version, folder);
        if (end <= top)
            return count;
        *strrchr(folder, '/') = 0;
    }
}

int mpshm__groups_of(const char *root, const char *pid, const char *controller,
                     struct mpshm__group *groups, int count, int room)
{
    char path[MPSHM__GROUP_PATH], *line = NULL;
    size_t size = 0;

    snprintf(path, sizeof(path), "%s/proc/%s/cgroup", root, pid);
    FILE *file = fopen(path, "re");
    /* Each line is "number:controllers:path". Version 2 has number 0 and no controllers. */
    while (file != NULL && getline(&line, &size, file) > 0) {
        char *controllers = strchr(line, ':'), *at = controllers ? strchr(controllers + 1, ':') : 0;
        if (at == NULL)
            continue;
        *at++ = 0;
        controllers++;
        at[strcspn(at, "\n")] = 0;
        if (controllers[0] == 0)
            count = add_levels(root, 2, controller, at, groups, count, room);
        else if (lists(controllers, controller))
            count = add_levels(root, 1, controller, at, groups, count, room);
    }
    free(line);
    if (file != NULL)
        fclose(file);
    return count;
}

int mpshm__groups_have_room(uint64_t size)
{
    enum { LEVELS = 8 };
    struct mpshm__group groups[LEVELS];
    int count = mpshm__groups_of("", "self", "memory", groups, 0, LEVELS);
    struct sysinfo info;
    uint64_t swap = sysinfo(&info) == 0 ? (uint64_t)info.freeswap * info.mem_unit : 0;

    for (int i = 0; i < count; i++)
        if (mpshm__group_read(&groups[i]) && groups[i].most < NO_LIMIT &&
            groups[i].used + size > groups[i].most + swap)
            return 0;
    return 1;
}
