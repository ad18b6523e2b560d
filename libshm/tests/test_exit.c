/* A program that has ended leaves nothing, whether it had no manager, a living one or a killed
 * one. */
#define _GNU_SOURCE
#include <sys/resource.h>

#include "memory.h"

static int nothing_is_left(void)
{
    return entries_in(runtime_dir, "mpshm-") == 0 &&
           (!own_dev_shm || entries_in("/dev/shm", "mpshm-") == 0);
}
#include "segment/segment.h"
#include "session/manager_start.h"
#include "session/wire.h"

/* A process that is killed closes its descriptors a moment later, one after the other. */
static int has_hung_up(struct mpshm__session *session)
{
    return !mpshm__manager_is_there(session) &&
           (session->sock.number < 0 || mpshm__has_hung_up(session->sock.number));
}

static void kill_manager(void)
{
    pid_t manager = manager_pid();

    CHECK(manager > 0);
    CHECK_EQ(kill(manager, SIGKILL), 0);
    EVENTUALLY(has_hung_up(mpshm__sessions[0]));
}

static void entered_and_never_shared(int strategy)
{
    (void)strategy;
    CHECK_EQ(mpshm_attach(), 0);
}

static void shared(int strategy)
{
    make_block(strategy, 1 << 20);
}

static void lost_its_manager(int strategy)
{
    make_block(strategy, 1 << 20);
    kill_manager();
}

/* A fork sends the manager a frame and waits for no answer. */
static void lost_a_manager_that_had_not_read_all(int strategy)
{
    make_block(strategy, 1 << 20);
    CHECK_EQ(kill(manager_pid(), SIGSTOP), 0);
    pid_t pid = forked();
    if (pid == 0)
        _exit(0);
    CHECK_EQ(reap(pid), 0);
    kill_manager();
}

static void forked_after_that(int strategy)
{
    lost_a_manager_that_had_not_read_all(strategy);
    pid_t pid = forked();
    if (pid == 0)
        _exit(0);
    CHECK_EQ(reap(pid), 0);
    CHECK(manager_pid() > 0); /* a new one, that notices deaths */
}

/* The longest-lived process is the last, even if it never talked to a manager. */
static void lost_its_manager_and_a_child(int strategy)
{
    CHECK_EQ(mpshm_attach(), 0);
    pid_t pid = forked();
    if (pid == 0) {
        make_block(strategy, 1 << 20);
        kill_manager();
        kill(getpid(), SIGKILL);
    }
    CHECK_EQ(reap(pid), -SIGKILL);
}

static void killed_with_its_manager(int strategy)
{
    make_block(strategy, 1 << 20);
    kill_manager();
    kill(getpid(), SIGKILL);
}

/* The moment between the creation of a named segment and its registration is short, so the test
 * creates that state itself. */
static void killed_while_making_a_segment(int strategy)
{
    mpshm_block b = make_block(MPSHM_FILE_DESCRIPTOR, 1);
    struct mpshm__session *session = ((struct mpshm__segment *)b.segment)->session;
    struct mpshm__segment *segment;

    CHECK_EQ(mpshm__segment_create(strategy, 1 << 20, 1, session->id,
                                   &session->control->slots[session->slot], &segment),
             0);
    kill(getpid(), SIGKILL);
}

static void killed_while_making_a_segment_with_its_manager(int strategy)
{
    mpshm_block b = make_block(MPSHM_FILE_DESCRIPTOR, 1);

    mpshm_block_release(&b);
    kill_manager();
    killed_while_making_a_segment(strategy);
}

static void killed_while_entering(int strategy)
{
    char path[200];
    (void)strategy;

    snprintf(path, sizeof(path), "%s/mpshm-%u", runtime_dir, (unsigned)geteuid());
    CHECK(mkdir(path, 0700) == 0 || errno == EEXIST);
    strcat(path, "/0123456789abcdef0123456789abcdef");
    CHECK_EQ(mkdir(path, 0700), 0);
    kill(getpid(), SIGKILL);
}

/* It may have no session, since the control file cannot be created; it reports that and removes
 * what it created. */
static void could_not_enter(int strategy)
{
    struct rlimit none = {0, 0}, before;
    mpshm_block b;

    signal(SIGXFSZ, SIG_IGN);
    if (!is_emulated()) {
        CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, before.rlim_max}), 0);
        CHECK_EQ(mpshm_block_allocate(strategy, 1000, 0, &b), -EMFILE);
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
        CHECK(nothing_is_left());
    }
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
    CHECK_EQ(mpshm_block_allocate(strategy, 1000, 0, &b), -EFBIG);
}

static int run(void (*program)(int), int strategy)
{
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        program(strategy);
        exit(0); /* exits in good order */
    }
    return reap(pid);
}

int main(void)
{
    set_up();
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(run(entered_and_never_shared, STRATEGIES[i]), 0);
        CHECK(nothing_is_left());
        CHECK_EQ(run(could_not_enter, STRATEGIES[i]), 0);
        CHECK(nothing_is_left());
        CHECK_EQ(run(shared, STRATEGIES[i]), 0);
        EVENTUALLY(nothing_is_left());
        CHECK_EQ(run(lost_its_manager, STRATEGIES[i]), 0);
        CHECK(nothing_is_left());
        CHECK_EQ(run(lost_a_manager_that_had_not_read_all, STRATEGIES[i]), 0);
        CHECK(nothing_is_left());
        CHECK_EQ(run(forked_after_that, STRATEGIES[i]), 0);
        EVENTUALLY(nothing_is_left());
        CHECK_EQ(run(lost_its_manager_and_a_child, STRATEGIES[i]), 0);
        CHECK(nothing_is_left());
        CHECK_EQ(run(killed_while_making_a_segment, STRATEGIES[i]), -SIGKILL);
        EVENTUALLY(nothing_is_left());
        /* No process is left to clean up; the next program's manager does. */
        CHECK_EQ(run(killed_with_its_manager, STRATEGIES[i]), -SIGKILL);
        CHECK_EQ(run(killed_while_making_a_segment_with_its_manager, STRATEGIES[i]), -SIGKILL);
        CHECK_EQ(run(killed_while_entering, STRATEGIES[i]), -SIGKILL);
        CHECK(!nothing_is_left());
        CHECK_EQ(run(shared, STRATEGIES[i]), 0);
        EVENTUALLY(nothing_is_left());
    }
    CHECK_EQ(rmdir(runtime_dir), 0);
    return 0;
}
