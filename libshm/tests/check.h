/* Asserts that print both sides, and a fork that is always reaped. A test is a program: it exits
 * with 0 to pass and with 77 to skip. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: %s: not so (errno: %s)\n", __FILE__, __LINE__, #cond,          \
                    strerror(errno));                                                              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_EQ(a, b)                                                                             \
    do {                                                                                           \
        long long check_a = (long long)(a), check_b = (long long)(b);                              \
        if (check_a != check_b) {                                                                  \
            fprintf(stderr, "%s:%d: %s is %lld, %s is %lld\n", __FILE__, __LINE__, #a, check_a,    \
                    #b, check_b);                                                                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define SKIP(why)                                                                                  \
    do {                                                                                           \
        fprintf(stderr, "skipped: %s\n", why);                                                     \
        exit(77);                                                                                  \
    } while (0)

/* The exit status of a child, or minus the signal that ended it. */
__attribute__((unused)) static int reap(pid_t pid)
{
    int status;

    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/* 1 in valgrind, which counts descriptors in its own way, and makes system calls. */
__attribute__((unused)) static int is_emulated(void)
{
    const char *wrap = getenv("WRAP");

    return wrap != NULL && wrap[0] != 0;
}

/* The number of open descriptors of this process. */
__attribute__((unused)) static int open_descriptors(void)
{
    int count = 0;

    for (int fd = 0; fd < 1024; fd++) {
        char path[64], target[256];
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        count += readlink(path, target, sizeof(target)) > 0;
    }
    return count;
}

#endif
