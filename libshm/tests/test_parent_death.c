/* The parent-death signal: it comes when the parent dies, and also if it had died before. */
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>

#include "check.h"
#include "mpshm.h"

/* Start a child of a child; the middle one dies by SIGKILL. Returns the read end of a pipe that
 * only the grandchild has open, so its hang-up is the grandchild's death. */
static int orphan(int arm_before_death)
{
    int life[2], gone[2], ready[2];

    CHECK(pipe(life) == 0 && pipe(gone) == 0 && pipe(ready) == 0);
    pid_t middle = fork();
    CHECK(middle >= 0);
    if (middle == 0) {
        pid_t me = getpid();
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            char byte;
            close(life[0]);
            close(gone[1]);
            close(ready[0]);
            if (arm_before_death)
                CHECK_EQ(mpshm_set_pdeathsig(SIGKILL, me), 0);
            CHECK_EQ(write(ready[1], "r", 1), 1);
            CHECK(read(gone[0], &byte, 1) >= 0); /* until the middle one is reaped */
            if (!arm_before_death)
                mpshm_set_pdeathsig(SIGKILL, me); /* too late: must raise at once */
            pause();
        }
        close(life[1]);
        pause();
    }
    char byte;
    close(life[1]);
    close(gone[0]);
    close(ready[1]);
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    CHECK_EQ(kill(middle, SIGKILL), 0);
    CHECK_EQ(reap(middle), -SIGKILL);
    close(gone[1]);
    close(ready[0]);
    return life[0];
}

static void expect_death(int life)
{
    struct pollfd p = {.fd = life, .events = POLLIN};

    CHECK_EQ(poll(&p, 1, 20000), 1);
    CHECK(p.revents & POLLHUP);
    close(life);
}

int main(void)
{
    int signum = -1;

    expect_death(orphan(1));
    expect_death(orphan(0));

    CHECK_EQ(mpshm_set_pdeathsig(SIGUSR1, 0), 0);
    CHECK_EQ(prctl(PR_GET_PDEATHSIG, &signum), 0);
    CHECK_EQ(signum, SIGUSR1);
    CHECK_EQ(mpshm_set_pdeathsig(0, 0), 0);
    CHECK_EQ(mpshm_set_pdeathsig(9999, 0), -EINVAL);
    return 0;
}
