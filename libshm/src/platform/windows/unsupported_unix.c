/* Unix calls that Windows does not have: a signal at the parent's death, descriptors over a
 * socket, and the user at its other end. A job object and DuplicateHandle serve similar
 * purposes, but the other side has to ask for them, so they do not fit these functions. */
#include <errno.h>

#include "mpshm.h"

int mpshm_set_pdeathsig(int signum, int parent)
{
    (void)signum, (void)parent;
    return -ENOSYS;
}

int mpshm_send_fd(int sock, int fd, const void *data, size_t len)
{
    (void)sock, (void)fd, (void)data, (void)len;
    return -ENOSYS;
}

int mpshm_recv_fd(int sock, void *data, size_t len, int *fd)
{
    (void)sock, (void)data, (void)len, (void)fd;
    return -ENOSYS;
}

long mpshm_peer_uid(int sock)
{
    (void)sock;
    return -ENOSYS;
}
