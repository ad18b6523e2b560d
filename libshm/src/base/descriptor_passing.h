/* A message and at most one descriptor over a Unix socket. */
#ifndef MPSHM_DESCRIPTOR_PASSING_H
#define MPSHM_DESCRIPTOR_PASSING_H

#include <stddef.h>

/* Send `len` bytes and descriptor `fd` (-1: none) in one sendmsg(2). The caller keeps `fd`. Returns
 * the number of bytes sent, or -errno. */
long mpshm__send_message(int sock, const void *data, size_t len, int fd, int flags);
/* Receive at most `len` bytes and a descriptor (-1: none), which the caller closes. Returns the
 * number of bytes; -EBADMSG after more than one descriptor or a truncated datagram, and -EMFILE
 * when the kernel dropped the descriptor because this process has too many. Nothing stays open
 * after an error. */
long mpshm__receive_message(int sock, void *data, size_t len, int *fd, int flags);

#endif
