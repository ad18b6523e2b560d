/* A send that waits for the lock of a killed writer, and whose signal handler closes the
 * descriptor and raises: the next writer's message is there, and wakes a reader that selects. */
#define _GNU_SOURCE
#include "channel.h"
#include "channel/channel.h"

struct scene {
    struct line line;
    pid_t holder; /* has the lock */
    int others;   /* a pipe with a byte in it, which gets the number of the closed descriptor */
};

static void kill_the_holder(void *self)
{
    struct scene *scene = self;

    kill(scene->holder, SIGKILL);
    CHECK_EQ(waitpid(scene->holder, NULL, 0), scene->holder);
}

static int close_and_raise(void *self)
{
    struct scene *scene = self;

    CHECK_EQ(dup2(scene->others, scene->line.to), scene->line.to);
    return -ECANCELED;
}

static void the_descriptor_is_closed_while_its_lock_is_repaired(int duplex)
{
    struct scene scene = {.line = line_open(duplex)};
    int kept = dup(scene.line.to), ready[2], others[2];
    char byte;

    mpshm_channel_selectable(scene.line.reader, scene.line.from);
    CHECK_EQ(pipe(ready), 0);
    CHECK_EQ(duplex ? socketpair(AF_UNIX, SOCK_STREAM, 0, others) : pipe(others), 0);
    scene.others = others[1];
    CHECK_EQ(write(others[1], "", 1), 1);
    scene.holder = fork();
    if (scene.holder == 0) {
        CHECK_EQ(mpshm__channel_lock(scene.line.writer, MPSHM__TO_WRITE, scene.line.to,
                                     MPSHM__FOREVER, WAITER(NULL)),
                 0);
        CHECK_EQ(write(ready[1], "", 1), 1);
        pause();
    }
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    mpshm_waiter waiter = {
        &scene, received_allocate, kill_the_holder, close_and_raise, NULL, NULL, 0, NULL, NULL,
        NULL};
    CHECK_EQ(mpshm_channel_send(scene.line.writer, scene.line.to, "12345678", 8, -1, &waiter),
             -ECANCELED);
    CHECK(!readable(scene.line.from));
    CHECK_EQ(dup2(kept, scene.line.to), scene.line.to);
    CHECK_EQ(send_number(&scene.line, 7, 100, 0), 0);
    CHECK(readable(scene.line.from));
    CHECK_EQ(receive_number(&scene.line, 0), 7);
    CHECK(!readable(scene.line.from));
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(others[i]);
    }
    close(kept);
    line_close(&scene.line);
}

int main(void)
{
#ifdef __SANITIZE_THREAD__
    SKIP("the thread sanitizer misses that a timed wait takes the lock of a dead holder");
#endif
    alarm(60);
    the_descriptor_is_closed_while_its_lock_is_repaired(0);
    the_descriptor_is_closed_while_its_lock_is_repaired(1);
    return 0;
}
