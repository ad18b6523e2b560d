/* The functions of glibc that Debian's Python calls and musl has not. `tools/musl_python.py`
 * preloads them.
 *
 * _FORTIFY_SOURCE makes the calls of the first part: each has the size of its buffer as an argument
 * more. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

/* ---- with the size of a buffer ---- */

#define CHECKED(result, name, parameters, needed, call)                                            \
    result __##name##_chk parameters                                                               \
    {                                                                                              \
        if ((needed) > room)                                                                       \
            abort();                                                                               \
        return call;                                                                               \
    }
CHECKED(void *, memcpy, (void *to, const void *from, size_t n, size_t room), n, memcpy(to, from, n))
CHECKED(void *, memmove, (void *to, const void *from, size_t n, size_t room), n,
        memmove(to, from, n))
CHECKED(void *, memset, (void *to, int byte, size_t n, size_t room), n, memset(to, byte, n))
CHECKED(void, explicit_bzero, (void *to, size_t n, size_t room), n, explicit_bzero(to, n))
CHECKED(char *, strcpy, (char *to, const char *from, size_t room), strlen(from) + 1,
        strcpy(to, from))
CHECKED(char *, stpcpy, (char *to, const char *from, size_t room), strlen(from) + 1,
        stpcpy(to, from))
CHECKED(char *, strncpy, (char *to, const char *from, size_t n, size_t room), n,
        strncpy(to, from, n))
CHECKED(char *, strcat, (char *to, const char *from, size_t room), strlen(to) + strlen(from) + 1,
        strcat(to, from))
CHECKED(char *, strncat, (char *to, const char *from, size_t n, size_t room),
        strlen(to) + strnlen(from, n) + 1, strncat(to, from, n))
CHECKED(ssize_t, read, (int fd, void *to, size_t n, size_t room), n, read(fd, to, n))
CHECKED(ssize_t, pread64, (int fd, void *to, size_t n, off_t at, size_t room), n,
        pread(fd, to, n, at))
CHECKED(ssize_t, readlink, (const char *path, char *to, size_t n, size_t room), n,
        readlink(path, to, n))
CHECKED(ssize_t, recv, (int fd, void *to, size_t n, size_t room, int flags), n,
        recv(fd, to, n, flags))
CHECKED(ssize_t, recvfrom,
        (int fd, void *to, size_t n, size_t room, int flags, struct sockaddr *from,
         socklen_t *length),
        n, recvfrom(fd, to, n, flags, from, length))
CHECKED(char *, getcwd, (char *to, size_t n, size_t room), n, getcwd(to, n))
CHECKED(int, gethostname, (char *to, size_t n, size_t room), n, gethostname(to, n))
CHECKED(int, getgroups, (int n, gid_t *to, size_t room), n * sizeof(gid_t), getgroups(n, to))
CHECKED(size_t, confstr, (int name, char *to, size_t n, size_t room), n, confstr(name, to, n))
CHECKED(size_t, fread, (void *to, size_t room, size_t size, size_t n, FILE *file), size *n,
        fread(to, size, n, file))
CHECKED(char *, fgets, (char *to, size_t room, int n, FILE *file), (size_t)n, fgets(to, n, file))
CHECKED(int, poll, (struct pollfd * to, nfds_t n, int timeout, size_t room), n * sizeof(*to),
        poll(to, n, timeout))
CHECKED(wchar_t *, wcsncpy, (wchar_t * to, const wchar_t *from, size_t n, size_t room), n,
        wcsncpy(to, from, n))
CHECKED(wchar_t *, wcscpy, (wchar_t * to, const wchar_t *from, size_t room), wcslen(from) + 1,
        wcscpy(to, from))
CHECKED(wchar_t *, wcscat, (wchar_t * to, const wchar_t *from, size_t room),
        wcslen(to) + wcslen(from) + 1, wcscat(to, from))
CHECKED(wchar_t *, wmemcpy, (wchar_t * to, const wchar_t *from, size_t n, size_t room), n,
        wmemcpy(to, from, n))
CHECKED(size_t, mbstowcs, (wchar_t * to, const char *from, size_t n, size_t room), n,
        mbstowcs(to, from, n))
CHECKED(size_t, wcstombs, (char *to, const wchar_t *from, size_t n, size_t room), n,
        wcstombs(to, from, n))
CHECKED(int, vsnprintf,
        (char *to, size_t n, int flag, size_t room, const char *format, va_list arguments), n,
        vsnprintf(to, n, format, arguments))

char *__realpath_chk(const char *path, char *to, size_t room)
{
    (void)room;
    return realpath(path, to);
}

long __fdelt_chk(long fd)
{
    if (fd < 0 || fd >= 1024)
        abort();
    return fd / (8 * (long)sizeof(long));
}

int __vfprintf_chk(FILE *file, int flag, const char *format, va_list arguments)
{
    (void)flag;
    return vfprintf(file, format, arguments);
}

/* Define a function that hands its arguments on as a va_list. */
#define VARIADIC(name, parameters, last, call)                                                     \
    int name parameters                                                                            \
    {                                                                                              \
        va_list arguments;                                                                         \
        va_start(arguments, last);                                                                 \
        int result = call;                                                                         \
        va_end(arguments);                                                                         \
        return result;                                                                             \
    }
VARIADIC(__printf_chk, (int flag, const char *format, ...), format, vprintf(format, arguments))
VARIADIC(__fprintf_chk, (FILE * file, int flag, const char *format, ...), format,
         vfprintf(file, format, arguments))
VARIADIC(__dprintf_chk, (int fd, int flag, const char *format, ...), format,
         vdprintf(fd, format, arguments))
VARIADIC(__sprintf_chk, (char *to, int flag, size_t room, const char *format, ...), format,
         vsnprintf(to, room, format, arguments))
VARIADIC(__snprintf_chk, (char *to, size_t n, int flag, size_t room, const char *format, ...),
         format, vsnprintf(to, n < room ? n : room, format, arguments))
VARIADIC(__isoc23_sscanf, (const char *text, const char *format, ...), format,
         vsscanf(text, format, arguments))
VARIADIC(__isoc23_fscanf, (FILE * file, const char *format, ...), format,
         vfscanf(file, format, arguments))
VARIADIC(fcntl64, (int fd, int command, ...), command,
         fcntl(fd, command, va_arg(arguments, void *)))

void __syslog_chk(int priority, int flag, const char *format, ...)
{
    va_list arguments;

    (void)flag;
    va_start(arguments, format);
    vsyslog(priority, format, arguments);
    va_end(arguments);
}

int __open64_2(const char *path, int flags)
{
    return open(path, flags);
}
int __open_2(const char *path, int flags)
{
    return open(path, flags);
}

/* ---- under another name, or newer than musl ---- */

long __isoc23_strtol(const char *text, char **end, int base)
{
    return strtol(text, end, base);
}
unsigned long __isoc23_strtoul(const char *text, char **end, int base)
{
    return strtoul(text, end, base);
}
long long __isoc23_strtoll(const char *text, char **end, int base)
{
    return strtoll(text, end, base);
}
unsigned long long __isoc23_strtoull(const char *text, char **end, int base)
{
    return strtoull(text, end, base);
}
int posix_fallocate64(int fd, off_t at, off_t n)
{
    return posix_fallocate(fd, at, n);
}
long __isoc23_wcstol(const wchar_t *text, wchar_t **end, int base)
{
    return wcstol(text, end, base);
}
long __sysconf(int name)
{
    return sysconf(name);
}
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
    (void)actions, (void)from;
    return ENOSYS;
}

ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off_t at, int flags)
{
    return syscall(SYS_preadv2, fd, parts, count, at, at >> 63, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off_t at, int flags)
{
    return syscall(SYS_pwritev2, fd, parts, count, at, at >> 63, flags);
}

/* libexpat seeds its hashes with these. */
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

/* Python waits so for its locks, by the monotonic clock. */
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
