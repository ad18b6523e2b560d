/* The limit of the cache: the parser of sizes, control groups at every level, and programs in a
 * small group. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>

#include "base/spin.h"
#include "platform/linux/cgroup.h"
#include "memory.h"

static void sizes_with_units_are_parsed(void)
{
    static const struct {
        const char *text;
        uint64_t nbytes;
    } GOOD[] = {
        {"0", 0},
        {"1073741824", 1 << 30},
        {"1GiB", 1 << 30},
        {"1 gib", 1 << 30},
        {"1g", 1 << 30},
        {" 512 MiB ", 512 << 20},
        {"512M", 512 << 20},
        {"1.5K", 1536},
        {"100kB", 100000},
        {"100KB", 100000},
        {"0.5 MiB", 1 << 19},
        {"7b", 7},
        {"2TiB", (uint64_t)2 << 40},
    };
    static const char *const BAD[] = {"",       " ",     "GiB",  "-1",  "1x",
                                      "1 GiBi", "12 34", "0x10", "1e9", "."};
    uint64_t nbytes = 5;

    for (unsigned i = 0; i < sizeof(GOOD) / sizeof(*GOOD); i++) {
        CHECK_EQ(mpshm_parse_bytes(GOOD[i].text, &nbytes), 0);
        CHECK_EQ(nbytes, GOOD[i].nbytes);
    }
    nbytes = 5;
    for (unsigned i = 0; i < sizeof(BAD) / sizeof(*BAD); i++)
        CHECK_EQ(mpshm_parse_bytes(BAD[i], &nbytes), -EINVAL);
    CHECK_EQ(mpshm_parse_bytes("99999999999999999999", &nbytes), -ERANGE);
    CHECK_EQ(mpshm_parse_bytes("99999999999 GiB", &nbytes), -ERANGE);
    CHECK_EQ(nbytes, 5);
}

/* ---- fake /proc and /sys ---- */

static char root[] = "/tmp/mpshm-groups-XXXXXX";

static void file(const char *path, const char *text)
{
    char full[600];

    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = 0;
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    CHECK(f != NULL);
    fputs(text, f);
    fclose(f);
}

static uint64_t least_of(int *levels)
{
    struct mpshm__group groups[16];
    uint64_t least = UINT64_MAX;
    int n = mpshm__groups_of(root, "self", "memory", groups, 0, 16);

    CHECK_EQ(mpshm__groups_of(root, "self", "memory", groups, n, 16), n); /* each once */
    *levels = 0;
    for (int i = 0; i < n; i++)
        if (mpshm__group_read(&groups[i])) {
            *levels += 1;
            if (groups[i].limit - groups[i].used < least)
                least = groups[i].limit - groups[i].used;
        }
    return least;
}

static void every_level_of_both_versions_counts(void)
{
    int levels;

    CHECK(mkdtemp(root) != NULL);
    /* version 2, nested; memory.high is a limit too, and the page cache is not in use */
    file("/proc/self/cgroup", "0::/a.slice/b.scope\n");
    file("/proc/self/mountinfo",
         "25 30 0:23 / /sys rw - sysfs sysfs rw\n"
         "29 25 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
    file("/sys/fs/cgroup/a.slice/memory.max", "1000000\n");
    file("/sys/fs/cgroup/a.slice/memory.high", "900000\n");
    file("/sys/fs/cgroup/a.slice/memory.current", "500000\n");
    file("/sys/fs/cgroup/a.slice/memory.stat", "anon 1\ninactive_file 100000\nactive_file 50000\n");
    file("/sys/fs/cgroup/a.slice/b.scope/memory.max", "max\n");
    file("/sys/fs/cgroup/a.slice/b.scope/memory.high", "max\n");
    file("/sys/fs/cgroup/a.slice/b.scope/memory.current", "400000\n");
    CHECK_EQ(least_of(&levels), 900000 - 500000 + 150000);
    CHECK_EQ(levels, 1);
    file("/sys/fs/cgroup/a.slice/b.scope/memory.max", "600000\n");
    CHECK_EQ(least_of(&levels), 200000);
    CHECK_EQ(levels, 2);

    /* a container: the mount shows a folder inside the hierarchy, the path is the whole one */
    file("/proc/self/cgroup", "0::/docker/77/inner\n");
    file("/proc/self/mountinfo", "29 25 0:26 /docker/77 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    file("/sys/fs/cgroup/memory.max", "3000\n");
    file("/sys/fs/cgroup/memory.current", "1000\n");
    file("/sys/fs/cgroup/inner/memory.max", "2500\n");
    file("/sys/fs/cgroup/inner/memory.current", "1000\n");
    CHECK_EQ(least_of(&levels), 1500);
    CHECK_EQ(levels, 2);
    /* ... or a path of another namespace */
    file("/proc/self/cgroup", "0::/../elsewhere\n");
    CHECK_EQ(least_of(&levels), 2000);

    /* version 1 beside it, where a number beyond any machine means no limit */
    file("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x/y\n0::/\n");
    file("/proc/self/mountinfo",
         "31 25 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
         "32 25 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
         "33 25 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
    file("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "5000\n");
    file("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "4500\n");
    file("/sys/fs/cgroup/memory/x/memory.stat", "inactive_file 4000\ntotal_inactive_file 100\n");
    file("/sys/fs/cgroup/memory/x/y/memory.limit_in_bytes", "4000\n");
    file("/sys/fs/cgroup/memory/x/y/memory.usage_in_bytes", "1000\n");
    CHECK_EQ(least_of(&levels), 600);
    CHECK_EQ(levels, 2);

    /* processor time, of both versions; -1 and "max" are no limit */
    CHECK_EQ(mpshm__quota_is_below_two(root), 0);
    file("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
    file("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
    file("/sys/fs/cgroup/unified/cpu.max", "max 100000\n");
    CHECK_EQ(mpshm__quota_is_below_two(root), 0);
    file("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "200000\n");
    CHECK_EQ(mpshm__quota_is_below_two(root), 0);
    file("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "199999\n");
    CHECK_EQ(mpshm__quota_is_below_two(root), 1);
    file("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
    file("/sys/fs/cgroup/unified/cpu.max", "50000 100000\n");
    CHECK_EQ(mpshm__quota_is_below_two(root), 1);

    file("/proc/self/cgroup", "nonsense\n\n::::\n4:memory\n");
    CHECK_EQ(least_of(&levels), UINT64_MAX);
    char command[64];
    snprintf(command, sizeof(command), "rm -r %s", root);
    CHECK_EQ(system(command), 0);
}

/* ---- a real group ---- */

enum { MIB = 1 << 20 };
static char group[600];

static int write_to(const char *leaf, const char *text)
{
    char path[700];

    snprintf(path, sizeof(path), "%s/%s", group, leaf);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    int good = fd >= 0 && write(fd, text, strlen(text)) == (long)strlen(text);
    if (fd >= 0)
        close(fd);
    return good;
}

/* Create a group below our own, of either version, with that limit. */
static int make_group(uint64_t limit)
{
    struct mpshm__group groups[32];
    char number[32];
    int n = mpshm__groups_of("", "self", "memory", groups, 0, 32);

    snprintf(number, sizeof(number), "%llu", (unsigned long long)limit);
    for (int i = 0; i < n; i++) {
        snprintf(group, sizeof(group), "%s/mpshm-test-%d", groups[i].folder, getpid());
        if (mkdir(group, 0700) < 0)
            continue;
        if (write_to(groups[i].version == 1 ? "memory.limit_in_bytes" : "memory.max", number))
            return 1;
        rmdir(group);
    }
    return 0;
}

/* Fill shared memory and free it, with a cache that may use half of the group. Then fill private
 * memory, nearly to the limit. */
static void live_in_it(int strategy, uint64_t limit)
{
    enum { N = 16 };
    mpshm_block b[N];
    uint64_t cached;

    CHECK(write_to("cgroup.procs", "0"));
    for (int i = 0; i < N; i++) {
        CHECK_EQ(mpshm_block_allocate(strategy, limit / 2 / N, 0, &b[i]), 0);
        memset(b[i].data, 1, b[i].nbytes);
    }
    for (int i = 0; i < N; i++)
        mpshm_block_release(&b[i]);
    cached = cached_bytes();
    CHECK(cached > 0);
    uint64_t fill = limit - limit / 8;
    /* On a machine that is busy with other things, it fills no faster than the manager looks. */
    CHECK(nice(15) >= 0);
    char *at = mmap(NULL, fill, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    for (uint64_t k = 0; k < fill; k += 4096) {
        at[k] = 1;
        if (k % (4 * MIB) == 0)
            usleep(4000); /* a gigabyte a second: as fast as NumPy fills */
    }
    CHECK(cached_bytes() < cached);
    /* It goes on sharing, and its freed blocks are not cached any more. */
    CHECK_EQ(mpshm_block_allocate(strategy, MIB, 0, &b[0]), 0);
    memset(b[0].data, 1, b[0].nbytes);
    mpshm_block_release(&b[0]);
    _exit(0);
}

static void the_cache_shrinks_before_a_process_is_killed(int strategy)
{
    uint64_t limit = (uint64_t)512 * MIB;

#ifdef __SANITIZE_ADDRESS__
    limit *= 2; /* an instrumented manager takes several times as long to look and to purge */
#endif
#ifdef __SANITIZE_THREAD__
    SKIP("the thread sanitizer takes several times the memory of a program");
#endif
    setenv("MP_CACHE_BYTES", "256MiB", 1); /* more than the group allows */
    if (!make_group(limit))
        SKIP("no control group with a memory limit can be made here (needs root and a mount)");
    pid_t pid = forked();
    if (pid == 0)
        live_in_it(strategy, limit);
    int status = reap(pid);
    EVENTUALLY(rmdir(group) == 0 || errno == ENOENT);
    CHECK_EQ(status, 0);
    unsetenv("MP_CACHE_BYTES");
}

int main(void)
{
    set_up();
    sizes_with_units_are_parsed();
    every_level_of_both_versions_counts();
    for (int s = 0; s < 2; s++)
        the_cache_shrinks_before_a_process_is_killed(STRATEGIES[s]);
    tear_down();
    return 0;
}
