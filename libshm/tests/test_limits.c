/* At a limit: many processes, no free slot, no free descriptor, and a control file of another
 * version. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "memory.h"
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

static void refuses_version_of(uint64_t magic, int strategy)
{
    unsigned char id[MPSHM_ID_SIZE] = {9, 9, (unsigned char)strategy};
    struct mpshm__control header = {.magic = magic};
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

static void another_version_is_refused_and_named(int strategy)
{
    refuses_version_of(MPSHM__MAGIC ^ (uint64_t)1 << 56, strategy);
    refuses_version_of(MPSHM__MAGIC, strategy); /* of the same layout */
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
    tear_down();
    return 0;
}
