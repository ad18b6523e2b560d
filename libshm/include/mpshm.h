#ifndef MPSHM_H
#define MPSHM_H
#include <stddef.h>
#include <stdint.h>

/* mpshm: shared memory between processes, made to be bound from other languages.
 *
 * Read it from top to bottom: conventions, process manners, passing descriptors, segments.
 *
 * Conventions
 *   - A function that can fail returns an int: 0 or more is success, a negative number is
 *     -errno, whatever errno itself says. Nothing is printed, nothing aborts.
 *   - A handle is opaque. Each `..._create` or `..._open` has one `..._close`; closing NULL is
 *     allowed. Results come through the last parameter, untouched when the call fails.
 *   - Every descriptor is index_at_page close-on-exec. EINTR never reaches the caller.
 *   - Sizes are bytes. Functions may be called from any thread; one handle must not be closed
 *     while another thread uses it.
 *   - This file is also the interface definition that the Python binding compiles, so it is
 *     plain C: enums instead of macros, no inline functions. */

/* "X.Y.Z", the version of the library that is linked in. A static string. */
const char *mpshm_version(void);

/* ---- Process manners ---------------------------------------------------------------------- */

/* Ask the kernel to send `signum` to this process when its parent dies; 0 takes it back.
 * `parent` is the pid that the caller believes to be its parent: when it has already gone, the
 * signal that can no longer come is raised at once, so there is no window in which an orphan
 * lives for ever. Pass 0 for "whoever is the parent now".
 * "Parent" means the *thread* that forked: when that thread ends, the signal comes too.
 * -EINVAL for a signal that does not exist; -ENOSYS where the platform has no such thing. */
int mpshm_set_pdeathsig(int signum, int parent);

enum { MPSHM_THREAD_NAME_SIZE = 16 };

/* Name the calling thread as ps and debuggers show it. The kernel keeps 15 bytes: what is longer
 * is cut there, between two UTF-8 characters. */
int mpshm_set_thread_name(const char *name);

/* Read the calling thread's name into `name`, MPSHM_THREAD_NAME_SIZE bytes. */
int mpshm_get_thread_name(char *name);

/* ---- Passing descriptors ------------------------------------------------------------------- */

/* Send `len` bytes (1 or more) and the descriptor `fd` over the connected Unix socket `sock`, all
 * of it or an error. The caller still closes its own `fd`. -EPIPE when the peer has gone. */
int mpshm_send_fd(int sock, int fd, const void *data, size_t len);

/* Receive exactly `len` bytes and one descriptor. The caller closes `*fd`.
 * -ECONNRESET when the peer left in the middle; -EBADMSG when the bytes came with no descriptor
 * or with more than one (all of them are closed); -EMFILE when the descriptor limit of this
 * process made the kernel drop it. */
int mpshm_recv_fd(int sock, void *data, size_t len, int *fd);

/* The user id of the process at the other end of a connected Unix socket, or -errno. */
long mpshm_peer_uid(int sock);

/* ---- Blocks -------------------------------------------------------------------------------- */

/* A block is an allocation of shared memory. Processes that use them form a *session*: the one that
 * began, its descendants, and whoever receives a handle. Nothing has to be set up; the first call
 * that needs it finds or starts the session's manager. After a fork both sides keep what they hold.
 *
 * A strategy says how memory is made and how another process meets it:
 *
 *   MPSHM_FILE_DESCRIPTOR  sealed memfds, met by passing a descriptor. No name, nothing to leak,
 *                          not bounded by the size of /dev/shm. Sparse: memory is used when it is
 *                          touched (under strict overcommit it is reserved when handed out).
 *   MPSHM_FILE_SYSTEM      POSIX shared memory objects, 128 random bits in the name, mode 0600.
 *                          Their file system has a size, so what is handed out is reserved first:
 *                          a full /dev/shm is -ENOSPC here and never a SIGBUS later. */
enum mpshm_strategy { MPSHM_FILE_DESCRIPTOR = 1, MPSHM_FILE_SYSTEM = 2 };

enum { MPSHM_ID_SIZE = 16, MPSHM_NAME_SIZE = 48, MPSHM_HANDLE_SIZE = 56 };

/* One hold of this process on a block. `data` and `nbytes` are for the caller to read; the rest is
 * the library's. Whoever fills one in gives it back with mpshm_block_release. */
typedef struct {
    void *data;
    uint64_t nbytes;
    void *segment;
    uint32_t index;
} mpshm_block;

/* How to ask: MPSHM_ZEROED for memory that reads as zero (otherwise its content is undefined),
 * MPSHM_COPY for a message whose bytes were copied for its receiver alone (see mpshm_block_send),
 * and MPSHM_NOWAIT for -EAGAIN instead of a talk with the manager, which takes a while. Once a
 * process has warmed up there is seldom anything to talk about, so a binding may try without
 * waiting first and let other threads run while it really waits. */
enum mpshm_flags { MPSHM_ZEROED = 1, MPSHM_NOWAIT = 2, MPSHM_COPY = 4 };

/* Allocate `nbytes` (0 is allowed), aligned to 64 and from 32 KiB on to a page. Warm memory is used
 * again when there is some, without a system call. -ENOMEM or -ENOSPC when there is no room,
 * -EMFILE when there is no descriptor, -EUSERS when 1024 processes share already, -EINVAL for an
 * unknown strategy. */
int mpshm_block_allocate(int strategy, uint64_t nbytes, int flags, mpshm_block *out);

/* Put a claim on the block into `handle`, MPSHM_HANDLE_SIZE bytes for one receiver. From now on the
 * block stays alive until the claim is made, whatever happens to this process. `flags` is 0 or
 * MPSHM_COPY: the bytes were copied for this receiver and nobody expects to share them, so a
 * receiver that cannot share memory may take them by value, with mpshm_block_read. */
int mpshm_block_send(const mpshm_block *block, int flags, unsigned char *handle);

/* Make the claim that a handle speaks of: in any process of the same user, also the sender. Once.
 * -EBADMSG when it is damaged, -ESTALE when it was claimed before or its memory is gone, -EMFILE
 * when this process has no descriptor left to meet the memory with. */
int mpshm_block_receive(const unsigned char *handle, size_t len, int flags, mpshm_block *out);

/* What a handle says of itself, without claiming it: the size of its block, and 1 when it was sent
 * with MPSHM_COPY, otherwise 0. -EBADMSG when it is damaged. */
int mpshm_handle_info(const unsigned char *handle, size_t len, uint64_t *nbytes);

/* 1 while the block that a handle speaks of lives in memory of this process, whether it was
 * received or not; otherwise 0, also when that cannot be told without waiting. */
int mpshm_handle_alive(const unsigned char *handle, size_t len);

/* Take the bytes of a block that was sent with MPSHM_COPY, instead of a hold on it: `nbytes`, as
 * mpshm_handle_info said, are copied into `data`, and the message is taken away. For a receiver
 * that mpshm_block_receive has refused: it needs no slot and keeps no descriptor and no mapping.
 * -EINVAL when it was sent without MPSHM_COPY or the size is another; otherwise as a claim. */
int mpshm_block_read(const unsigned char *handle, size_t len, void *data, uint64_t nbytes);

/* Take the message of a handle away without receiving it: nobody will claim it. */
int mpshm_block_discard(const unsigned char *handle, size_t len);

/* Give the hold back. The last one, of whatever process, frees the block. A few atomic operations;
 * releasing twice is allowed. */
void mpshm_block_release(mpshm_block *block);

/* The strategy under which it was made. */
int mpshm_block_strategy(const mpshm_block *block);

/* How many others want this block: processes that hold it beside this one, and claims that nobody
 * has made yet. 0 means that this process is alone with it. */
int mpshm_block_others(const mpshm_block *block);

/* Take back every claim on the block that nobody has made yet; who tries later gets -ESTALE. Who
 * holds it already keeps it. */
void mpshm_block_revoke(const mpshm_block *block);

/* One more hold on the block that this process holds and in which `address` lies, whoever made it.
 * -ENOENT when there is none; -EAGAIN when MPSHM_NOWAIT was said and somebody has the lock. */
int mpshm_block_find(const void *address, int flags, mpshm_block *out);

typedef struct {
    uint64_t live_bytes; /* in blocks that this process holds */
    uint64_t live_blocks;
    uint64_t in_flight_bytes;      /* in own blocks with claims that nobody has made yet */
    uint64_t cached_bytes;         /* free and warm in own memory */
    uint64_t session_cached_bytes; /* the same for all processes of the session, and its limit */
    uint64_t cache_limit;
    uint64_t segments; /* made by this process */
    uint64_t mappings;
    uint64_t descriptors;
} mpshm_stats;

void mpshm_get_stats(mpshm_stats *out);

/* A number of bytes as people write it: digits, and maybe a fraction and a unit (K, M, G, T, P or
 * KiB and so on for powers of 1024, kB and so on for powers of 1000), in upper or lower case.
 * -EINVAL when it is none, -ERANGE when it is too large. MP_CACHE_BYTES is read this way. */
int mpshm_parse_bytes(const char *text, uint64_t *nbytes);

/* Give what is free and warm in this process's own memory back to the system. Mappings stay. */
void mpshm_empty_cache(void);

/* ---- Memory by address --------------------------------------------------------------------- */

/* The same memory for who keeps an address and no handle, as an allocator does. Blocks of at least
 * MPSHM_HEAP_LEAST bytes, each on pages of its own. Any thread may free what any other allocated,
 * and neither ever waits for a lock when it says MPSHM_NOWAIT. */
enum { MPSHM_HEAP_LEAST = 32769 };

/* As mpshm_block_allocate; -EINVAL below the least size. */
int mpshm_heap_allocate(int strategy, uint64_t nbytes, int flags, void **out);

/* 1 when the memory at `address` is the heap's and has been freed, 0 when it is somebody else's and
 * nothing was done. */
int mpshm_heap_free(void *address);

/* 1 when the memory at `address` has `nbytes` now, 0 when other memory has to be allocated for
 * that, -ENOENT when it is not the heap's. `*before` is how many bytes it had. */
int mpshm_heap_resize(void *address, uint64_t nbytes, uint64_t *before);

/* One more hold on the heap's block in which `address` lies: so it can be sent, and stays when its
 * user frees it. -ENOENT when it lies in none; -EAGAIN when MPSHM_NOWAIT was said. */
int mpshm_block_at(const void *address, int flags, mpshm_block *out);

/* What the heap gave stays shared across a fork. `decide` is asked about each block before a fork,
 * with nothing to allocate and no lock to take, and says 1 for one whose content means nothing in
 * another process (addresses, say): the child then gets a private copy of it, at the same place. */
void mpshm_set_fork_private(int (*decide)(const void *data, uint64_t nbytes));

/* ---- Looking ------------------------------------------------------------------------------- */

enum { MPSHM_HOLDERS = 1024 };

/* One segment of shared memory: what a process allocates in, and who has something of it. */
typedef struct {
    unsigned char session[16];
    uint32_t index;
    int strategy;
    int owner_pid; /* 0: it has died, and others still use what it left */
    uint64_t age_ns;
    uint64_t live_blocks;
    uint64_t live_bytes;
    uint64_t in_flight_bytes;
    uint64_t cached_bytes;
    int holders;
    int holder_pids[1024];
} mpshm_info;

/* List the segments of every session of this user, in at most `room` entries. Returns how many
 * there are. This process enters each session for as long as it looks. */
int mpshm_list(mpshm_info *entries, int room);

/* ---- Sessions ---------------------------------------------------------------------------------
 */

/* The session in which this process allocates: MPSHM_ID_SIZE random bytes, chosen at the first
 * call. A parent hands it to the children that it starts by exec; a forked child has it already. */
int mpshm_own_session(unsigned char *id);

/* Take over the parent's. -EBUSY when another is in use already, and then nothing is changed. */
int mpshm_set_own_session(const unsigned char *id);

/* Be in the session from now on, so that messages sent in it are kept until this process has gone.
 * A file and a lock; no manager is started. */
int mpshm_attach(void);

/* Descriptors with which a child that is started by exec enters this process's session without
 * looking for any path, so that it arrives when the folder has been removed or the user has
 * changed: fds[0] is the control file, through a description of the child's own, and fds[1] a
 * connection to the manager; each is -1 where it cannot be had. The caller closes both when the
 * child has them.
 */
int mpshm_open_for_child(int fds[2]);

/* In that child, first of all: take over the session `id`, and both descriptors. -EBUSY when
 * another session is in use already (both are closed all the same). */
int mpshm_attach_with(const unsigned char *id, const int fds[2]);

/* After -EPROTO from any call: the version of the library that made the session's files, "" when it
 * is too old to say so. Two versions do not share; this one's is mpshm_version(). */
const char *mpshm_refused_version(void);

/* Where the shm-manager executable is. Must be said before it is needed. */
int mpshm_set_manager(const char *path);

/* The manager's main loop, for its executable and for tests: serves `listener` (a listening Unix
 * socket of type SOCK_SEQPACKET) for the session whose folder is given, until nobody is in it.
 * `control` is a descriptor of the session's control file, or -1 for the one in the folder. Both
 * are taken over. */
int mpshm_manager_run(int listener, int control, const char *folder);

#endif
