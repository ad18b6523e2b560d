/* Channels, which carry messages through shared memory. */
#ifndef MPSHM_PUBLIC_CHANNEL_H
#define MPSHM_PUBLIC_CHANNEL_H
#include <stdint.h>

/* A channel carries messages through a ring in shared memory, beside a pipe or a socketpair that
 * belongs to the caller. The pipe tells of the end of the file and of a broken pipe, and wakes a
 * sleeping reader; each call takes the descriptor `fd` of its own end of it. Any number of
 * processes may have an end. Messages are ordered and whole. A writer that is killed leaves no part
 * of a message, a reader that is killed takes no more than one. */
typedef struct mpshm_channel mpshm_channel;

/* How a reader notes the blocks of a message before it takes the message from the ring, so that the
 * reaper frees them if the reader is killed before it receives them. `prepare` returns 0 when notes
 * can be made, -EAGAIN when that would wait and may not; `begin` notes what is in the bytes and
 * returns the number of the notes, which count from `commit` on. */
typedef struct {
    int (*prepare)(int may_wait);
    uint64_t (*begin)(const void *data, uint64_t nbytes);
    void (*commit)(uint64_t number);
} mpshm_handle_log;

/* The notes of libshm, in this process's slot: for handles of its own session. */
const mpshm_handle_log *mpshm_own_handle_log(void);

/* Remove the notes of a reader with that number, which may be 0: the blocks are received, or the
 * program keeps their handles. */
void mpshm_handle_log_end(uint64_t number);

/* Remove the notes of handles that were made with MPSHM_NOTED, MPSHM_DROPPED at most, before another
 * process can get one of them. */
enum { MPSHM_DROPPED = 256 };
void mpshm_handle_log_drop(const unsigned char *const *handles, int count);

/* The functions that a call needs of its binding. `allocate` returns memory for a message of that
 * size, or NULL to leave the message in the ring (-ENOMEM); it is called again if the message's
 * writer died. `begin_wait` and `end_wait` surround each wait, so that a binding can let other
 * threads run; end_wait returns 0, or a negative number that the call gives up with. `resume` takes
 * the place of end_wait, if it is not NULL, where a message has been taken and in a send that does
 * not wait: it runs no signal handlers of the program, whose exception would take the message with
 * it. `position`, if it is not NULL, gets the number of a message that was sent or received: both
 * sides get the same, and no other message of that ring has it. `carries` tells a send that there
 * are handles in the message. With `log`, which may be NULL, a reader notes those, and `taken`
 * gets the number of the notes. `leave`, if it is not NULL, runs just before a message that is sent
 * becomes its reader's, if it carries handles. */
typedef struct {
    void *self;
    void *(*allocate)(void *self, uint64_t nbytes);
    void (*begin_wait)(void *self);
    int (*end_wait)(void *self);
    int (*resume)(void *self);
    uint64_t *position;
    int carries;
    const mpshm_handle_log *log;
    uint64_t *taken;
    void (*leave)(void *self);
} mpshm_waiter;

/* Make a channel: ends[0] writes and ends[1] reads, or both do both if `duplex`. The caller closes
 * each. -EOPNOTSUPP where there are no memfds; -EMFILE, also when half of the descriptors that this
 * process may have are in use, since a channel takes one more than its pipe; -ENOMEM. */
int mpshm_channel_create(int duplex, mpshm_channel **ends);

/* Open end 0 or 1 of a channel whose memory another process has passed as the descriptor `object`,
 * which is taken over on success. -EBADMSG when it is no memory of libshm, -EPROTO when another
 * version of libshm made it. */
int mpshm_channel_open(int object, int side, mpshm_channel **out);

/* Open the other end in this process, over the memory of `end`. The caller closes it. */
int mpshm_channel_open_other(mpshm_channel *end, mpshm_channel **out);

/* Close an end. The caller closes its descriptor of the pipe first, so that a writer that hears of
 * it here finds the pipe broken. */
void mpshm_channel_close(mpshm_channel *end);

/* The descriptor of the channel's memory, to be passed to another process; -EBADF when the program
 * has closed it. It stays the channel's. */
int mpshm_channel_object(mpshm_channel *end);

/* Close the descriptor of the channel's memory in this process, which passes it on no more. */
void mpshm_channel_forget_object(mpshm_channel *end);

/* The number of the ring that the end sends to, or receives from, the same in each process: for
 * diagnostics, since a later process with the same pid may repeat one. 0 if there is none. */
uint64_t mpshm_channel_ring_id(mpshm_channel *end, int sends);

/* The ends that this process has open. */
uint64_t mpshm_channel_count(void);

/* The messages that were sent and not received, and the bytes that they take in a ring. */
typedef struct {
    uint64_t messages, nbytes;
} mpshm_unread;

/* Count what waits in a channel whose memory is `object`, of any process of this user, in each of
 * its directions. `out` has room for two; returns how many there are. -EBADMSG when it is no memory
 * of libshm, -EPROTO when it is no channel of this version. It writes nothing there, and takes no
 * lock. */
int mpshm_channel_unread(int object, mpshm_unread *out);

/* Send a message. A negative timeout waits for room without end; otherwise -EAGAIN when there is
 * none in time, and always -EAGAIN for a message of more than 64 KiB, which passes through the ring
 * in parts. -EPIPE when no process can read it any more. */
int mpshm_channel_send(mpshm_channel *end, int fd, const void *data, uint64_t nbytes,
                       int64_t timeout_ns, const mpshm_waiter *waiter);

/* A queue: a channel of one direction whose messages are counted. Set the bound of a new one, the
 * most messages that it may have, before another process has an end.
 *
 * put: send a message if the queue has a place. -ENOSPC when it is full for that time; -EAGAIN,
 * like a send that must not wait, when it has a place and the ring no room: then the process can
 * reserve the place, and a thread of it sends the message when there is room. That thread begins
 * the reservations before, and ends them, which drops those that are left.
 * reserve: 0, or -ENOSPC when the queue is full. unreserve: give a reservation back.
 * send_reserved: wait for room without end; the reservation is used up if it returns 0.
 * wait_for_place: 0 when the queue has a place, which another process may take; -ENOSPC.
 * messages: how many are in the queue; `fd` may be -1 when the end is closed, as for join. */
void mpshm_channel_set_bound(mpshm_channel *end, uint32_t bound);
int mpshm_channel_is_queue(mpshm_channel *end);
int mpshm_channel_put(mpshm_channel *end, int fd, const void *data, uint64_t nbytes,
                      int64_t timeout_ns, const mpshm_waiter *waiter);
void mpshm_channel_begin_reservations(mpshm_channel *end);
void mpshm_channel_end_reservations(mpshm_channel *end);
int mpshm_channel_reserve(mpshm_channel *end, int fd, const mpshm_waiter *waiter);
void mpshm_channel_unreserve(mpshm_channel *end);
int mpshm_channel_send_reserved(mpshm_channel *end, int fd, const void *data, uint64_t nbytes,
                                const mpshm_waiter *waiter);
int mpshm_channel_wait_for_place(mpshm_channel *end, int fd, int64_t timeout_ns,
                                 const mpshm_waiter *waiter);
int64_t mpshm_channel_messages(mpshm_channel *end, int fd, const mpshm_waiter *waiter);
/* 1 while the oldest bytes in the ring are the rest of a message that a reader has begun to take,
 * or that a reader was killed in the middle of. */
int mpshm_channel_has_rest(mpshm_channel *end);

/* Tasks: each message of a queue is one until task_done, -EINVAL when there is none. join: wait
 * until there is none; -EAGAIN at the deadline. tasks: how many there are. */
int mpshm_channel_task_done(mpshm_channel *end);
int mpshm_channel_join(mpshm_channel *end, int fd, int64_t timeout_ns, const mpshm_waiter *waiter);
int64_t mpshm_channel_tasks(mpshm_channel *end, int fd);

/* Two locks for the program, 0 and 1, which the channel itself does not use: -EAGAIN at the
 * deadline; -EPERM from a release of one that nobody has. */
int mpshm_channel_acquire(mpshm_channel *end, int which, int64_t timeout_ns,
                          const mpshm_waiter *waiter);
int mpshm_channel_release(mpshm_channel *end, int which);

/* Receive a message into the memory that `allocate` returned: 1; 0 at the end of the file; -EAGAIN
 * when none came in time (a negative timeout waits without end). */
int mpshm_channel_receive(mpshm_channel *end, int fd, int64_t timeout_ns,
                          const mpshm_waiter *waiter);

/* The same without a wait, for a caller that waits for `fd` to be readable. -EMSGSIZE when the next
 * message is one of more than 64 KiB, whose parts may be under way: it is left to a caller that may
 * wait. After -EAGAIN the descriptor becomes readable when there is a message. */
int mpshm_channel_take(mpshm_channel *end, int fd, const mpshm_waiter *waiter);

/* Receive a message that is there already: 1, or -EAGAIN. Unlike mpshm_channel_take it leaves the
 * descriptor as it is, and makes no system call. */
int mpshm_channel_next(mpshm_channel *end, int fd, const mpshm_waiter *waiter);

/* A channel of mpshm_channel_wait_any, and what it has found there. */
typedef struct {
    mpshm_channel *end;
    int fd;
    int ready; /* 0, MPSHM_HAS_MESSAGE, or MPSHM_HUNG_UP when there is no message either */
} mpshm_awaited_channel;
enum { MPSHM_HAS_MESSAGE = 1, MPSHM_HUNG_UP = 2 };

/* Wait, first in a spin, until one of `n` channels has a message or has hung up, or one of `m`
 * descriptors is readable or in error: sets `ready` and `readable` of each, and returns how many;
 * 0 at the end of the timeout or after a signal, or what end_wait returned. A negative timeout
 * waits without end. The caller is the only reader of each channel. */
int mpshm_channel_wait_any(mpshm_awaited_channel *channels, int n, const int *fds, int m,
                           unsigned char *readable, int64_t timeout_ns, const mpshm_waiter *waiter);

/* Look for an answer, twice as long as a wait would spin for a message: 1 if it is there, 0, or
 * what end_wait returned. */
int mpshm_channel_spin(mpshm_channel *end, const mpshm_waiter *waiter);

/* Messages that their sender may take back. It numbers them from 0 on, in the order in which it
 * sends them, and each is either claimed by the receiver or taken back by the sender: claims.c.
 *
 * claim: the receiver has received the message `number`, after all before it; 1 if it may begin
 * it, 0 if it was taken back. take_back: the sender has the messages from the result to `until`
 * again, which it has sent; none if that is `until`. claimed: how many messages are not the
 * sender's any more. None of them waits. */
int mpshm_channel_claim(mpshm_channel *end, uint64_t number);
uint64_t mpshm_channel_take_back(mpshm_channel *end, uint64_t until);
uint64_t mpshm_channel_claimed(mpshm_channel *end);

/* Let every sender that sleeps for room, in any process, ask its end_wait whether to go on. */
void mpshm_channel_wake_senders(mpshm_channel *end);

/* 1 when a message or the end of the file can be received within the timeout, otherwise 0. */
int mpshm_channel_poll(mpshm_channel *end, int fd, int64_t timeout_ns, const mpshm_waiter *waiter);

/* 1, once, after a receive or poll has found bytes in the pipe that no channel has written: a
 * process uses the descriptor as that of an ordinary connection, whose messages are lost. An
 * end_wait may call it. */
int mpshm_channel_take_foreign(mpshm_channel *end);

/* Call it before the program waits for `fd` with select, poll or epoll: from then on the descriptor
 * is readable while, and only while, there is something to receive. That costs a message to an
 * empty channel two system calls. */
void mpshm_channel_selectable(mpshm_channel *end, int fd);

/* The caller has closed its descriptor of the reading end; `fd` is another one of the same pipe. If
 * no process has a reading end any more, the ring has all the messages that it will ever have
 * when this returns: the next send of each writer is -EPIPE. 0, or what end_wait returned. */
int mpshm_channel_stop_reading(mpshm_channel *end, int fd, const mpshm_waiter *waiter);

#endif
