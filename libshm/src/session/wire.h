/* What client and manager say to each other. */
#ifndef MPSHM_WIRE_H
#define MPSHM_WIRE_H

#include <stdint.h>

enum mpshm__op {
    MPSHM__HELLO = 1, /* a = the slot that I have locked. Answer: a = slot */
    MPSHM__CHILD,     /* with a socket: the connection of a child of mine. a = its slot or none.
                         There is no answer, so that a fork waits for nobody */
    MPSHM__REGISTER,  /* with a descriptor: here is a segment. a = entry that it has, or none.
                         Answer: a = entry */
    MPSHM__GET,       /* a = entry. Answer with its descriptor */
    MPSHM__CONTROL,   /* Answer with a descriptor of the control file, of a new description */
    MPSHM__ANSWER,    /* err = 0 or -errno */
    MPSHM__ADOPT,     /* a segment of a dead owner: size = of the block, nonce[0] = least data.
                         Answer: a = entry, with a descriptor; or -ENOENT and size = of all of them */
};
enum { MPSHM__NO_SLOT = 0xffffffffu, MPSHM__WIRE = 0x6d707302 };

struct mpshm__frame {
    uint32_t magic;
    uint16_t op;
    uint16_t strategy;
    int32_t err;
    uint32_t a;
    uint64_t nonce[2];
    uint64_t size;
    int32_t fd_number; /* the sender's own number of the descriptor that it sends */
    uint32_t reserved;
};

/* One frame over a SOCK_SEQPACKET socket, whole or an error. `fd` is -1 for none; the sender keeps
 * its own, the receiver closes what it gets. -ECONNRESET when the other has gone, -ETIMEDOUT when
 * the time `until` has come (on the clock of mpshm__now_ns), -EAGAIN when it is 0. */
int mpshm__send_frame(int sock, const struct mpshm__frame *frame, int fd, uint64_t until);
int mpshm__recv_frame(int sock, struct mpshm__frame *frame, int *fd, uint64_t until);

#endif
