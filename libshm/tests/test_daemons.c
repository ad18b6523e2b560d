/* Processes that close their descriptors, lose their folder or change their user, while other
 * processes of their session live. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/clock.h"
#include "base/descriptor_passing.h"
#include "memory.h"
#include "session/control_lock.h"
#include "session/runtime_folder.h"
#include "session/wire.h"

static void close_everything(void)
{
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
}

static void kill_the_manager(void)
{
    pid_t manager = manager_pid();

    CHECK(manager > 0);
    CHECK_EQ(kill(manager, SIGKILL), 0);
    EVENTUALLY(manager_pid() == 0);
}

/* MPSHM_RUNTIME_DIR is a symbolic link, with one slash too many. */
static void a_daemon_keeps_its_blocks_whatever_it_closes(int strategy)
{
    char link[128], path[160];
    int ready[2], back[2];
    char byte;

    snprintf(link, sizeof(link), "%s/link-%d", runtime_dir, strategy);
    CHECK_EQ(symlink(runtime_dir, link), 0);
    snprintf(path, sizeof(path), "%s//", link);
    setenv("MPSHM_RUNTIME_DIR", path, 1);
    CHECK(pipe(ready) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, back) == 0);
    mpshm_block a = make_block(strategy, 1 << 20);
    memset(a.data, 7, a.nbytes);
    pid_t pid = forked();
    if (pid == 0) {
        int out = dup2(back[1], 1);
        close_everything();
        put_all(out, "r", 1);
        get_all(out, &byte, 1);
        for (uint64_t i = 0; i < a.nbytes; i++)
            CHECK_EQ(((char *)a.data)[i], 7);
        _exit(0);
    }
    get_all(back[0], &byte, 1);
    kill_the_manager(); /* the next one has only the control file to go by */
    pid_t other = forked();
    if (other == 0) {
        mpshm_block b = make_block(strategy, 1 << 20);
        mpshm_block_release(&b);
        _exit(0);
    }
    CHECK_EQ(reap(other), 0);
    mpshm_block_release(&a);
    for (int i = 0; i < 16; i++) {
        mpshm_block b = make_block(strategy, 1 << 20);
        memset(b.data, 6, b.nbytes);
        mpshm_block_release(&b);
    }
    put_all(back[0], "g", 1);
    CHECK_EQ(reap(pid), 0);
    setenv("MPSHM_RUNTIME_DIR", runtime_dir, 1);
    unlink(link);
}

/* The library's former descriptor numbers are the program's sockets now. */
static void a_daemon_goes_on_sharing_and_its_sockets_are_left_alone(int strategy)
{
    enum { PAIRS = 24 };
    int sockets[PAIRS][2];
    unsigned char handle[MPSHM_HANDLE_SIZE];
    mpshm_block a = make_block(strategy, 1 << 20), b;

    memset(a.data, 5, a.nbytes);
    close_everything();
    for (int i = 0; i < PAIRS; i++)
        CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets[i]), 0);
    for (int round = 0; round < 3; round++) {
        int p[2];
        CHECK_EQ(pipe(p), 0);
        pid_t pid = forked();
        if (pid == 0) {
            get_all(p[0], handle, sizeof(handle));
            CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &b), 0);
            CHECK_EQ(((char *)b.data)[99], 5);
            b = make_block(strategy, 3 << 20);
            mpshm_block_release(&b);
            for (int i = 0; i < PAIRS; i++) /* the child has all of them */
                CHECK(fcntl(sockets[i][0], F_GETFD) >= 0 && fcntl(sockets[i][1], F_GETFD) >= 0);
            _exit(0);
        }
        CHECK_EQ(mpshm_block_send(&a, 0, handle), 0);
        put_all(p[1], handle, sizeof(handle));
        CHECK_EQ(reap(pid), 0);
        b = make_block(strategy, 64 << 20); /* larger than the free space: needs a new segment */
        memset(b.data, 1, b.nbytes);
        mpshm_block_release(&b);
        mpshm_empty_cache();
        close(p[0]), close(p[1]);
    }
    for (int i = 0; i < PAIRS; i++)
        for (int side = 0; side < 2; side++) {
            char byte;
            CHECK(recv(sockets[i][side], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
            CHECK_EQ(send(sockets[i][side], "x", 1, MSG_NOSIGNAL), 1);
            CHECK_EQ(recv(sockets[i][!side], &byte, 1, 0), 1);
        }
    mpshm_block_release(&a);
}

static void a_killed_parents_memory_returns_while_its_child_lives(int strategy)
{
    enum { MUCH = 64 << 20 };
    int up[2], hold[2];
    char byte;
    pid_t child;

    CHECK(pipe(up) == 0 && pipe(hold) == 0);
    CHECK_EQ(mpshm_attach(), 0);
    pid_t parent = forked();
    if (parent == 0) {
        mpshm_block small = make_block(strategy, 100);
        child = forked();
        if (child == 0) {
            close(hold[1]);
            CHECK_EQ(read(hold[0], &byte, 1), 0); /* until the test has ended */
            CHECK_EQ(((char *)small.data)[99], 0);
            _exit(0);
        }
        mpshm_block much = make_block(strategy, MUCH); /* which the child has never attached */
        memset(much.data, 1, much.nbytes);
        put_all(up[1], &child, sizeof(child));
        pause();
    }
    close(hold[0]);
    get_all(up[0], &child, sizeof(child));
    pid_t manager = manager_pid();
    CHECK(bytes_with(manager) >= MUCH);
    CHECK_EQ(kill(parent, SIGKILL), 0);
    CHECK_EQ(reap(parent), -SIGKILL);
    EVENTUALLY(bytes_with(manager) < MUCH / 16);
    CHECK_EQ(kill(child, 0), 0);
    close(hold[1]);
    EVENTUALLY(kill(child, 0) < 0);
    close(up[0]), close(up[1]);
}

static void remove_folder(int only_socket)
{
    char command[256];

    snprintf(command, sizeof(command),
             only_socket ? "rm -f %s/mpshm-*/*/socket" : "rm -rf %s/mpshm-* 2>/dev/null",
             runtime_dir);
    CHECK(system(command) >= 0);
}

/* A child by exec, which knows only its arguments. */
static void receive_as_a_new_process(int sock, int fail)
{
    unsigned char id[MPSHM_ID_SIZE], handle[MPSHM_HANDLE_SIZE];
    mpshm_block got;
    int fds[2];

    CHECK_EQ(mpshm__receive_message(sock, id, sizeof(id), &fds[0], 0), (long)sizeof(id));
    CHECK_EQ(mpshm__receive_message(sock, handle, sizeof(handle), &fds[1], 0),
             (long)sizeof(handle));
    if (fail) /* another user, which may open none of our files */
        CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    CHECK_EQ(mpshm_attach_by_descriptors(id, fds), 0);
    CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &got), 0);
    CHECK_EQ(((char *)got.data)[got.nbytes - 1], 9);
    mpshm_block_release(&got);
    got = make_block(MPSHM_FILE_DESCRIPTOR, 1000);
    mpshm_block_release(&got);
    _exit(0);
}

static void a_new_child_is_given_all_it_needs(int strategy, void (*disturb)(int), int how, int fail)
{
    unsigned char id[MPSHM_ID_SIZE], handle[MPSHM_HANDLE_SIZE];
    int s[2], fds[2];

    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
    pid_t pid = forked(); /* before anything is shared */
    if (pid == 0)
        receive_as_a_new_process(s[1], fail);
    mpshm_block a = make_block(strategy, 1 << 20);
    memset(a.data, 9, a.nbytes);
    CHECK_EQ(mpshm_block_send(&a, 0, handle), 0);
    disturb(how);
    CHECK_EQ(mpshm_open_descriptors_for_child(fds), 0);
    CHECK(fds[0] >= 0 && fds[1] >= 0);
    CHECK_EQ(mpshm_own_session(id), 0);
    CHECK_EQ(mpshm__send_message(s[0], id, sizeof(id), fds[0], 0), (long)sizeof(id));
    CHECK_EQ(mpshm__send_message(s[0], handle, sizeof(handle), fds[1], 0), (long)sizeof(handle));
    close(fds[0]), close(fds[1]), close(s[0]), close(s[1]);
    CHECK_EQ(reap(pid), 0);
    EVENTUALLY(mpshm_block_others(&a) == 0);
    /* A new process finds the session by the path again. */
    char socket[200], pattern[200];
    snprintf(pattern, sizeof(pattern), "ls %s/mpshm-*/*/socket >/dev/null 2>&1", runtime_dir);
    (void)socket;
    EVENTUALLY(system(pattern) == 0);
    mpshm_block_release(&a);
}

static void a_child_attaches_after_the_folder_was_removed(int strategy)
{
    a_new_child_is_given_all_it_needs(strategy, remove_folder, 0, 0);
}

static void a_child_attaches_after_the_socket_was_removed(int strategy)
{
    a_new_child_is_given_all_it_needs(strategy, remove_folder, 1, 0);
}

static void leave_alone(int how)
{
    (void)how;
}

static void a_child_of_another_user_attaches(int strategy)
{
    if (geteuid() != 0)
        SKIP("only root can change its user");
    /* Only the owner can open names in /dev/shm, so the manager passes a descriptor. */
    a_new_child_is_given_all_it_needs(strategy, leave_alone, 0, 1);
}

static void become_another_user(void)
{
    CHECK(setgid(65534) == 0 && setuid(65534) == 0);
}

/* It was forked before there was a manager, and finds it without a path when there is one. */
static void share_as_another_user(int strategy, int ready, int from)
{
    unsigned char handle[MPSHM_HANDLE_SIZE];
    mpshm_block b;

    become_another_user();
    uint64_t begin = mpshm__now_ns();
    for (int i = 0; i < 10; i++)
        CHECK_EQ(mpshm_block_allocate(strategy, 1000, 0, &b), -ENOLINK);
    CHECK(mpshm__now_ns() - begin < 1000000000ull);
    put_all(ready, "r", 1);
    get_all(from, handle, sizeof(handle));
    CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &b), 0);
    CHECK_EQ(((char *)b.data)[b.nbytes - 1], 9);
    mpshm_block_release(&b);
    b = make_block(strategy, 1 << 20);
    mpshm_block_release(&b);
    _exit(0);
}

static void be_a_stranger(int ids, int connected, int end)
{
    static const char prefix[] = "\0mpshm-";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    unsigned char id[MPSHM_ID_SIZE];
    char byte;

    become_another_user();
    get_all(ids, id, sizeof(id));
    memcpy(address.sun_path, prefix, sizeof(prefix));
    mpshm__format_id(id, address.sun_path + sizeof(prefix) - 1);
    socklen_t length =
        offsetof(struct sockaddr_un, sun_path) + sizeof(prefix) - 1 + 2 * MPSHM_ID_SIZE;
    for (int i = 0; i < 20; i++) {
        struct mpshm__frame frame = {.magic = MPSHM__WIRE,
                                     .op = i % 2 ? MPSHM__MEMBER : MPSHM__CONTROL};
        int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), fd = -1;
        CHECK_EQ(connect(sock, (struct sockaddr *)&address, length), 0);
        if (i >= 10)
            continue; /* silent */
        CHECK_EQ(mpshm__send_frame(sock, &frame, i % 4 == 1 ? 0 : -1, 0), 0);
        CHECK_EQ(mpshm__recv_frame(sock, &frame, &fd, mpshm__now_ns() + 20000000000ull),
                 -ECONNRESET);
    }
    put_all(connected, "c", 1);
    CHECK_EQ(read(end, &byte, 1), 0);
    _exit(0);
}

static void another_user_is_admitted_if_it_is_in_the_session(int strategy)
{
    unsigned char id[MPSHM_ID_SIZE], handle[MPSHM_HANDLE_SIZE];
    int ids[2], ready[2], to[2], end[2];
    pid_t one, member, stranger;
    char byte;

    if (geteuid() != 0)
        SKIP("only root can change its user");
    CHECK(pipe(ids) == 0 && pipe(ready) == 0 && pipe(to) == 0 && pipe(end) == 0);
    stranger = forked();
    if (stranger == 0) {
        close(end[1]);
        be_a_stranger(ids[0], ready[1], end[0]);
    }
    pid_t pid = forked();
    if (pid == 0) {
        close(end[1]);
        CHECK_EQ(mpshm_attach(), 0);
        member = forked();
        if (member == 0)
            share_as_another_user(strategy, ready[1], to[0]);
        get_all(ready[0], &byte, 1);
        mpshm_block a = make_block(strategy, 1 << 20);
        memset(a.data, 9, a.nbytes);
        CHECK_EQ(mpshm_own_session(id), 0);
        put_all(ids[1], id, sizeof(id));
        get_all(ready[0], &byte, 1);
        CHECK_EQ(mpshm_block_send(&a, 0, handle), 0);
        put_all(to[1], handle, sizeof(handle));
        CHECK_EQ(reap(member), 0);
        EVENTUALLY(mpshm_block_others(&a) == 0);
        mpshm_block_release(&a);
        _exit(0);
    }
    CHECK_EQ(reap(pid), 0);
    EVENTUALLY(count_managers(&one) == 0); /* although the stranger is still connected */
    close(end[1]);
    CHECK_EQ(reap(stranger), 0);
    for (int i = 0; i < 2; i++)
        close(ids[i]), close(ready[i]), close(to[i]);
    close(end[0]);
}

/* While a manager lives, no process starts a second one. */
static void the_manager_creates_the_folder_again(int strategy)
{
    unsigned char handle[MPSHM_HANDLE_SIZE], id[MPSHM_ID_SIZE];
    int s[2];

    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
    pid_t pid = forked();
    if (pid == 0) { /* has only the id of the session */
        mpshm_block got;
        get_all(s[1], id, sizeof(id));
        get_all(s[1], handle, sizeof(handle));
        CHECK_EQ(mpshm_set_own_session(id), 0);
        CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &got), 0);
        CHECK_EQ(((char *)got.data)[0], 3);
        _exit(0);
    }
    mpshm_block a = make_block(strategy, 1 << 20);
    memset(a.data, 3, a.nbytes);
    pid_t manager = manager_pid();
    CHECK_EQ(mpshm_block_send(&a, 0, handle), 0);
    CHECK_EQ(mpshm_own_session(id), 0);
    remove_folder(1);
    put_all(s[0], id, sizeof(id));
    put_all(s[0], handle, sizeof(handle));
    CHECK_EQ(reap(pid), 0);
    CHECK_EQ(manager_pid(), manager);
    mpshm_block_release(&a);
    close(s[0]), close(s[1]);
}

/* Stop each thread of a process, and wait until all have. */
static void stop(pid_t pid)
{
    char command[128];

    CHECK_EQ(kill(pid, SIGSTOP), 0);
    snprintf(command, sizeof(command),
             "! grep -hs State: /proc/%d/task/*/status | grep -qv stopped", pid);
    EVENTUALLY(system(command) == 0);
}

/* Of a session that has ended, another process has removed the folder. */
static void the_manager_of_an_ended_session_does_not_create_the_folder_again(int strategy)
{
    unsigned char id[MPSHM_ID_SIZE], another[MPSHM_ID_SIZE] = {1};
    char folder[MPSHM__PATH];
    struct inotify_event event;
    pid_t manager;
    int p[2];

    CHECK_EQ(pipe(p), 0);
    pid_t pid = forked();
    if (pid == 0) {
        make_block(strategy, 1000);
        manager = manager_pid();
        CHECK_EQ(mpshm_own_session(id), 0);
        put_all(p[1], id, sizeof(id));
        put_all(p[1], &manager, sizeof(manager));
        stop(manager);
        _exit(0);
    }
    get_all(p[0], id, sizeof(id));
    get_all(p[0], &manager, sizeof(manager));
    CHECK_EQ(reap(pid), 0);
    mpshm__remove_dead_sessions();
    mpshm__session_path(id, "", folder, sizeof(folder));
    CHECK(access(folder, F_OK) < 0);
    CHECK_EQ(mpshm__session_make_folder(another), 0); /* keeps the one above, which is watched */
    mpshm__session_path(id, "..", folder, sizeof(folder));
    *strrchr(folder, '/') = 0;
    *strrchr(folder, '/') = 0;
    int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    CHECK(inotify_add_watch(watch, folder, IN_CREATE) >= 0);
    CHECK_EQ(kill(manager, SIGCONT), 0);
    EVENTUALLY(kill(manager, 0) < 0);
    CHECK_EQ(read(watch, &event, sizeof(event)), -1);
    CHECK_EQ(errno, EAGAIN); /* EINVAL: an event that is longer */
    mpshm__session_remove_empty(another);
    close(watch), close(p[0]), close(p[1]);
}

/* Neither folder nor manager: the next manager gets the control file. */
static void a_tree_survives_the_loss_of_folder_and_manager(int strategy)
{
    unsigned char handle[MPSHM_HANDLE_SIZE];
    mpshm_block a = make_block(strategy, 1 << 20), got;
    int p[2];

    memset(a.data, 3, a.nbytes);
    CHECK_EQ(pipe(p), 0);
    remove_folder(0);
    EVENTUALLY(manager_pid() > 0);
    kill_the_manager();
    remove_folder(0);
    pid_t pid = forked();
    if (pid == 0) {
        mpshm_block b = make_block(strategy, 1 << 20);
        memset(b.data, 4, b.nbytes);
        mpshm_block_send(&b, 0, handle);
        put_all(p[1], handle, sizeof(handle));
        _exit(0);
    }
    get_all(p[0], handle, sizeof(handle));
    CHECK_EQ(reap(pid), 0);
    CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &got), 0);
    CHECK_EQ(((char *)got.data)[0], 4);
    CHECK_EQ(((char *)a.data)[0], 3);
    mpshm_block_release(&got);
    mpshm_block_release(&a);
    close(p[0]), close(p[1]);
}

int main(void)
{
    if (is_emulated())
        SKIP("valgrind has no locks that belong to an open file");
    set_up();
    run_in_a_session(a_daemon_keeps_its_blocks_whatever_it_closes);
    run_in_a_session(a_daemon_goes_on_sharing_and_its_sockets_are_left_alone);
    run_in_a_session(a_killed_parents_memory_returns_while_its_child_lives);
    run_in_a_session(a_child_attaches_after_the_folder_was_removed);
    run_in_a_session(a_child_attaches_after_the_socket_was_removed);
    run_in_a_session(the_manager_creates_the_folder_again);
    run_in_a_session(the_manager_of_an_ended_session_does_not_create_the_folder_again);
    run_in_a_session(a_tree_survives_the_loss_of_folder_and_manager);
    run_in_a_session(a_child_of_another_user_attaches);
    run_in_a_session(another_user_is_admitted_if_it_is_in_the_session);
    tear_down();
    return 0;
}
