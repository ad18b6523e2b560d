/* The process at the other end of a socket, as far as the kernel tells. */
#define _GNU_SOURCE
#include <sys/socket.h>

#include "system/system.h"

/* peer(fd) -> (address family, pid): family -1 if `fd` is not a socket, pid 0 if it is unknown.
 * No descriptor is made, and the socket does not change. */
PyObject *mp_py_peer(PyObject *module, PyObject *number)
{
    struct sockaddr_storage name;
    socklen_t len = sizeof(name);
    int family = -1, pid = 0;
    long fd = PyLong_AsLong(number);

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
