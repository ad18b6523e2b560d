/* Who is at the other end of a descriptor, as far as the kernel tells. */
#define _GNU_SOURCE
#include <sys/socket.h>

#include "native.h"

/* peer(fd) -> (address family, pid): family -1 when `fd` is no socket, pid 0 when it is not known.
 * No descriptor is made, and the socket stays as it is. */
PyObject *mp_peer(PyObject *module, PyObject *number)
{
    struct sockaddr_storage name;
    socklen_t len = sizeof(name);
    int family = -1, pid = 0;
    long fd = PyLong_AsLong(number);
    (void)module;

    if (fd == -1 && PyErr_Occurred())
        return NULL;
    if (getsockname((int)fd, (struct sockaddr *)&name, &len) == 0)
        family = name.ss_family;
#ifdef SO_PEERCRED
    struct ucred peer;
    len = sizeof(peer);
    if (family == AF_UNIX && getsockopt((int)fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0)
        pid = peer.pid;
#endif
    return Py_BuildValue("(ii)", family, pid);
}
