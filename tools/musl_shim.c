/* The functions of glibc that Debian's Python calls and musl lacks. `musl_python.py` lets it find
 * them here. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <semaphore.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

/* ---- the calls of _FORTIFY_SOURCE ---- */

/* Define the variant of a function that knows the size of its buffer. */
#define CHECKED(result, name, parameters, needed, call)                                            \
    result __##name##_chk parameters                                                               \
    {                                                                                              \
        if ((needed) > room)                                                                       \
            abort();                                                                               \
        return call;                                                                               \
    }
#define COPIES(name)                                                                               \
    CHECKED(void *, name, (void *to, const void *from, size_t n, size_t room), n, name(to, from, n))
COPIES(memcpy)
COPIES(memmove)
CHECKED(void *, memset, (void *to, int byte, size_t n, size_t room), n, memset(to, byte, n))
CHECKED(void, explicit_bzero, (void *to, size_t n, size_t room), n, explicit_bzero(to, n))
CHECKED(char *, strcpy, (char *to, const char *from, size_t room), strlen(from) + 1,
        strcpy(to, from))
CHECKED(char *, strcat, (char *to, const char *from, size_t room), strlen(to) + strlen(from) + 1,
        strcat(to, from))
CHECKED(char *, strncat, (char *to, const char *from, size_t n, size_t room),
        strlen(to) + strnlen(from, n) + 1, strncat(to, from, n))
CHECKED(int, vsnprintf,
        (char *to, size_t n, int flag, size_t room, const char *format, va_list rest), n,
        vsnprintf(to, n, format, rest))
CHECKED(char *, realpath, (const char *path, char *to, size_t room), 0, realpath(path, to))

int __vfprintf_chk(FILE *file, int flag, const char *format, va_list rest)
{
    return vfprintf(file, format, rest);
}

/* Define a function that passes its last arguments on as a va_list. */
#define VARIADIC(name, parameters, last, call)                                                     \
    int name parameters                                                                            \
    {                                                                                              \
        va_list rest;                                                                              \
        va_start(rest, last);                                                                      \
        int result = call;                                                                         \
        va_end(rest);                                                                              \
        return result;                                                                             \
    }
VARIADIC(__printf_chk, (int flag, const char *format, ...), format, vprintf(format, rest))
VARIADIC(__fprintf_chk, (FILE * file, int flag, const char *format, ...), format,
         vfprintf(file, format, rest))
VARIADIC(__sprintf_chk, (char *to, int flag, size_t room, const char *format, ...), format,
         vsnprintf(to, room, format, rest))
VARIADIC(__snprintf_chk, (char *to, size_t n, int flag, size_t room, const char *format, ...),
         format, vsnprintf(to, n < room ? n : room, format, rest))
VARIADIC(__syslog_chk, (int priority, int flag, const char *format, ...), format,
         (vsyslog(priority, format, rest), 0))

long __fdelt_chk(long fd)
{
    if (fd < 0 || fd >= FD_SETSIZE)
        abort();
    return fd / (8 * (long)sizeof(long));
}

int __open64_2(const char *path, int flags)
{
    return open(path, flags);
}

/* ---- other names ---- */

#define ANOTHER_NAME(result, ours, name, parameters, arguments)                                    \
    result ours parameters                                                                         \
    {                                                                                              \
        return name arguments;                                                                     \
    }
#define STRTO(result, name)                                                                        \
    ANOTHER_NAME(result, __isoc23_##name, name, (const char *text, char **end, int base),          \
                 (text, end, base))
STRTO(long, strtol)
STRTO(long long, strtoll)
STRTO(unsigned long, strtoul)
ANOTHER_NAME(long, __isoc23_wcstol, wcstol, (const wchar_t *text, wchar_t **end, int base),
             (text, end, base))
ANOTHER_NAME(long, __sysconf, sysconf, (int name), (name))
ANOTHER_NAME(unsigned long, __getauxval, getauxval, (unsigned long type), (type))
ANOTHER_NAME(int, posix_fallocate64, posix_fallocate, (int fd, off_t at, off_t n), (fd, at, n))
VARIADIC(__isoc23_sscanf, (const char *text, const char *format, ...), format,
         vsscanf(text, format, rest))
VARIADIC(fcntl64, (int fd, int command, ...), command, fcntl(fd, command, va_arg(rest, void *)))

/* ---- functions that musl does not have ---- */

cpu_set_t *__sched_cpualloc(size_t count)
{
    return calloc(1, CPU_ALLOC_SIZE(count));
}

void __sched_cpufree(cpu_set_t *set)
{
    free(set);
}

int close_range(unsigned first, unsigned last, int flags)
{
    return (int)syscall(SYS_close_range, first, last, flags);
}

void closefrom(int first)
{
    close_range((unsigned)first, ~0U, 0);
}

int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t *actions, int from)
{
    return ENOSYS;
}

/* The kernel takes the offset in two halves, and ignores the second on machines of 64 bits. */
ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off_t at, int flags)
{
    return syscall(SYS_preadv2, fd, parts, count, at, 0L, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off_t at, int flags)
{
    return syscall(SYS_pwritev2, fd, parts, count, at, 0L, flags);
}

/* libexpat seeds its hashes with these two. */
void arc4random_buf(void *to, size_t n)
{
    if (getrandom(to, n, 0) != (ssize_t)n)
        abort();
}

uint32_t arc4random(void)
{
    uint32_t number;

    arc4random_buf(&number, sizeof(number));
    return number;
}

/* Python waits for its locks by the monotonic clock, musl by the other. */
int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *until)
{
    enum { SECOND = 1000000000 };
    struct timespec now, real;

    clock_gettime(clock, &now);
    clock_gettime(CLOCK_REALTIME, &real);
    real.tv_sec += until->tv_sec - now.tv_sec;
    real.tv_nsec += until->tv_nsec - now.tv_nsec;
    if (real.tv_nsec < 0) {
        real.tv_nsec += SECOND;
        real.tv_sec--;
    } else if (real.tv_nsec >= SECOND) {
        real.tv_nsec -= SECOND;
        real.tv_sec++;
    }
    return sem_timedwait(semaphore, &real);
}
