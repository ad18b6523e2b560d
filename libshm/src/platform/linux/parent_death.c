/* A signal at the death of the parent, without the race against a parent that has died already. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "mpshm.h"
#include "platform/platform.h"

int mpshm_set_pdeathsig(int signum, int parent)
{
    pid_t expected = parent ? (pid_t)parent : getppid();

    if (prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0) < 0)
        return -errno;
    /* The kernel sends the signal when the parent dies *after* this call. If it died before,
     * this process has a new parent by now and the signal will never come, so the call raises
     * it. The request comes first and the check second, so one of the two notices a death in
     * between, and at worst both do. */
    if (signum != 0 && getppid() != expected)
        return raise(signum) != 0 ? -errno : 0;
    return 0;
}
