/* A session for each test program, and helpers to look at it from outside. */
#ifndef MEMORY_H
#define MEMORY_H

#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>

#include "check.h"
#include "mpshm.h"

static const int STRATEGIES[] = {MPSHM_FILE_DESCRIPTOR, MPSHM_FILE_SYSTEM};
/* 1 when only this program uses /dev/shm, so that names can be counted. */
static int own_dev_shm;
static char runtime_dir[64] = "/tmp/mpshm-test-XXXXXX";
static pid_t set_up_by;

/* For a test that is skipped halfway. The manager is the last to leave: make removes the folder after it. */
__attribute__((unused)) static void remove_runtime_dir(void)
{
    if (getpid() == set_up_by)
        rmdir(runtime_dir);
}

__attribute__((unused)) static void set_up(void)
{
    const char *manager = getenv("SHM_MANAGER"), *folder = getenv("MPSHM_TEST_FOLDER");

    CHECK(manager != NULL);
    if (folder != NULL)
        CHECK(snprintf(runtime_dir, sizeof(runtime_dir), "%s", folder) < (int)sizeof(runtime_dir));
    else
        CHECK(mkdtemp(runtime_dir) != NULL);
    set_up_by = getpid();
    CHECK_EQ(atexit(remove_runtime_dir), 0);
    setenv("MPSHM_RUNTIME_DIR", runtime_dir, 1);
    CHECK_EQ(mpshm_set_manager(manager), 0);
    own_dev_shm = unshare(CLONE_NEWNS) == 0 &&
                  mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) == 0 &&
                  mount("shm", "/dev/shm", "tmpfs", 0, NULL) == 0;
}

__attribute__((unused)) static pid_t forked(void)
{
    pid_t pid = fork();

    CHECK(pid >= 0);
    return pid;
}

/* Wait until the condition holds, for at most a minute: longer is a hang, on any machine. */
#define EVENTUALLY(cond)                                                                           \
    do {                                                                                           \
        int eventually = 0;                                                                        \
        for (int eventually_i = 0; eventually_i < 12000 && !eventually; eventually_i++) {          \
            struct timespec eventually_t = {.tv_nsec = 5000000};                                   \
            eventually = (cond);                                                                   \
            if (!eventually)                                                                       \
                nanosleep(&eventually_t, NULL);                                                    \
        }                                                                                          \
        CHECK(eventually && #cond);                                                                \
    } while (0)

/* Count the entries of a folder that begin with `prefix`. */
__attribute__((unused)) static int entries_in(const char *path, const char *prefix)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    int count = 0;

    if (dir == NULL)
        return 0;
    while ((entry = readdir(dir)) != NULL)
        count += entry->d_name[0] != '.' && strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(dir);
    return count;
}

/* Count the managers of this process's session in /proc: their argument is the session's folder.
 * `one` is the pid of one, or 0. */
__attribute__((unused)) static int count_managers(pid_t *one)
{
    DIR *dir = opendir("/proc");
    struct dirent *entry;
    int count = 0;

    *one = 0;
    while ((entry = readdir(dir)) != NULL) {
        char path[300], line[512] = "";
        pid_t pid = atoi(entry->d_name);
        if (pid <= 0)
            continue;
        snprintf(path, sizeof(path), "/proc/%d/cmdline", pid);
        FILE *file = fopen(path, "r");
        if (file == NULL)
            continue;
        size_t n = fread(line, 1, sizeof(line) - 1, file);
        fclose(file);
        for (size_t i = 0; i < n; i++)
            if (line[i] == 0)
                line[i] = ' ';
        if (strncmp(line, "shm-manager ", 12) == 0 && strstr(line, runtime_dir) != NULL) {
            *one = pid;
            count++;
        }
    }
    closedir(dir);
    return count;
}

/* The manager, or 0. The process that was started as one forks it and ends, at its own pace: until
 * then there are two. */
__attribute__((unused)) static pid_t manager_pid(void)
{
    pid_t one = 0;

    EVENTUALLY(count_managers(&one) < 2);
    return one;
}

__attribute__((unused)) static void put_all(int fd, const void *data, size_t n)
{
    CHECK_EQ(write(fd, data, n), n);
}

__attribute__((unused)) static void get_all(int fd, void *data, size_t n)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    CHECK_EQ(poll(&p, 1, 30000), 1);
    CHECK_EQ(read(fd, data, n), n);
}

__attribute__((unused)) static uint64_t live_bytes(void)
{
    mpshm_stats stats;

    mpshm_get_stats(&stats);
    return stats.live_bytes;
}

__attribute__((unused)) static uint64_t cached_bytes(void)
{
    mpshm_stats stats;

    mpshm_get_stats(&stats);
    return stats.cached_bytes;
}

__attribute__((unused)) static mpshm_block make_block(int strategy, uint64_t nbytes)
{
    mpshm_block b = {0};

    CHECK_EQ(mpshm_block_allocate(strategy, nbytes, MPSHM_ZEROED, &b), 0);
    return b;
}

/* Run the test for each strategy in a process, and so in a session, of its own. */
__attribute__((unused)) static void run_in_a_session(void (*test)(int))
{
    for (int i = 0; i < 2; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            alarm(120);
            test(STRATEGIES[i]);
            _exit(0);
        }
        int status = reap(pid);
        CHECK(status == 0 || status == 77); /* skipped */
    }
}

/* Bytes of shared memory that the manager keeps alive, as the system counts them. */
__attribute__((unused)) static uint64_t bytes_with(pid_t manager)
{
    uint64_t sum = 0;

    for (int fd = 0; fd < 256; fd++) {
        char path[64], target[256] = "";
        struct stat st;
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", manager, fd);
        if (readlink(path, target, sizeof(target) - 1) > 0 && strstr(target, "mpshm") != NULL &&
            strstr(target, "/control") == NULL && stat(path, &st) == 0 && S_ISREG(st.st_mode))
            sum += (uint64_t)st.st_blocks * 512;
    }
    return sum;
}

/* When all processes of the session have gone, nothing is left. The folder goes last. */
__attribute__((unused)) static void tear_down(void)
{
    EVENTUALLY(entries_in(runtime_dir, "mpshm-") == 0);
    if (own_dev_shm)
        CHECK_EQ(entries_in("/dev/shm", "mpshm-"), 0);
    CHECK_EQ(rmdir(runtime_dir), 0);
}

#endif
