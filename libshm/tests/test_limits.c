/* At a limit: many processes, no free slot, no free descriptor, a manager that is stopped or
 * full, a storm of signals, and a first process that waits for all its children. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "engine.h"
#include "base/clock.h"
#include "session/runtime_folder.h"
#include "session/session.h"
#include "session/process_slot.h"
#include "session/wire.h"

static void three_hundred_children_share_one_block(int strategy)
{
    enum { MANY = 300 };
    pid_t pids[MANY];
    int hold[2], ready[2];
    char byte;
    mpshm_block a = make_block(strategy, 100000);

    CHECK(pipe(hold) == 0 && pipe(ready) == 0);
    memset(a.data, 8, a.nbytes);
    for (int i = 0; i < MANY; i++)
        if ((pids[i] = forked()) == 0) {
            close(hold[1]);
            mpshm_block own = make_block(strategy, 64); /* each has a segment of its own, too */
            put_all(ready[1], "r", 1);
            CHECK_EQ(read(hold[0], &byte, 1), 0);
            CHECK_EQ(((char *)a.data)[99999], 8);
            mpshm_block_release(&own);
            _exit(0);
        }
    for (int i = 0; i < MANY; i++)
        get_all(ready[0], &byte, 1);
    CHECK_EQ(mpshm_block_others(&a), MANY);
    for (int i = 0; i < MANY; i += 2)
        CHECK_EQ(kill(pids[i], SIGKILL), 0);
    for (int i = 0; i < MANY; i += 2)
        CHECK_EQ(reap(pids[i]), -SIGKILL);
    EVENTUALLY(mpshm_block_others(&a) == MANY / 2);
    close(hold[0]), close(hold[1]);
    for (int i = 1; i < MANY; i += 2)
        CHECK_EQ(reap(pids[i]), 0);
    EVENTUALLY(mpshm_block_others(&a) == 0);
    mpshm_block_release(&a);
    close(ready[0]), close(ready[1]);
}

/* Take every free slot, each through a description of its own, as processes have them. */
static int take_all_slots(int *fds)
{
    char path[300];
    unsigned char id[MPSHM_ID_SIZE];
    int count = 0;

    CHECK_EQ(mpshm_own_session(id), 0);
    mpshm__session_path(id, "control", path, sizeof(path));
    for (;; count++) {
        fds[count] = open(path, O_RDWR | O_CLOEXEC);
        CHECK(fds[count] >= 0);
        int slot = mpshm__take_slot(mpshm__sessions[0]->control, fds[count]);
        if (slot == -EUSERS)
            break;
        CHECK(slot >= 0);
    }
    close(fds[count]);
    return count;
}

static void without_a_slot_a_copy_is_received_and_a_shared_block_is_refused(int strategy)
{
    static int fds[MPSHM__SLOTS];
    static unsigned char out[100000];
    unsigned char copy[MPSHM_HANDLE_SIZE], shared[MPSHM_HANDLE_SIZE];
    struct rlimit files = {4096, 4096};
    uint64_t nbytes;
    int p[2];

    if (setrlimit(RLIMIT_NOFILE, &files) < 0)
        return; /* this system does not allow so many descriptors */
    CHECK_EQ(pipe(p), 0);
    pid_t pid = forked(); /* before anything is shared: it has to take a slot later */
    if (pid == 0) {
        mpshm_block got;
        unsigned char id[MPSHM_ID_SIZE];
        get_all(p[0], id, sizeof(id));
        get_all(p[0], copy, sizeof(copy));
        get_all(p[0], shared, sizeof(shared));
        CHECK_EQ(mpshm_set_own_session(id), 0);
        CHECK_EQ(mpshm_block_receive(shared, sizeof(shared), 0, &got), -EUSERS);
        CHECK_EQ(mpshm_block_receive(copy, sizeof(copy), 0, &got), -EUSERS);
        CHECK_EQ(mpshm_handle_info(shared, sizeof(shared), &nbytes), 0);
        CHECK_EQ(mpshm_block_read(shared, sizeof(shared), out, nbytes), -EINVAL);
        CHECK_EQ(mpshm_handle_info(copy, sizeof(copy), &nbytes), 1);
        CHECK_EQ(nbytes, sizeof(out));
        CHECK_EQ(mpshm_block_read(copy, sizeof(copy), out, nbytes), 0);
        for (size_t i = 0; i < sizeof(out); i++)
            CHECK_EQ(out[i], 4);
        CHECK_EQ(mpshm_block_read(copy, sizeof(copy), out, nbytes), -ESTALE); /* once */
        CHECK_EQ(mpshm_block_discard(shared, sizeof(shared)), 0);
        _exit(0);
    }
    unsigned char id[MPSHM_ID_SIZE];
    mpshm_block a = make_block(strategy, sizeof(out)), b = make_block(strategy, 1000);
    memset(a.data, 4, a.nbytes);
    CHECK_EQ(mpshm_block_send(&a, MPSHM_COPY, copy), 0);
    CHECK_EQ(mpshm_block_send(&b, 0, shared), 0);
    mpshm_block_release(&a); /* only the message keeps it */
    int count = take_all_slots(fds);
    CHECK_EQ(mpshm_own_session(id), 0);
    put_all(p[1], id, sizeof(id));
    put_all(p[1], copy, sizeof(copy));
    put_all(p[1], shared, sizeof(shared));
    CHECK_EQ(reap(pid), 0);
    CHECK_EQ(mpshm_block_others(&b), 0);
    mpshm_block_release(&b);
    CHECK_EQ(live_bytes(), 0);
    mpshm_stats stats;
    mpshm_get_stats(&stats);
    CHECK_EQ(stats.in_flight_bytes, 0);
    for (int i = 0; i < count; i++)
        close(fds[i]);
    close(p[0]), close(p[1]);
}

/* A process that has used up its descriptors receives with those in reserve. */
static void without_a_descriptor_a_message_is_received(int strategy)
{
    unsigned char handle[MPSHM_HANDLE_SIZE];
    int up[2], down[2];

    CHECK(pipe(up) == 0 && pipe(down) == 0);
    CHECK_EQ(mpshm_attach(), 0);
    pid_t pid = forked();
    if (pid == 0) {
        mpshm_block got, own = make_block(strategy, 100);
        struct rlimit files = {64, 64};
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
        while (dup(0) >= 0)
            ;
        CHECK_EQ(errno, EMFILE);
        put_all(up[1], "r", 1);
        get_all(down[0], handle, sizeof(handle));
        CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &got), 0);
        CHECK_EQ(((char *)got.data)[got.nbytes - 1], 6);
        mpshm_block_release(&got);
        mpshm_block_release(&own);
        _exit(0);
    }
    char byte;
    get_all(up[0], &byte, 1);
    mpshm_block a = make_block(strategy, 1 << 20); /* a segment that the child has never attached */
    memset(a.data, 6, a.nbytes);
    CHECK_EQ(mpshm_block_send(&a, 0, handle), 0);
    put_all(down[1], handle, sizeof(handle));
    CHECK_EQ(reap(pid), 0);
    mpshm_block_release(&a);
    close(up[0]), close(up[1]), close(down[0]), close(down[1]);
}

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

static void another_version_is_refused_and_named(int strategy)
{
    unsigned char id[MPSHM_ID_SIZE] = {9, 9, (unsigned char)strategy};
    struct mpshm__control header = {.magic = MPSHM__MAGIC ^ (uint64_t)1 << 56};
    char path[300];
    mpshm_block b;

    strcpy(header.version, "7.8.9");
    CHECK_EQ(mpshm_set_own_session(id), 0);
    CHECK_EQ(mpshm__session_make_folder(id), 0);
    mpshm__session_path(id, "control", path, sizeof(path));
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    CHECK_EQ(write(fd, &header, offsetof(struct mpshm__control, slots)),
             offsetof(struct mpshm__control, slots));
    CHECK_EQ(mpshm_block_allocate(strategy, 1000, 0, &b), -EPROTO);
    CHECK_EQ(strcmp(mpshm_refused_version(), "7.8.9"), 0);
    close(fd);
    mpshm__session_remove(id);
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
    run_in_a_session(another_version_is_refused_and_named);
    run_in_a_session(three_hundred_children_share_one_block);
    run_in_a_session(without_a_slot_a_copy_is_received_and_a_shared_block_is_refused);
    run_in_a_session(without_a_descriptor_a_message_is_received);
    run_in_a_session(a_stopped_manager_delays_no_fork_and_a_question_ten_seconds);
    run_in_a_session(a_full_manager_refuses_and_rests);
    run_in_a_session(a_process_that_waits_for_all_children_sees_the_manager_go);
    run_in_a_session(managers_killed_at_any_time_cost_no_process_its_slot);
    tear_down();
    return 0;
}
