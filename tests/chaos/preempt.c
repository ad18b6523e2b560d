/* Take the processor from threads in the worst places: a library for LD_PRELOAD.
 *
 * A loaded machine stops a thread anywhere, but seldom between two given instructions. This library
 * makes threads sleep before and after the calls by which processes and threads wait for each other
 * or wake each other, thousands of times as often.
 *
 *     PREEMPT=SEED,RATE,MS   one call in RATE sleeps, up to MS milliseconds; SEED repeats the
 * choices of each thread stop_in_unlock         a program that sets it stops, by SIGSTOP, in its
 * next unlock of a robust mutex */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int stop_in_unlock;

static uint64_t seed;
static unsigned rate, longest_ms;
static __thread uint64_t state;
static __thread int drawn_by; /* a forked child draws its own numbers */
static int process;

static struct {
    int (*lock)(pthread_mutex_t *);
    int (*try_lock)(pthread_mutex_t *);
    int (*timed_lock)(pthread_mutex_t *, const struct timespec *);
    int (*unlock)(pthread_mutex_t *);
    ssize_t (*read)(int, void *, size_t);
    ssize_t (*write)(int, const void *, size_t);
    ssize_t (*send)(int, const void *, size_t, int);
    ssize_t (*recv)(int, void *, size_t, int);
    ssize_t (*sendmsg)(int, const struct msghdr *, int);
    ssize_t (*recvmsg)(int, struct msghdr *, int);
    int (*poll)(struct pollfd *, nfds_t, int);
    int (*ppoll)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);
    int (*epoll_wait)(int, struct epoll_event *, int, int);
    int (*yield)(void);
    long (*syscall)(long, ...);
} real;

static void note_process(void)
{
    process = getpid();
}

__attribute__((constructor)) static void set_up(void)
{
    const char *text = getenv("PREEMPT");

    if (real.syscall != NULL)
        return; /* the constructor of another library has called one of these, as CPython 3.13 does */
#define FIND(member, name) *(void **)&real.member = dlsym(RTLD_NEXT, name)
    FIND(lock, "pthread_mutex_lock");
    FIND(try_lock, "pthread_mutex_trylock");
    FIND(timed_lock, "pthread_mutex_timedlock");
    FIND(unlock, "pthread_mutex_unlock");
    FIND(read, "read");
    FIND(write, "write");
    FIND(send, "send");
    FIND(recv, "recv");
    FIND(sendmsg, "sendmsg");
    FIND(recvmsg, "recvmsg");
    FIND(poll, "poll");
    FIND(ppoll, "ppoll");
    FIND(epoll_wait, "epoll_wait");
    FIND(yield, "sched_yield");
    FIND(syscall, "syscall");
#undef FIND
    note_process();
    pthread_atfork(NULL, NULL, note_process);
    if (text != NULL &&
        sscanf(text, "%llu,%u,%u", (unsigned long long *)&seed, &rate, &longest_ms) != 3)
        abort();
}

/* xorshift64, from the seed, the process and the thread. */
static uint64_t draw(void)
{
    if (drawn_by != process) {
        drawn_by = process;
        state = (seed + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)(unsigned)process << 32 ^
                (uint64_t)real.syscall(SYS_gettid) * 0xbf58476d1ce4e5b9u;
        state += state == 0;
    }
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

/* Most sleeps are short, so that other threads get in between; few are as long as a time slice of
 * a busy machine. */
static void maybe_sleep(void)
{
    int saved = errno;

    if (rate != 0 && real.syscall != NULL && draw() % rate == 0) {
        unsigned shift = (unsigned)(draw() % 8);
        uint64_t ns = draw() % (1 + (longest_ms * 1000000ull >> shift));
        struct timespec span = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
        nanosleep(&span, NULL);
    }
    errno = saved;
}

#define AROUND(type, call)                                                                         \
    maybe_sleep();                                                                                 \
    type result = call;                                                                            \
    maybe_sleep();                                                                                 \
    return result

/* glibc's kind of a mutex; the mutexes of the interpreter are not robust and stay as they are. */
static int is_robust(const pthread_mutex_t *mutex)
{
    return (mutex->__data.__kind & 16) != 0;
}

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (!is_robust(mutex))
        return real.lock != NULL ? real.lock(mutex) : 0; /* before set_up there is one thread */
    AROUND(int, real.lock(mutex));
}

int pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    if (!is_robust(mutex))
        return real.try_lock != NULL ? real.try_lock(mutex) : 0;
    AROUND(int, real.try_lock(mutex));
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until)
{
    if (!is_robust(mutex))
        return real.timed_lock(mutex, until);
    AROUND(int, real.timed_lock(mutex, until));
}

int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    if (!is_robust(mutex))
        return real.unlock != NULL ? real.unlock(mutex) : 0;
    if (stop_in_unlock) {
        stop_in_unlock = 0;
        raise(SIGSTOP);
    }
    AROUND(int, real.unlock(mutex));
}

ssize_t read(int fd, void *data, size_t size)
{
    AROUND(ssize_t, real.read(fd, data, size));
}

ssize_t write(int fd, const void *data, size_t size)
{
    AROUND(ssize_t, real.write(fd, data, size));
}

ssize_t send(int fd, const void *data, size_t size, int flags)
{
    AROUND(ssize_t, real.send(fd, data, size, flags));
}

ssize_t recv(int fd, void *data, size_t size, int flags)
{
    AROUND(ssize_t, real.recv(fd, data, size, flags));
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    AROUND(ssize_t, real.sendmsg(fd, message, flags));
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    AROUND(ssize_t, real.recvmsg(fd, message, flags));
}

int poll(struct pollfd *fds, nfds_t count, int timeout)
{
    AROUND(int, real.poll(fds, count, timeout));
}

int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
    AROUND(int, real.ppoll(fds, count, timeout, mask));
}

int epoll_wait(int fd, struct epoll_event *events, int most, int timeout)
{
    AROUND(int, real.epoll_wait(fd, events, most, timeout));
}

int sched_yield(void)
{
    AROUND(int, real.yield());
}

/* All arguments of a call are words, and the kernel ignores those that it does not take. */
long syscall(long number, ...)
{
    long a[6];
    va_list arguments;

    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(arguments, long);
    va_end(arguments);
    if (real.syscall == NULL)
        set_up();
    AROUND(long, real.syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]));
}
