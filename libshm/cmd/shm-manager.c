/* shm-manager FOLDER: the manager of one session. libshm starts it, with the listening socket as
 * descriptor 3 and the control file as 4. It is not meant to be started by hand. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mpshm.h"
#include "platform/platform.h"

/* 1 when a sandbox refuses a call without which the manager could serve nobody. The process that
 * started it learns that from the exit status, and starts no other. */
static int is_refused(int listener)
{
    int fd = eventfd(0, EFD_CLOEXEC);

    if (fd < 0)
        return 1;
    close(fd);
    if (accept4(-1, NULL, NULL, 0) >= 0 || errno != EBADF)
        return 1;
    return mpshm__peer_uid(listener) < 0;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr,
                "usage: shm-manager FOLDER (started by libshm, with a socket as descriptor 3)\n");
        return 2;
    }
    if (is_refused(3))
        return 1;
    /* Fork, so that the process that started it does not have to wait for this child. */
    switch (fork()) {
    case -1:
        return 1;
    case 0:
        break;
    default:
        _exit(0); /* _exit, because this process has nothing to clean up, and its parent waits for
                     it */
    }
    /* Close the descriptors that were inherited without close-on-exec (a port, a pipe). */
    mpshm__close_from(5);
    if (chdir("/") < 0)
        return 1;
    return mpshm_manager_run(3, fcntl(4, F_GETFD) < 0 ? -1 : 4, argv[1]) < 0;
}
