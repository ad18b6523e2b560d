/* Blocks: allocate, send, receive, release. */
#ifndef MPSHM_PUBLIC_BLOCK_H
#define MPSHM_PUBLIC_BLOCK_H
#include <stddef.h>
#include <stdint.h>

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
/* The first bytes of a handle are the same in two handles that carry the same in-flight reference,
 * which is used again once it was received. */
enum { MPSHM_REFERENCE_SIZE = 36 };

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
 * try with MPSHM_NOWAIT and let other threads run only while it really waits. MPSHM_LASTING for a
 * message that does not expire. MPSHM_NOTED for a message that is made for a ring: it is discarded
 * if this process is killed before the message is there (see mpshm_handle_log_drop). */
enum mpshm_flags {
    MPSHM_ZEROED = 1,
    MPSHM_NOWAIT = 2,
    MPSHM_COPY = 4,
    MPSHM_LASTING = 8,
    MPSHM_NOTED = 16,
};

/* Allocate `nbytes` (0 is allowed), aligned to 64 bytes, and to a page from 32 KiB on. The caller
 * releases it. A free block with its pages is used again without a system call. -ENOMEM or -ENOSPC
 * when there is no memory, -EMFILE when there is no descriptor, -EUSERS when 1024 processes share
 * already, -ENOBUFS when the manager has no address space left, -EINVAL for an unknown strategy. */
int mpshm_block_allocate(int strategy, uint64_t nbytes, int flags, mpshm_block *out);

/* Copy `nbytes` bytes to the beginning of a block that this process has allocated and not yet sent.
 * Where nobody has touched the pages of the block, this takes half the time of memcpy. */
void mpshm_block_write(const mpshm_block *block, const void *from, uint64_t nbytes);

/* Write a handle, MPSHM_HANDLE_SIZE bytes for one receiver, to `handle`. The block is in flight
 * until it is received, and stays alive even if this process dies. The caller keeps its own
 * reference. `flags` are MPSHM_LASTING, MPSHM_NOTED and MPSHM_COPY. The latter says that the bytes were
 * copied for this receiver and need not be shared, so a receiver that cannot share memory may take
 * them by value, with mpshm_block_read. */
int mpshm_block_send(const mpshm_block *block, int flags, unsigned char *handle);

/* Receive the block of a handle, once, in any process of the same user, also in the sender. The
 * caller releases it. -EBADMSG when the handle is damaged, -ESTALE when it was received before or
 * its memory is gone, -ETIME when it has expired, -EMFILE when this process has no descriptor left
 * to attach the memory. */
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

/* Let the messages that this process sends from now on expire, so that one that is never received
 * gives its memory back: after `timeout_ns`, rounded up to a tenth of a second, it cannot be
 * received, and soon after the manager frees its block, unless a process holds that or another
 * message of it has not expired. 0, the default, for no timeout. Messages of blocks of 0 bytes and
 * with MPSHM_LASTING do not expire. */
void mpshm_set_message_timeout(uint64_t timeout_ns);

/* Give the reference back. The last release in any process frees the block. It costs a few atomic
 * operations. A second release of the same mpshm_block does nothing. */
void mpshm_block_release(mpshm_block *block);

/* The strategy by which the block was allocated. */
int mpshm_block_strategy(const mpshm_block *block);

/* Open the memory in which the block is: a descriptor, for a mapping of its own, and `*offset`,
 * where the block begins. The caller closes it, and keeps its reference while it uses the memory.
 */
int mpshm_block_open(const mpshm_block *block, uint64_t *offset);

/* The number of references that others have to this block: processes beside this one, and handles
 * in flight. 0 means that only this process has the block. */
int mpshm_block_others(const mpshm_block *block);

/* Invalidate every handle of the block that is in flight: to receive it is -ESTALE from now on.
 * Processes that have received the block keep it. */
void mpshm_block_revoke(const mpshm_block *block);

/* The word of this process in the session of a block, to be kept in shared memory: no process that
 * begins later soon has the same. */
uint32_t mpshm_own_word(const mpshm_block *block);

/* 1 while the process with this word in the session of the block lives, otherwise 0. -EAGAIN with
 * MPSHM_NOWAIT when another thread has the lock. */
int mpshm_word_lives(const mpshm_block *block, uint32_t word, int flags);

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

#endif
