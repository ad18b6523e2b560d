/* The list of processes: what each holds, and who sent what nobody has received. */
#define _GNU_SOURCE
#include <spawn.h>

#include "memory.h"
#include "session/session.h"

enum { ROOM = 16, NBYTES = 40000 };

static mpshm_session_info sessions[ROOM];
static mpshm_process_info processes[ROOM];

static int lists_one_session(int *n)
{
    int n_sessions;

    mpshm_list_processes(sessions, ROOM, &n_sessions, processes, ROOM, n);
    return n_sessions == 1;
}

static mpshm_process_info *listed(pid_t pid)
{
    int n;

    EVENTUALLY(lists_one_session(&n)); /* that of the test before may be about to end */
    CHECK(n <= ROOM);
    for (int i = 0; i < n; i++)
        if (processes[i].pid == pid)
            return &processes[i];
    return NULL;
}

/* A child sends two blocks that no process receives, and is killed. */
static pid_t sender_that_died(int strategy, const char *site)
{
    pid_t pid = forked();

    if (pid == 0) {
        unsigned char handle[MPSHM_HANDLE_SIZE];
        mpshm_block b = make_block(strategy, NBYTES);
        mpshm_set_site(site);
        CHECK_EQ(mpshm_block_send(&b, 0, handle), 0);
        usleep(30000);
        mpshm_set_site(NULL);
        b = make_block(strategy, 100);
        CHECK_EQ(mpshm_block_send(&b, 0, handle), 0);
        kill(getpid(), SIGKILL);
    }
    CHECK_EQ(reap(pid), -SIGKILL);
    return pid;
}

static void a_message_names_its_dead_sender_its_age_and_its_line(int strategy)
{
    mpshm_block mine = make_block(strategy, 5000);
    pid_t pid = sender_that_died(strategy, "produce (a.py:7)\n");

    EVENTUALLY(listed(pid) != NULL && !listed(pid)->attached);
    mpshm_process_info *gone = listed(pid);
    CHECK_EQ(gone->held_blocks, 0);
    CHECK_EQ(gone->in_flight_blocks, 2);
    CHECK_EQ(gone->in_flight_bytes, NBYTES + 100);
    CHECK_EQ(gone->oldest_bytes, NBYTES); /* and not the block sent 30 ms later */
    CHECK(gone->oldest_ns >= 20000000 && gone->oldest_ns < 60000000000u);
    CHECK(strcmp(gone->oldest_site, "produce (a.py:7)?") == 0);
    mpshm_process_info *self = listed(getpid());
    CHECK(self->attached);
    CHECK_EQ(self->held_blocks, 1);
    CHECK_EQ(self->held_bytes, 5000);
    CHECK_EQ(self->in_flight_blocks, 0);
    mpshm_block_release(&mine);
}

static void a_received_message_is_in_flight_no_more(int strategy)
{
    unsigned char handle[MPSHM_HANDLE_SIZE];
    mpshm_block b = make_block(strategy, NBYTES), got;

    CHECK_EQ(mpshm_block_send(&b, 0, handle), 0);
    CHECK_EQ(listed(getpid())->in_flight_bytes, NBYTES);
    CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &got), 0);
    CHECK_EQ(listed(getpid())->in_flight_bytes, 0);
    mpshm_block_release(&got);
    mpshm_block_release(&b);
}

static void more_lines_than_a_session_remembers_do_no_harm(int strategy)
{
    unsigned char handle[MPSHM_HANDLE_SIZE];
    mpshm_block b = make_block(strategy, NBYTES), got;
    struct mpshm__control *control = mpshm__sessions[0]->control;
    char text[300];

    /* A process was killed while it wrote these. */
    for (int i = 0; i < 10; i++)
        atomic_store(&control->sites[i].state, MPSHM__SITE_BEGUN);
    for (int i = 0; i < 2 * MPSHM__SITES; i++) {
        memset(text, 'x', sizeof(text));
        snprintf(text, sizeof(text), "line %d %0200d", i % 400, 0);
        mpshm_set_site(text);
        CHECK_EQ(mpshm_block_send(&b, 0, handle), 0);
        const char *site = listed(getpid())->oldest_site;
        CHECK(strncmp(site, text, MPSHM_SITE_SIZE - 1) == 0 || (site[0] == 0 && i >= 200));
        CHECK_EQ(mpshm_block_receive(handle, sizeof(handle), 0, &got), 0);
        mpshm_block_release(&got);
    }
    CHECK_EQ(listed(getpid())->in_flight_blocks, 0);
    mpshm_set_site("");
    mpshm_block_release(&b);
}

static void a_list_without_room_counts_and_writes_nothing_beyond(int strategy)
{
    mpshm_block b = make_block(strategy, 100);
    int n_sessions, n;

    memset(processes, 0x55, sizeof(processes));
    mpshm_list_processes(NULL, 0, &n_sessions, processes, 0, &n);
    CHECK_EQ(n_sessions, 1);
    CHECK_EQ(n, 1);
    CHECK_EQ(processes[0].pid, 0x55555555);
    mpshm_block_release(&b);
}

/* The control file is all that a foreign process could disturb; it is compared byte by byte. */
static void looking_from_outside_writes_nothing(int strategy)
{
    mpshm_block b = make_block(strategy, NBYTES);
    size_t size = sizeof(struct mpshm__control);
    struct mpshm__control *control = mpshm__sessions[0]->control;
    char *before = malloc(size);

    CHECK(before != NULL);
    /* The manager writes the limit of the cache there, until it has found for a while that nothing
     * is cached. */
    EVENTUALLY(atomic_load(&control->cache_unwatched) == 1);
    memcpy(before, control, size);
    /* A fork would attach the child, which writes. */
    char *words[] = {"observer", NULL};
    pid_t pid;
    CHECK_EQ(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, words, environ), 0);
    CHECK_EQ(reap(pid), 0);
    for (size_t i = 0; i < size; i++)
        if (before[i] != ((char *)control)[i]) {
            fprintf(stderr, "the control file has changed at byte %zu\n",
                    i); /* tells whose it is */
            break;
        }
    CHECK_EQ(memcmp(before, control, size), 0);
    free(before);
    mpshm_block_release(&b);
}

/* In a process of its own, which shares nothing. */
static int look(void)
{
    pid_t parent = getppid();

    return listed(parent) != NULL && listed(parent)->held_bytes == NBYTES ? 0 : 4;
}

static void a_manager_that_is_replaced_is_counted(int strategy)
{
    mpshm_block b = make_block(strategy, NBYTES);
    pid_t manager = manager_pid();

    CHECK(listed(getpid()) != NULL);
    CHECK_EQ(sessions[0].manager_starts, 1);
    CHECK_EQ(sessions[0].processes, 1);
    kill(manager, SIGKILL);
    EVENTUALLY(manager_pid() == 0);
    pid_t pid = forked(); /* a new process needs a manager */
    if (pid == 0) {
        mpshm_block other = make_block(strategy, 100);
        mpshm_block_release(&other);
        _exit(0);
    }
    CHECK_EQ(reap(pid), 0);
    CHECK(listed(getpid()) != NULL);
    CHECK_EQ(sessions[0].manager_starts, 2);
    mpshm_block_release(&b);
}

int main(int argc, char **argv)
{
    (void)argc;
    if (strcmp(argv[0], "observer") == 0)
        return look();
    set_up();
    run_in_a_session(a_message_names_its_dead_sender_its_age_and_its_line);
    run_in_a_session(a_received_message_is_in_flight_no_more);
    run_in_a_session(more_lines_than_a_session_remembers_do_no_harm);
    run_in_a_session(a_list_without_room_counts_and_writes_nothing_beyond);
    if (!is_emulated()) /* valgrind is /proc/self/exe then */
        run_in_a_session(looking_from_outside_writes_nothing);
    run_in_a_session(a_manager_that_is_replaced_is_counted);
    tear_down();
    return 0;
}
