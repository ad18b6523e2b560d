/* A manager that is stopped, full, killed at any moment, or a child of a process that waits for
 * all its children. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "memory.h"
#include "base/clock.h"
#include "session/manager_start.h"
#include "session/runtime_folder.h"
#include "session/wire.h"

static void on_alarm(int signum)
{
    (void)signum;
}

/* A timer that fires faster than any answer comes must not make the wait endless. */
static void a_stopped_manager_delays_no_fork_and_a_question_ten_seconds(int strategy)
{
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval often = {{0, 100000}, {0, 100000}}, never = {{0, 0}, {0, 0}};
    mpshm_block a = make_block(strategy, 1 << 20), b;
    pid_t manager = manager_pid();

    CHECK_EQ(kill(manager, SIGSTOP), 0);
    uint64_t begin = mpshm__now_ns();
    for (int i = 0; i < 20; i++) {
        pid_t pid = forked();
        if (pid == 0)
            _exit(((char *)a.data)[0]);
        CHECK_EQ(reap(pid), 0);
    }
    CHECK(mpshm__now_ns() - begin < 5000000000ull);
    CHECK_EQ(sigaction(SIGALRM, &action, NULL), 0);
    CHECK_EQ(setitimer(ITIMER_REAL, &often, NULL), 0);
    pid_t pid = forked(); /* has a slot and no segment of its own: that takes the manager */
    if (pid == 0) {
        CHECK_EQ(setitimer(ITIMER_REAL, &often, NULL), 0);
        CHECK_EQ(mpshm_block_allocate(strategy, 1000, 0, &b), -ETIMEDOUT);
        uint64_t once = mpshm__now_ns();
        CHECK_EQ(mpshm_block_allocate(strategy, 1000, 0, &b), -ETIMEDOUT); /* not again */
        CHECK(mpshm__now_ns() - once < 5000000000ull);
        _exit(0);
    }
    int status;
    while (waitpid(pid, &status, 0) != pid)
        CHECK_EQ(errno, EINTR);
    CHECK_EQ(status, 0);
    CHECK(mpshm__now_ns() - begin < 40000000000ull);
    CHECK_EQ(setitimer(ITIMER_REAL, &never, NULL), 0);
    CHECK_EQ(kill(manager, SIGCONT), 0);
    mpshm_block_release(&a);
}

static unsigned long ticks_of(pid_t pid)
{
    char path[64], line[1024];
    unsigned long user, system;

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    size_t n = fread(line, 1, sizeof(line) - 1, file);
    fclose(file);
    line[n] = 0;
    CHECK_EQ(sscanf(strrchr(line, ')'), ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                    &user, &system),
             2);
    return user + system;
}

/* Root may have any number of descriptors, so the program changes its user. */
static void a_full_manager_refuses_and_rests(int strategy)
{
    enum { FILES = 40 };
    struct rlimit files = {FILES, FILES};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    unsigned char id[MPSHM_ID_SIZE];
    char own[100];
    int socks[FILES], refused = 0;

    snprintf(own, sizeof(own), "%s/full-%d", runtime_dir, strategy);
    CHECK(mkdir(own, 0777) == 0 && chmod(own, 0777) == 0 && chmod(runtime_dir, 0755) == 0);
    setenv("MPSHM_RUNTIME_DIR", own, 1);
    pid_t pid = forked();
    if (pid == 0) {
        if (geteuid() == 0)
            CHECK(setgid(65534) == 0 && setuid(65534) == 0);
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
        mpshm_block a = make_block(strategy, 100);
        files.rlim_cur = files.rlim_max;
        CHECK_EQ(mpshm_own_session(id), 0);
        mpshm__session_path(id, "socket", address.sun_path, sizeof(address.sun_path));
        pid_t manager = manager_pid();
        /* More connections than it can have; a second process keeps the others open. */
        for (int half = 0; half < 2; half++) {
            int count = 0;
            while (count < FILES &&
                   (socks[count] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) >= 0) {
                if (connect(socks[count], (struct sockaddr *)&address, sizeof(address)) < 0)
                    break;
                count++;
            }
            for (int i = 0; i < count; i++) {
                struct mpshm__frame frame;
                int fd;
                refused +=
                    mpshm__recv_frame(socks[i], &frame, &fd, mpshm__now_ns() + 200000000ull) == 0 &&
                    frame.err == -EMFILE;
            }
            if (half == 0) {
                pid_t second = fork();
                CHECK(second >= 0);
                if (second != 0) {
                    CHECK_EQ(reap(second), 0);
                    mpshm_block_release(&a);
                    _exit(0);
                }
                for (int i = 0; i < count; i++)
                    if (i % 2)
                        close(socks[i]); /* the parent has them open, too */
            } else {
                close(socks[0]); /* one for reading /proc */
            }
        }
        CHECK(refused > 0);
        unsigned long before = ticks_of(manager);
        struct timespec second = {1, 0};
        nanosleep(&second, NULL);
        CHECK(ticks_of(manager) - before < (unsigned long)sysconf(_SC_CLK_TCK) / 2);
        _exit(0);
    }
    CHECK_EQ(reap(pid), 0);
    setenv("MPSHM_RUNTIME_DIR", runtime_dir, 1);
    EVENTUALLY(rmdir(own) == 0);
}

/* The event that the manager has seen may belong to the listener before this one. */
static void a_listener_that_nobody_has_called_holds_no_manager_up(int strategy)
{
    unsigned char id[MPSHM_ID_SIZE];
    (void)strategy;

    CHECK_EQ(mpshm_own_session(id), 0);
    int listener = mpshm__manager_listen(id);
    CHECK(listener >= 0);
    alarm(60);
    CHECK_EQ(accept(listener, NULL, NULL), -1);
    CHECK_EQ(errno, EAGAIN);
    alarm(0);
    close(listener);
    mpshm__session_remove(id);
}

/* Like the first process of a container, or a subreaper. */
static void a_process_that_waits_for_all_children_sees_the_manager_go(int strategy)
{
    int status;

    CHECK_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    mpshm_block a = make_block(strategy, 1 << 20), b;
    pid_t pid = forked();
    if (pid == 0)
        _exit(0);
    alarm(60);
    while (wait(&status) > 0)
        ;
    CHECK_EQ(errno, ECHILD);
    /* Its memory stays, and a manager starts when it is needed. */
    ((char *)a.data)[7] = 7;
    pid = forked();
    if (pid == 0) {
        b = make_block(strategy, 1000);
        mpshm_block_release(&b);
        _exit(((char *)a.data)[7]);
    }
    CHECK_EQ(reap(pid), 7);
    mpshm_block_release(&a);
}

/* The lock alone makes a slot its process's own. It keeps the slot no matter what
 * the manager knew of it, or did not live to learn. */
static void managers_killed_at_any_time_cost_no_process_its_slot(int strategy)
{
    enum { CLIENTS = 4, ROUNDS = 60 };
    pid_t pids[CLIENTS];
    int stop[2];

    CHECK_EQ(pipe(stop), 0);
    mpshm_block a = make_block(strategy, 1000);
    memset(a.data, 5, a.nbytes);
    for (int i = 0; i < CLIENTS; i++)
        if ((pids[i] = forked()) == 0) {
            struct pollfd p = {.fd = stop[0], .events = POLLIN};
            close(stop[1]);
            while (poll(&p, 1, 0) == 0) {
                pid_t pid = forked(); /* has no connection if the manager has just died */
                if (pid == 0) {
                    mpshm_block b;
                    int err = mpshm_block_allocate(strategy, 100, 0, &b);
                    CHECK_EQ(err, 0);
                    CHECK_EQ(((char *)a.data)[999], 5);
                    _exit(0);
                }
                CHECK_EQ(reap(pid), 0);
            }
            _exit(0);
        }
    for (int i = 0; i < ROUNDS; i++) {
        struct timespec moment = {.tv_nsec = (i * 7919 % 13) * 1000000};
        pid_t manager = manager_pid();
        if (manager > 0)
            kill(manager, SIGKILL);
        nanosleep(&moment, NULL);
    }
    close(stop[0]), close(stop[1]);
    for (int i = 0; i < CLIENTS; i++)
        CHECK_EQ(reap(pids[i]), 0);
    pid_t last = forked(); /* there is a manager, and it has noticed all deaths */
    if (last == 0) {
        mpshm_block b = make_block(strategy, 1000);
        mpshm_block_release(&b);
        _exit(0);
    }
    CHECK_EQ(reap(last), 0);
    EVENTUALLY(mpshm_block_others(&a) == 0);
    mpshm_block_release(&a);
}

int main(void)
{
    if (is_emulated())
        SKIP("valgrind has no locks that belong to an open file");
    set_up();
    run_in_a_session(a_stopped_manager_delays_no_fork_and_a_question_ten_seconds);
    run_in_a_session(a_full_manager_refuses_and_rests);
    run_in_a_session(a_listener_that_nobody_has_called_holds_no_manager_up);
    run_in_a_session(a_process_that_waits_for_all_children_sees_the_manager_go);
    run_in_a_session(managers_killed_at_any_time_cost_no_process_its_slot);
    tear_down();
    return 0;
}
