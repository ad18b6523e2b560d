/* A signal when the parent dies, without the race against a parent that is already gone. */
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
    /* The kernel sends the signal when the parent dies *after* this call. If it died before, we
     * have a new parent by now and nothing will ever come, so we send it ourselves. Armed first
     * and looked afterwards: a death in between is seen by one of the two, at worst by both. */
    if (signum != 0 && getppid() != expected)
        return raise(signum) != 0 ? -errno : 0;
    return 0;
}
