/* A call with a table of descriptors of its own, for a process that can open none.
 *
 * Note [A table of its own]
 *   A process may lower its limit below the number of its open descriptors. Closing one that is
 *   kept in reserve then helps nothing, since a new one needs a number below the limit, and all of
 *   those are in use. So a thread copies the table (unshare(2)), closes the standard streams in its
 *   copy, and has their numbers. What it maps stays mapped when it ends; what it opens is
 *   closed. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "platform/platform.h"

struct call {
    int (*function)(void *);
    void *argument;
    int result;
};

static void *run(void *of)
{
    struct call *call = of;

    if (unshare(CLONE_FILES) < 0)
        return NULL; /* a sandbox: the result stays -EMFILE */
    for (int number = 0; number < 3; number++) {
        struct stat st;
        /* A daemon has closed its streams, so libshm's socket may have the number of one. */
        if (fstat(number, &st) == 0 && !S_ISSOCK(st.st_mode))
            close(number);
    }
    call->result = call->function(call->argument);
    return NULL;
}

int mpshm__call_with_own_descriptors(int (*function)(void *), void *argument)
{
    struct call call = {function, argument, -EMFILE};
    sigset_t all, before;
    pthread_t thread;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* no handler of the program runs in the thread */
    int err = pthread_create(&thread, NULL, run, &call);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err != 0)
        return -EMFILE;
    pthread_join(thread, NULL);
    return call.result;
}
