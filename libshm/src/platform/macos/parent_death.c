/* A signal at the death of the parent, on macOS: the kernel sends none, so a thread waits for it.
 *
 * As on Linux, a fork cancels the request: the child has no such thread and may ask again. Unlike
 * on Linux, the parent is the process and not the thread that forked, and an exec cancels it, too.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/event.h>
#include <unistd.h>

#include "mpshm.h"
#include "platform/platform.h"

static _Atomic int wanted;  /* the signal, or 0 */
static _Atomic int watched; /* the pid of the process whose thread is waiting */

static void *wait_for_exit(void *arg)
{
    int queue = (int)(intptr_t)arg;
    struct kevent event;
    long n = MPSHM__RETRY(kevent(queue, NULL, 0, &event, 1, NULL));
    int signum = atomic_load(&wanted);

    close(queue);
    if (n == 1 && signum != 0)
        kill(getpid(), signum);
    return NULL;
}

/* Returns 0 also when the parent has died already: the caller checks afterwards. */
static int watch(pid_t parent)
{
    struct kevent event;
    pthread_t thread;
    int err, queue = kqueue();

    if (queue < 0)
        return -errno;
    fcntl(queue, F_SETFD, FD_CLOEXEC);
    EV_SET(&event, (uintptr_t)parent, EVFILT_PROC, EV_ADD | EV_ONESHOT, NOTE_EXIT, 0, NULL);
    if (MPSHM__RETRY(kevent(queue, &event, 1, NULL, 0, NULL)) < 0) {
        err = errno == ESRCH ? 0 : -errno;
        close(queue);
        return err;
    }
    err = pthread_create(&thread, NULL, wait_for_exit, (void *)(intptr_t)queue);
    if (err != 0) {
        close(queue);
        return -err;
    }
    pthread_detach(thread);
    return 0;
}

int mpshm_set_pdeathsig(int signum, int parent)
{
    pid_t expected = parent ? (pid_t)parent : getppid();
    int err, self = (int)getpid();

    if (signum < 0 || signum >= NSIG)
        return -EINVAL;
    atomic_store(&wanted, signum);
    if (signum == 0)
        return 0;
    if (atomic_exchange(&watched, self) != self) {
        err = watch(expected);
        if (err < 0) {
            atomic_store(&watched, 0);
            return err;
        }
    }
    if (getppid() != expected)
        return raise(signum) != 0 ? -errno : 0;
    return 0;
}
