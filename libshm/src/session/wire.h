/* The frames that client and manager exchange. */
#ifndef MPSHM_WIRE_H
#define MPSHM_WIRE_H

#include <stdint.h>

enum mpshm__op {
    MPSHM__HELLO = 1, /* a = the slot that the sender has locked. Answer: a = slot */
    MPSHM__CHILD,     /* with a socket: the connection of the sender's child. a = its slot or none.
                         There is no answer, so a fork does not wait */
    MPSHM__REGISTER,  /* with a descriptor of a segment. a = its index, or none for a new segment.
                         Answer: a = index */
    MPSHM__GET,       /* a = index of a segment. Answer: its descriptor */
    MPSHM__CONTROL,   /* Answer: a descriptor of the control file, with a new description */
    MPSHM__ANSWER,    /* err = 0 or -errno */
    MPSHM__ADOPT,     /* ask for a dead owner's segment. size = of the block, nonce[0] = least data.
                         Answer: a = index, with a descriptor; or -ENOENT and size = bytes of data
                         in all such segments */
    MPSHM__MEMBER,    /* the first frame of another user's process, with a descriptor of the control
                         file. There is no answer */
};
enum { MPSHM__NO_SLOT = 0xffffffffu, MPSHM__WIRE = 0x6d707302 };
/* A client takes a manager that is silent for so long for stopped. A listing asks the managers of
 * other programs, and meanwhile no other thread of its process uses shared memory. */
enum { MPSHM__ANSWER_WITHIN_S = 10, MPSHM__LISTED_WITHIN_S = 1 };

struct mpshm__frame {
    uint32_t magic;
    uint16_t op;
    uint16_t strategy;
    int32_t err;
    uint32_t a;
    uint64_t nonce[2];
    uint64_t size;
    int32_t fd_number; /* the sender's number of the descriptor that it sends */
    uint32_t reserved;
};

/* Send or receive one frame over a SOCK_SEQPACKET socket, whole or with an error. `fd` is -1 for
 * none; the sender keeps its own, the receiver closes the one that it gets. -ECONNRESET when the
 * peer has gone, -ETIMEDOUT at the time `until` (on the clock of mpshm__now_ns), -EAGAIN instead of
 * waiting when `until` is 0. */
int mpshm__send_frame(int sock, const struct mpshm__frame *frame, int fd, uint64_t until);
int mpshm__recv_frame(int sock, struct mpshm__frame *frame, int *fd, uint64_t until);
/* 1 when the peer has closed the connection or has died, whatever it left to read or unread. */
int mpshm__has_hung_up(int sock);

#endif
