#ifndef MPSHM_H
#define MPSHM_H
#include <stddef.h>
#include <stdint.h>

/* mpshm: shared memory between processes, made to be bound from other languages.
 *
 * Read it from top to bottom: conventions, process control, passing descriptors, blocks, channels,
 * memory by address, locks, diagnostics, sessions.
 *
 * Conventions
 *   - A function that can fail returns an int. 0 or more is success, a negative number is -errno;
 *     errno itself is undefined. Nothing is printed, nothing aborts.
 *   - A block is a reference that its filler must give back: mpshm_block_allocate,
 *     mpshm_block_receive, mpshm_block_find and mpshm_block_at fill one in, mpshm_block_release
 *     gives it back. Results come through the last parameter, which a failed call leaves as it was.
 *   - Every descriptor is created close-on-exec. No call fails with EINTR,
 *     except those with a timeout.
 *   - Sizes are in bytes. Any thread may call any function, but no thread may release a block while
 *     another thread uses the same mpshm_block.
 *   - This file is also the interface definition that the Python binding compiles, so it is plain
 *     C: enums instead of macros, no inline functions. */

/* "X.Y.Z", the version of the library that is linked in. A static string. */
const char *mpshm_version(void);

/* ---- Process control ---------------------------------------------------------------------- */

/* Ask the kernel to send `signum` to this process when its parent dies; 0 cancels the request.
 * `parent` is the pid that the caller believes to be its parent. If that process has died already,
 * the call raises the signal at once, so no orphan is missed. Pass 0 for the present parent.
 * "Parent" means the *thread* that forked: the signal also comes when that thread ends.
 * -EINVAL for a signal that does not exist; -ENOSYS where the platform has no such signal. */
int mpshm_set_pdeathsig(int signum, int parent);

enum { MPSHM_THREAD_NAME_SIZE = 16 };

/* Name the calling thread for ps and debuggers. The kernel keeps 15 bytes: a longer name is cut
 * there, between two UTF-8 characters. */
int mpshm_set_thread_name(const char *name);

/* Read the calling thread's name into `name`, MPSHM_THREAD_NAME_SIZE bytes. */
int mpshm_get_thread_name(char *name);

/* ---- Passing descriptors ------------------------------------------------------------------- */

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

/* ---- Blocks -------------------------------------------------------------------------------- */

/* A block is an allocation of shared memory. The processes that share blocks form a *session*: the
 * first process, its descendants, and every process that receives a handle. No set-up is needed:
 * the first call that needs the session's manager finds or starts it. After a fork, parent and
 * child both have a reference to each block of the parent.
 *
 * A strategy says how memory is created and how another process attaches it:
 *
 *   MPSHM_FILE_DESCRIPTOR  sealed memfds, attached by passing a descriptor. They have no name that
 *                          could leak, and the size of /dev/shm does not limit them. They are
 *                          sparse: memory is used when it is touched (under strict overcommit it is
 *                          reserved when it is handed out).
 *   MPSHM_FILE_SYSTEM      POSIX shared memory objects with 128 random bits in the name and mode
 *                          0600. Their file system has a size, so memory is reserved before it is
 *                          handed out: a full /dev/shm is -ENOSPC here and not a SIGBUS later. */
enum mpshm_strategy { MPSHM_FILE_DESCRIPTOR = 1, MPSHM_FILE_SYSTEM = 2 };

enum { MPSHM_ID_SIZE = 16, MPSHM_NAME_SIZE = 48, MPSHM_HANDLE_SIZE = 56 };

/* One reference of this process to a block. The caller may read `data` and `nbytes`; the rest
 * belongs to the library. The caller gives it back with mpshm_block_release. */
typedef struct {
    void *data;
    uint64_t nbytes;
    void *segment;
    uint32_t index;
} mpshm_block;

/* Flags: MPSHM_ZEROED for memory that reads as zero (otherwise its content is undefined);
 * MPSHM_COPY for a message whose bytes were copied for its receiver alone (see mpshm_block_send);
 * MPSHM_NOWAIT for -EAGAIN instead of a conversation with the manager or a wait for the lock. A
 * process that has allocated and received before seldom needs the manager, so a binding may first
 * try with MPSHM_NOWAIT and let other threads run only while it really waits. */
enum mpshm_flags { MPSHM_ZEROED = 1, MPSHM_NOWAIT = 2, MPSHM_COPY = 4 };

/* Allocate `nbytes` (0 is allowed), aligned to 64 bytes, and to a page from 32 KiB on. The caller
 * releases it. A free block with its pages is used again without a system call. -ENOMEM or -ENOSPC
 * when there is no memory, -EMFILE when there is no descriptor, -EUSERS when 1024 processes share
 * already, -EINVAL for an unknown strategy. */
int mpshm_block_allocate(int strategy, uint64_t nbytes, int flags, mpshm_block *out);

/* Write a handle, MPSHM_HANDLE_SIZE bytes for one receiver, to `handle`. The block is in flight
 * until it is received, and stays alive even if this process dies. The caller keeps its own
 * reference. `flags` is 0 or MPSHM_COPY. The latter says that the bytes were copied for this
 * receiver and need not be shared, so a receiver that cannot share memory may take them by value,
 * with mpshm_block_read. */
int mpshm_block_send(const mpshm_block *block, int flags, unsigned char *handle);

/* Receive the block of a handle, once, in any process of the same user, also in the sender. The
 * caller releases it. -EBADMSG when the handle is damaged, -ESTALE when it was received before or
 * its memory is gone, -EMFILE when this process has no descriptor left to attach the memory. */
int mpshm_block_receive(const unsigned char *handle, size_t len, int flags, mpshm_block *out);

/* Read a handle without receiving it: `*nbytes` is the size of its block. Returns 1 when it was
 * sent with MPSHM_COPY, otherwise 0. -EBADMSG when it is damaged. */
int mpshm_handle_info(const unsigned char *handle, size_t len, uint64_t *nbytes);

/* 1 while the block of a handle lives in a segment that this process has attached, whether the
 * handle was received or not; otherwise 0, also when the answer would have to wait. */
int mpshm_handle_alive(const unsigned char *handle, size_t len);

/* Copy the bytes of a block that was sent with MPSHM_COPY to `data`, instead of taking a reference.
 * `nbytes` must be the size that mpshm_handle_info returned. The handle is received by that. For a
 * process in which mpshm_block_receive fails: this call needs no slot, and keeps no descriptor and
 * no mapping. -EINVAL when it was sent without MPSHM_COPY or the size differs; other errors as in
 * mpshm_block_receive. */
int mpshm_block_read(const unsigned char *handle, size_t len, void *data, uint64_t nbytes);

/* Receive a handle and drop its block, for a message that will never be delivered. */
int mpshm_block_discard(const unsigned char *handle, size_t len);

/* Give the reference back. The last release in any process frees the block. It costs a few atomic
 * operations. A second release of the same mpshm_block does nothing. */
void mpshm_block_release(mpshm_block *block);

/* The strategy by which the block was allocated. */
int mpshm_block_strategy(const mpshm_block *block);

/* The number of references that others have to this block: processes beside this one, and handles
 * in flight. 0 means that only this process has the block. */
int mpshm_block_others(const mpshm_block *block);

/* Invalidate every handle of the block that is in flight: to receive it is -ESTALE from now on.
 * Processes that have received the block keep it. */
void mpshm_block_revoke(const mpshm_block *block);

/* One more reference to the block that contains `address`, which this process must have already, as
 * an allocated, received or heap block. The caller releases it. -ENOENT when there is none; -EAGAIN
 * with MPSHM_NOWAIT when another thread has the lock. */
int mpshm_block_find(const void *address, int flags, mpshm_block *out);

typedef struct {
    uint64_t live_bytes; /* in blocks that this process has references to */
    uint64_t live_blocks;
    uint64_t in_flight_bytes;      /* in blocks of own segments that have handles in flight */
    uint64_t cached_bytes;         /* free and dirty in own segments */
    uint64_t session_cached_bytes; /* the same for all processes of the session */
    uint64_t cache_limit;          /* of session_cached_bytes */
    uint64_t segments;             /* created by this process */
    uint64_t mappings;
    uint64_t descriptors;
    uint64_t lock_bytes; /* in locks that this process has; no other number contains them */
} mpshm_stats;

void mpshm_get_stats(mpshm_stats *out);

/* Parse a number of bytes: digits, an optional fraction and an optional unit, in upper or lower
 * case. K, M, G, T, P and KiB and so on are powers of 1024, kB and so on powers of 1000. -EINVAL
 * when it is not a number, -ERANGE when it is too large. MP_CACHE_BYTES is parsed this way. */
int mpshm_parse_bytes(const char *text, uint64_t *nbytes);

/* Give the free memory of this process's own segments back to the system. Mappings stay. */
void mpshm_empty_cache(void);

/* ---- Channels ------------------------------------------------------------------------------ */

/* A channel carries messages through a ring in shared memory, beside a pipe or a socketpair that
 * belongs to the caller. The pipe tells of the end of the file and of a broken pipe, and wakes a
 * sleeping reader; each call takes the descriptor `fd` of its own end of it. Any number of
 * processes may have an end. Messages are ordered and whole. A writer that is killed leaves no part
 * of a message, a reader that is killed takes no more than one. */
typedef struct mpshm_channel mpshm_channel;

/* The functions that a call needs of its binding. `allocate` returns memory for a message of that
 * size, or NULL to leave the message in the ring (-ENOMEM); it is called again if the message's
 * writer died. `begin_wait` and `end_wait` surround each wait, so that a binding can let other
 * threads run; end_wait returns 0, or a negative number that the call gives up with. */
typedef struct {
    void *self;
    void *(*allocate)(void *self, uint64_t nbytes);
    void (*begin_wait)(void *self);
    int (*end_wait)(void *self);
} mpshm_waiter;

/* Make a channel: ends[0] writes and ends[1] reads, or both do both if `duplex`. The caller closes
 * each. -EOPNOTSUPP where there are no memfds; -EMFILE, also when half of the descriptors that this
 * process may have are in use, since a channel takes one more than its pipe; -ENOMEM. */
int mpshm_channel_create(int duplex, mpshm_channel **ends);

/* Open end 0 or 1 of a channel whose memory another process has passed as the descriptor `object`,
 * which is taken over on success. -EPROTO when another version of libshm made it. */
int mpshm_channel_open(int object, int side, mpshm_channel **out);

/* Close an end. The caller closes its descriptor of the pipe first, so that a writer that hears of
 * it here finds the pipe broken. */
void mpshm_channel_close(mpshm_channel *end);

/* The descriptor of the channel's memory, to be passed to another process; -EBADF when the program
 * has closed it. It stays the channel's. */
int mpshm_channel_object(mpshm_channel *end);

/* The ends that this process has open. */
uint64_t mpshm_channel_count(void);

/* Send a message. A negative timeout waits for room without end; otherwise -EAGAIN when there is
 * none in time, and always -EAGAIN for a message of more than 64 KiB, which passes through the ring
 * in parts. -EPIPE when no process can read it any more. */
int mpshm_channel_send(mpshm_channel *end, int fd, const void *data, uint64_t nbytes,
                       int64_t timeout_ns, const mpshm_waiter *waiter);

/* Receive a message into the memory that `allocate` returned: 1; 0 at the end of the file; -EAGAIN
 * when none came in time (a negative timeout waits without end). */
int mpshm_channel_receive(mpshm_channel *end, int fd, int64_t timeout_ns,
                          const mpshm_waiter *waiter);

/* 1 when a message or the end of the file can be received within the timeout, otherwise 0. */
int mpshm_channel_poll(mpshm_channel *end, int fd, int64_t timeout_ns, const mpshm_waiter *waiter);

/* Call it before the program waits for `fd` with select, poll or epoll: from then on the descriptor
 * is readable while, and only while, there is something to receive. That costs a message to an
 * empty channel two system calls. */
int mpshm_channel_selectable(mpshm_channel *end, int fd, const mpshm_waiter *waiter);

/* ---- Memory by address --------------------------------------------------------------------- */

/* The same blocks, identified by address instead of by handle. Allocators use this. Each block has
 * at least MPSHM_HEAP_LEAST bytes and pages of its own. Any thread may free a block of any other,
 * and with MPSHM_NOWAIT no call waits for a lock. */
enum { MPSHM_HEAP_LEAST = 32769 };

/* As mpshm_block_allocate; the caller frees it with mpshm_heap_free. -EINVAL below the least size.
 */
int mpshm_heap_allocate(int strategy, uint64_t nbytes, int flags, void **out);

/* 1 when the memory at `address` belonged to the heap and was freed; 0 when it does not belong to
 * the heap, and nothing was done. */
int mpshm_heap_free(void *address);

/* Resize in place: 1 when the memory at `address` now has `nbytes`, 0 when the caller must allocate
 * other memory, -ENOENT when it does not belong to the heap. `*before` is its former size. */
int mpshm_heap_resize(void *address, uint64_t nbytes, uint64_t *before);

/* One more reference to the heap's block that contains `address`, so that it can be sent and
 * outlives mpshm_heap_free. The caller releases it. -ENOENT when no block contains it; -EAGAIN with
 * MPSHM_NOWAIT when another thread has the lock. */
int mpshm_block_at(const void *address, int flags, mpshm_block *out);

/* Blocks of the heap stay shared across a fork, unless `decide` returns 1. It is called for each
 * block before a fork, must not allocate or take a lock, and returns 1 for a block whose content
 * means nothing in another process (addresses, for example). The child then gets a private copy at
 * the same address. */
void mpshm_set_fork_private(int (*decide)(const void *data, uint64_t nbytes));

/* ---- Locks --------------------------------------------------------------------------------- */

/* Each of these lives in a block: mpshm_sync_create makes the block, mpshm_block_send and
 * mpshm_block_receive pass it on, mpshm_block_release gives it back. All of them outlive a process
 * that is killed at any point, while others use them. A process that cannot have a slot may use
 * them too, but nobody learns of its death.
 *
 * `flags` are 0 or MPSHM_NOWAIT. With MPSHM_NOWAIT a call makes no system call if it succeeds, and
 * fails with -EBUSY instead of waiting for another thread or process that is inside such a call.
 *
 * `timeout_ns` of 0 does not wait; MPSHM_NO_TIMEOUT, the largest number, has no end. A call with a
 * timeout fails with -ETIMEDOUT, and with -EINTR when a signal handler has run, so that a binding
 * can run handlers of its own; the caller calls again with the time that is left. */
enum mpshm_sync_kind {
    MPSHM_LOCK = 1,
    MPSHM_SEMAPHORE,
    MPSHM_CONDITION,
    MPSHM_EVENT,
    MPSHM_BARRIER
};
enum { MPSHM_OWNER_DIED = 1 };
#define MPSHM_NO_TIMEOUT UINT64_MAX

/* `value` are the units of a semaphore, `max` the most it can have, or the parties of a barrier.
 * Otherwise as mpshm_block_allocate. */
int mpshm_sync_create(int strategy, int kind, uint32_t value, uint32_t max, int flags,
                      mpshm_block *out);
/* The kind of a block that mpshm_sync_create made in any process, -EINVAL for any other block. */
int mpshm_sync_kind(const mpshm_block *block);

/* Acquire a lock: 0, or MPSHM_OWNER_DIED when its owner had died with it. With MPSHM_NOWAIT,
 * -EAGAIN when another owner has it; if `timeout_ns` is not 0, the caller is about to call again
 * and wait, and nobody asks yet whether that owner lives. The lock belongs to the process, not to
 * the thread. */
int mpshm_lock_acquire(const mpshm_block *lock, int flags, uint64_t timeout_ns);
/* Any process may release it. -EPERM when it was free. */
int mpshm_lock_release(const mpshm_block *lock);
/* 1 when a process has it. */
int mpshm_lock_is_held(const mpshm_block *lock);

/* Take a unit: 0, or MPSHM_OWNER_DIED when units of a dead process have returned. With
 * MPSHM_NOWAIT, -EAGAIN when there is none.
 *
 * A unit belongs to the process that took it, and returns when that process dies. The first release
 * by a process that has no unit shows that units are events and not property, and so does a first
 * value of 0: from then on no unit returns. */
int mpshm_semaphore_acquire(const mpshm_block *semaphore, int flags, uint64_t timeout_ns);
/* Give a unit back. -EOVERFLOW when the semaphore has all its units. */
int mpshm_semaphore_release(const mpshm_block *semaphore, int flags);
uint32_t mpshm_semaphore_value(const mpshm_block *semaphore);

/* Become a waiter, before releasing the lock that belongs to the condition: returns a place.
 * -EUSERS when 1024 wait already. */
int mpshm_condition_enter(const mpshm_block *condition, int flags);
/* Wait at that place: 0 when notified. With -EINTR the caller is still a waiter, otherwise not. */
int mpshm_condition_wait(const mpshm_block *condition, int place, uint64_t timeout_ns);
/* Cease to be one after -EINTR. A notification that has come is passed on. */
void mpshm_condition_leave(const mpshm_block *condition, int place);
/* Wake the `n` that have waited longest, except dead ones. Returns how many. */
int mpshm_condition_notify(const mpshm_block *condition, uint32_t n, int flags);
int mpshm_condition_waiters(const mpshm_block *condition);

void mpshm_event_set(const mpshm_block *event);
void mpshm_event_clear(const mpshm_block *event);
int mpshm_event_is_set(const mpshm_block *event);
/* 0 when the event is set, or was since the call began. */
int mpshm_event_wait(const mpshm_block *event, uint64_t timeout_ns);

/* Arrive at a barrier: 0 when the caller has to wait at `*place`; 1 when it is the last party, and
 * has to open the barrier. `*order` counts the parties of a round from 0. -EPIPE when the barrier
 * is broken; -EUSERS when 1024 wait already. A process that has arrived once is a member. */
int mpshm_barrier_arrive(const mpshm_block *barrier, int flags, uint64_t timeout_ns, int *place,
                         uint32_t *order);
/* Wait at that place: 0 when the barrier has opened, -EPIPE when it is broken. It breaks when this
 * call times out (-ETIMEDOUT), and when a member dies. */
int mpshm_barrier_wait(const mpshm_block *barrier, int place, uint64_t timeout_ns);
/* Cease to wait after -EINTR. */
void mpshm_barrier_leave(const mpshm_block *barrier, int place);
/* Open the barrier: 0, or -EPIPE when it has broken meanwhile. */
int mpshm_barrier_open(const mpshm_block *barrier);
/* Break it, until mpshm_barrier_reset. */
void mpshm_barrier_break(const mpshm_block *barrier);
/* Begin a new round without members; all who wait get -EPIPE. */
void mpshm_barrier_reset(const mpshm_block *barrier);
/* This process is no member any more, so that its end breaks nothing. */
void mpshm_barrier_resign(const mpshm_block *barrier);
/* The parties that wait, or -EPIPE. */
int mpshm_barrier_waiters(const mpshm_block *barrier);
uint32_t mpshm_barrier_parties(const mpshm_block *barrier);

/* ---- Diagnostics --------------------------------------------------------------------------- */

enum { MPSHM_HOLDERS = 1024 };

/* One segment of shared memory, in which its owner allocates, and the processes that have
 * references to its blocks. */
typedef struct {
    unsigned char session[16];
    uint32_t index;
    int strategy;
    int owner_pid; /* 0: the owner has died, and other processes still use its blocks */
    uint64_t age_ns;
    uint64_t live_blocks;
    uint64_t live_bytes;
    uint64_t in_flight_bytes;
    uint64_t cached_bytes;
    int holders;
    int holder_pids[1024];
} mpshm_info;

/* List the segments of every session of this user, in at most `room` entries. Returns the number of
 * segments. This process attaches each session for the duration of the call. */
int mpshm_list(mpshm_info *entries, int room);

/* One session of this user. */
typedef struct {
    unsigned char session[16];
    int processes;
    uint32_t manager_starts; /* 1 until a manager was killed or left, and another was needed */
    uint64_t cached_bytes;   /* free and dirty, in all segments */
    uint64_t cache_limit;
} mpshm_session_info;

/* One process of a session, or one that has left and whose messages are still in flight. */
typedef struct {
    unsigned char session[16];
    int pid;
    int attached; /* 0: it has left */
    uint64_t held_blocks;
    uint64_t held_bytes;   /* a block that several processes hold counts for each of them */
    uint64_t cached_bytes; /* free and dirty, in its segments */
    uint64_t in_flight_blocks;
    uint64_t in_flight_bytes; /* in blocks that it sent and no process has received */
    uint64_t oldest_ns;       /* since it sent the oldest of them */
    uint64_t oldest_bytes;
    char oldest_site[124]; /* see mpshm_set_site; "" when unknown */
} mpshm_process_info;

/* List the sessions of this user and their processes, each in at most `room` entries, and set the
 * counts to the numbers that there are. This process attaches each session for the duration of the
 * call and writes nothing to it. A session in which nothing was ever shared is left out. */
int mpshm_list_processes(mpshm_session_info *sessions, int session_room, int *session_count,
                         mpshm_process_info *processes, int process_room, int *process_count);

enum { MPSHM_SITE_SIZE = 124 };

/* Say which line of source the calling thread sends from, until the next call: mpshm_list_processes
 * shows it for the oldest message of a process. It keeps the first 123 bytes; NULL or "" ends it. A
 * session remembers 256 of them, and ignores the others. */
void mpshm_set_site(const char *text);

/* ---- Sessions ------------------------------------------------------------------------------ */

/* The own session, in which this process allocates: MPSHM_ID_SIZE random bytes, chosen at the first
 * call. A parent passes them to the children that it starts by exec; a forked child inherits them.
 */
int mpshm_own_session(unsigned char *id);

/* Use the parent's session. -EBUSY, and no change, when this process has another one already. */
int mpshm_set_own_session(const unsigned char *id);

/* Attach the own session now, so that messages sent in it are kept until this process has gone.
 * That takes a file and a lock; no manager is started. */
int mpshm_attach(void);

/* Open two descriptors with which a child that is started by exec attaches this process's session
 * without a path, so that it succeeds after the folder was removed or the user has changed. fds[0]
 * is the control file, with an open file description of the child's own; fds[1] is a connection to
 * the manager. Each is -1 when it cannot be had. The caller closes both when the child has them. */
int mpshm_open_for_child(int fds[2]);

/* In that child, before any other call: attach session `id` with both descriptors, which are taken
 * over. -EBUSY when this process has another session already (both are closed in that case, too).
 */
int mpshm_attach_with(const unsigned char *id, const int fds[2]);

/* After -EPROTO from any call: the version of the library that created the session's files, "" when
 * it is too old to say. Two versions do not share; this library's is mpshm_version(). */
const char *mpshm_refused_version(void);

/* Set the path of the shm-manager executable. Call it before any call that needs a manager. */
int mpshm_set_manager(const char *path);

/* The manager's main loop, for its executable and for tests. It serves `listener` (a listening Unix
 * socket of type SOCK_SEQPACKET) for the session with this folder, until no process is in it.
 * `control` is a descriptor of the session's control file, or -1 for the file in the folder. Both
 * are taken over. */
int mpshm_manager_run(int listener, int control, const char *folder);

#endif
