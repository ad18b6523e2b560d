/* Passing descriptors over Unix sockets. */
#ifndef MPSHM_PUBLIC_DESCRIPTOR_H
#define MPSHM_PUBLIC_DESCRIPTOR_H
#include <stddef.h>

/* Send `len` bytes (1 or more) and the descriptor `fd` over the connected Unix socket `sock`. It
 * sends all bytes or returns an error. The caller still closes its own `fd`. -EPIPE when the peer
 * has gone. */
int mpshm_send_fd(int sock, int fd, const void *data, size_t len);

/* Receive exactly `len` bytes and one descriptor. The caller closes `*fd`.
 * -ECONNRESET when the peer left in the middle; -EBADMSG when the bytes came with no descriptor
 * or with more than one (all of them are closed); -EMFILE when the kernel dropped the descriptor
 * because this process has too many. */
int mpshm_recv_fd(int sock, void *data, size_t len, int *fd);

/* The user id of the process at the other end of a connected Unix socket, or -errno. */
long mpshm_peer_uid(int sock);

#endif
