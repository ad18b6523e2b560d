/* What the source files share and nobody else sees. */
#ifndef MPSHM_INTERNAL_H
#define MPSHM_INTERNAL_H

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "layout/layout.h"
#include "mpshm.h"
#include "session/slot.h"
#include "session/wire.h"

/* A signal handler that returns makes a slow system call fail with EINTR. No caller of ours could
 * do anything but call again, so it is done here. close() is not retried: on Linux the descriptor
 * is gone even when EINTR comes back, and a second close could hit somebody else's. */
#define MPSHM__RETRY(expr)                                                                         \
    ({                                                                                             \
        long mpshm__rc;                                                                            \
        do                                                                                         \
            mpshm__rc = (long)(expr);                                                              \
        while (mpshm__rc == -1 && errno == EINTR);                                                 \
        mpshm__rc;                                                                                 \
    })

/* ---- linux/, macos/, windows/: the same functions, a folder for each platform ---- */

struct msghdr;

/* 0 or -errno; `name` has at most 15 bytes. */
int mpshm__name_thread(const char *name);
/* As sendmsg and recvmsg: EINTR is retried, there is no SIGPIPE, and descriptors that arrive are
 * close-on-exec. -1 and errno. */
long mpshm__sendmsg(int sock, const struct msghdr *msg);
long mpshm__recvmsg(int sock, struct msghdr *msg);

struct mpshm__session;
struct mpshm__segment;

/* ---- clock.c: time and processes ---- */

uint64_t mpshm__now_ns(void);
/* When `pid` was started, in the kernel's ticks since boot; 0 when there is no such process or it
 * is a zombie; MPSHM__UNKNOWN when that cannot be told. With the pid it names a process for good.
 */
#define MPSHM__UNKNOWN UINT64_MAX
uint64_t mpshm__start_time(int pid);
uint64_t mpshm__memory_bytes(void);

/* ---- descriptor.c: descriptors that are known by what they refer to ---- */

struct mpshm__fd {
    int number; /* -1: none */
    uint64_t device, inode;
};
#define MPSHM__NO_FD ((struct mpshm__fd){.number = -1})

/* Take over that number, or none (-1). */
void mpshm__fd_set(struct mpshm__fd *fd, int number);
/* Its number, or -1 when there is none or the program has closed it. Ask before each use. */
int mpshm__fd_get(struct mpshm__fd *fd);
/* Does that number refer to the same thing? */
int mpshm__fd_is(const struct mpshm__fd *fd, int number);
void mpshm__fd_close(struct mpshm__fd *fd);
/* Keep some in reserve, duplicates of `like`. */
void mpshm__fd_reserve(int like);
/* After an error: 1 when it was -EMFILE and one has been set free, so that it is worth trying
 * again.
 */
int mpshm__fd_use_reserve(int err);
int mpshm__fd_reserved(void); /* how many there are */
void mpshm__fd_drop_reserve(void);

/* ---- object.c: the memory object of a segment, by strategy ---- */

/* Make the object of `size` bytes. The named one is called after `nonce`. */
int mpshm__object_create(int strategy, const uint64_t nonce[2], uint64_t size);
/* Meet a named one. */
int mpshm__object_open_name(const uint64_t nonce[2]);
void mpshm__object_unlink(const uint64_t nonce[2]);
/* Take away the name that a process which is gone had made and not yet registered. */
void mpshm__object_unlink_unfinished(struct mpshm__control *control, struct mpshm__slot *maker);
/* The memfd of a entry, through /proc from the process that owns it, or -errno. */
int mpshm__object_from_owner(const struct mpshm__segment_entry *entry);
/* Can nobody but a process of ours, or of `user`, cut `fd` under us? 0 or -EBADMSG. */
int mpshm__object_check(int strategy, int fd, uint32_t user);
/* Must what is handed out be reserved first (S10), or may it stay sparse? */
int mpshm__object_must_reserve(int strategy);
/* Reserve [at, at + size): 0 or -errno (-ENOSPC, -ENOMEM, -EFBIG). What was got before an error is
 * given back, so the range must not be in use. */
int mpshm__reserve(int fd, uint64_t at, uint64_t size);
/* The same in an own segment, also when its descriptor has been closed. */
int mpshm__segment_reserve(struct mpshm__segment *segment, uint64_t at, uint64_t size);
/* May this process make a file of `size` bytes (ulimit -f)? 0 or -EFBIG. Asked first, because the
 * kernel's refusal comes with a signal that kills (SIGXFSZ). */
int mpshm__file_size_allowed(uint64_t size);

/* the strategies */
int mpshm__memfd_create(uint64_t size);
int mpshm__memfd_check(int fd);
int mpshm__named_create(const char *name, uint64_t size);

uint64_t mpshm__pages(uint64_t nbytes); /* rounded up */

/* ---- runtime.c: the folder of a session ---- */

enum { MPSHM__PATH = 4096 };

/* Open and map the control file of `session`, and hold it: while anybody does, the manager stays.
 * `create` makes it when it is not there and no manager serves the session. */
int mpshm__session_open(struct mpshm__session *session, int create);
/* The same through a descriptor of the control file, which is taken over. */
int mpshm__session_open_fd(struct mpshm__session *session, int control_fd);
/* One more descriptor of the control file, of a description of its own, that holds the session.
 * `wait` allows a question to the manager. */
int mpshm__session_reopen(struct mpshm__session *session, int wait);
/* Map the control file through that description in place of the one it is mapped through. */
int mpshm__session_remap(struct mpshm__session *session, int control_fd);
/* The folder in which the manager listens, made when it is not there: 0 or -errno. */
int mpshm__session_make_folder(const unsigned char *id);
void mpshm__session_path(const unsigned char *id, const char *leaf, char *path, size_t size);
/* As manager: is nobody left in the session? Waits while somebody is. */
int mpshm__session_wait_empty(int control_fd);
/* As manager: remove the folders and names of sessions that died without one. */
void mpshm__remove_dead_sessions(void);
/* Remove one session, if nobody is in it. */
void mpshm__session_remove_if_dead(const unsigned char *id);
void mpshm__for_each_session(void (*act)(const unsigned char *id, void *arg), void *arg);
int mpshm__parse_id(const char *hex, unsigned char *id); /* 1 when it is one */
void mpshm__session_remove(const unsigned char *id);

/* ---- segment.c: segments as one process sees them ---- */

enum { MPSHM__CLASSES = 192 };

struct mpshm__segment {
    struct mpshm__segment_header *header; /* the mapping */
    struct mpshm__block *blocks;
    struct mpshm__metadata *metadata;
    struct mpshm__far *far;
    char *data;
    uint64_t size;
    uint64_t capacity; /* of the tables: what was checked once is not read from there again */
    uint64_t room;     /* bytes of data */
    int dump;          /* MPSHM_DUMP=1: a core dump shall have what is allocated, */
    uint64_t dumped;   /* and has this much already */
    uint64_t nonce[2];
    struct mpshm__session *session;
    uint32_t index;
    int strategy;
    struct mpshm__fd fd; /* of own segments, and of some others so that they survive the manager */
    int own;             /* this process allocates in it */
    uint32_t *local_refs;      /* a entry for each block: how many handles this process has */
    uint64_t retained_blocks; /* how many blocks this process holds here */
    uint32_t *index_at_page; /* for each page, the heap's block that begins there: its entry + 1; or
                                NULL */
    /* of the owner alone: */
    struct mpshm__segment *next_own; /* the list that begins in session->own */
    uint32_t *next;                  /* links of the free lists: index + 1 */
    uint32_t free_dirty[MPSHM__CLASSES];
    uint32_t free_zero[MPSHM__CLASSES];
    uint32_t
        *committed; /* how many pages of a large block are reserved, where that is needed at all */
    int must_reserve;
    uint32_t reserved_entries;
    uint64_t slabs; /* how many, and where the list of them is */
    uint64_t slabs_room;
    struct mpshm__slab *slab_list;
};

/* Blocks below a page or so are cut from slabs, all of one class and with consecutive entries. */
struct mpshm__slab {
    uint64_t at, size;
    uint32_t first, count;
    uint32_t size_class;
};

/* Map the segment behind `fd`, and believe nothing that it says before it has been checked against
 * the entry of the control file. */
int mpshm__segment_map(int fd, uint32_t index, const struct mpshm__segment_entry *entry,
                       const struct mpshm__session *session, struct mpshm__segment **out);
/* Make a new one with about `size` bytes of data, and in any case for a block of `need` bytes. Its
 * entry is not yet known to anybody. */
int mpshm__segment_create(int strategy, uint64_t size, uint64_t need, const unsigned char *session,
                          struct mpshm__slot *maker, struct mpshm__segment **out);
void mpshm__segment_unmap(struct mpshm__segment *segment);
/* What the owner needs beside the mapping: free lists, all empty. */
int mpshm__segment_become_owner(struct mpshm__segment *segment);
/* Show core dumps what has been allocated so far, where MPSHM_DUMP=1 asks for it. */
void mpshm__segment_dump(struct mpshm__segment *segment);
/* How much data the next segment of a process has that has `total` bytes of it already. */
uint64_t mpshm__segment_next_size(uint64_t total);

/* ---- purge.c: pages given back to the system, and what is cached ---- */

void mpshm__cache_add(struct mpshm__control *control, struct mpshm__segment *segment,
                      uint64_t size);
void mpshm__cache_take(struct mpshm__control *control, struct mpshm__segment *segment,
                       uint64_t size);
/* The manager looks after the cache while there is something in it: see cache.c. */
void mpshm__cache_wake(struct mpshm__control *control);
/* 1 when the pages of block `i`, which nobody uses, are gone and read as zero; 0 when they are as
 * before. What is known about it stays as it was. */
int mpshm__purge_pages(struct mpshm__segment *segment, uint32_t i);
/* As the manager: purge a free and dirty block, maybe under its living owner. Returns the bytes. */
uint64_t mpshm__purge_free(struct mpshm__control *control, struct mpshm__segment *segment,
                           uint32_t i);
/* As the manager: finish what a manager was purging when it was killed. */
void mpshm__purge_finish(struct mpshm__control *control, struct mpshm__segment *segment);
/* The slab that begins with entry `first` and is the `nth`. 0, or -EBADMSG when there is none. */
int mpshm__slab_from_rows(const struct mpshm__segment *segment, uint32_t first, uint64_t nth,
                          struct mpshm__slab *slab);
/* Purge a slab of which nothing is in use. */
int mpshm__purge_slab(struct mpshm__control *control, struct mpshm__segment *segment,
                      const struct mpshm__slab *slab);
/* Purge everything: nothing in it is in use, and nothing will be. */
void mpshm__purge_all(struct mpshm__segment *segment);

/* ---- sizeclass.c ---- */

uint32_t mpshm__class_of(uint64_t nbytes);
uint64_t mpshm__class_bytes(uint32_t size_class);
enum { MPSHM__SLAB_LIMIT = 32 * 1024, MPSHM__SLAB_BYTES = 256 * 1024 };

/* ---- refs.c: references, the same for clients and for the manager ---- */

/* Is anything of block `i` left? If not, it becomes free, exactly once, by whoever sees it first.
 */
void mpshm__try_free(struct mpshm__control *control, struct mpshm__segment *segment, uint32_t i);
/* Take the processes of these slots, a bit each, out of every block of the segment, in one pass. */
void mpshm__forget_holders(struct mpshm__control *control, struct mpshm__segment *segment,
                           const uint64_t gone[MPSHM__HOLDER_WORDS]);
static inline _Atomic uint64_t *mpshm__holder_word(const struct mpshm__segment *segment, uint32_t i,
                                                   int slot)
{
    return slot < MPSHM__NEAR ? &segment->blocks[i].holders[slot / 64]
                              : &segment->far[i].holders[(slot - MPSHM__NEAR) / 64];
}
static inline void mpshm__add_holder(const struct mpshm__segment *segment, uint32_t i, int slot)
{
    atomic_fetch_or(mpshm__holder_word(segment, i, slot), (uint64_t)1 << (slot % 64));
}
static inline void mpshm__remove_holder(const struct mpshm__segment *segment, uint32_t i, int slot)
{
    atomic_fetch_and(mpshm__holder_word(segment, i, slot), ~((uint64_t)1 << (slot % 64)));
}
/* Of a block that nobody else knows. */
void mpshm__clear_holders(const struct mpshm__control *control,
                          const struct mpshm__segment *segment, uint32_t i);
/* 64 of them: those with the slots from 64 x `word` on. */
uint64_t mpshm__holders(const struct mpshm__control *control, const struct mpshm__segment *segment,
                        uint32_t i, int word);
/* How many entries have been used, and never more than there are. */
uint32_t mpshm__used(const struct mpshm__segment *segment);

/* ---- alloc.c: the owner's side ---- */

/* Where a block comes from, in the order in which a process tries all its segments. */
enum mpshm__source {
    MPSHM__FROM_DIRTY, /* a free block with its pages, unless much of it would have to be zeroed */
    MPSHM__FROM_ZERO,  /* a free block without */
    MPSHM__FROM_FRESH_SPACE, /* where nothing has been yet */
    MPSHM__FROM_ANY,         /* a free block, whatever it costs to zero it */
};
/* 0, -EXFULL when that source has none, or another -errno. */
int mpshm__allocate_in(struct mpshm__control *control, struct mpshm__segment *segment,
                       enum mpshm__source source, uint64_t nbytes, int zeroed, uint32_t *out);
/* Put a free block into the private list that its page state asks for. */
void mpshm__list_block(struct mpshm__segment *segment, uint32_t i);
uint64_t mpshm__slab_bytes(uint64_t nth);
void mpshm__drain_remote_free(struct mpshm__segment *segment);
/* Give back what is free in an own segment. */
void mpshm__trim(struct mpshm__control *control, struct mpshm__segment *segment);

/* ---- adopt.c: the owner's private state, rebuilt in a segment that somebody has left ---- */

int mpshm__segment_adopt(struct mpshm__control *control, struct mpshm__segment *segment);

/* ---- grow.c: which segment a block comes from ---- */

int mpshm__find_room(struct mpshm__session *session, int strategy, uint64_t nbytes, int flags,
                     struct mpshm__segment **out, uint32_t *i);
/* What is asked for, or the other one where this system refuses memfds. */
int mpshm__usable_strategy(int strategy);

/* ---- client.c: a session as one process sees it ---- */

struct mpshm__session {
    unsigned char id[MPSHM_ID_SIZE];
    struct mpshm__fd control_fd;
    struct mpshm__control *control;
    uint32_t user;         /* the owner of the control file */
    struct mpshm__fd sock; /* to the manager */
    int introduced;        /* the manager knows whose connection this is */
    int slot;              /* of this process, or -1 */
    struct mpshm__segment *segments[MPSHM__SEGMENTS];
    uint32_t segment_top;       /* entries above are empty */
    struct mpshm__segment *own; /* the list of own segments, the one with room first */
    int foreign_fds;            /* descriptors of segments of others */
    uint64_t stuck_until;       /* the manager did not answer: do not ask before */
};

enum { MPSHM__SESSIONS = 16 };
extern struct mpshm__session *mpshm__sessions[MPSHM__SESSIONS];

/* All with the lock held. */
/* The session of that name; home is made when it is new, others must exist: -ESTALE. */
int mpshm__session_attach(const unsigned char *id, int is_own, struct mpshm__session **out);
/* The session of that name, as home, by its control file and a connection (each may be -1). */
int mpshm__session_attach_inherited(const unsigned char *id, int control_fd, int sock);
/* Leave a session that is not home and of which nothing is held. */
void mpshm__session_detach_idle(struct mpshm__session *session);
int mpshm__session_is_attached(const unsigned char *id);
int mpshm__segment_register(struct mpshm__session *session, struct mpshm__segment *segment);
int mpshm__segment_is_attached(const struct mpshm__session *session, uint32_t index,
                               uint64_t nonce0);
/* Needs a manager, or the owner, for a segment that is new here, but no slot. */
int mpshm__segment_attach(struct mpshm__session *session, uint32_t index, uint64_t nonce0,
                          struct mpshm__segment **out);
void mpshm__drop_stale_segments(struct mpshm__session *session);

/* ---- connection.c: what a client says to the manager; with the lock held ---- */

/* A connection, and a slot: from here on this process may hold blocks. */
int mpshm__session_register(struct mpshm__session *session);
/* Start the next manager, when this process has a slot and the last one has died: somebody must
 * look after those that die. Nothing when there is none to be had. */
void mpshm__manager_replace(struct mpshm__session *session, int control_fd);
/* One question, asked again when the manager was killed meanwhile. No slot is needed. */
int mpshm__ask(struct mpshm__session *session, struct mpshm__frame *frame, int *fd_out);
/* Register a segment: `known` when it has a entry already. */
int mpshm__offer_segment(struct mpshm__session *session, struct mpshm__segment *segment, int known);
enum { MPSHM__ATTEMPTS = 120 };
/* Is it worth asking again? Waits a moment if so. */
int mpshm__worth_another(int err, int attempt);
void mpshm__disconnect(struct mpshm__session *session);
/* A connection for a child that has the slot, or -1 for none: its end, or -errno. Waits for
 * nobody. */
int mpshm__manager_connect_child(struct mpshm__session *session, int slot);
/* The control file from a manager that serves the session: a descriptor; -ENOENT when there is
 * none.
 */
int mpshm__control_from_manager(struct mpshm__session *session);

/* ---- lock.c: one lock guards all that is private to this process ---- */

void mpshm__lock(void);
int mpshm__try_lock(void); /* 1 when it has been taken */
void mpshm__unlock(void);
void mpshm__release_deferred(const mpshm_block *block); /* without waiting for the lock */
void mpshm__reset_lock_in_child(void);

/* ---- heap.c: blocks by address ---- */

enum {
    MPSHM__HEAP = 1
        << 8, /* a flag of mpshm_block_allocate: the heap will serve from this segment */
};
/* In local_refs[]: a fork has made this memory the process's own, and the block is never let go. */
#define MPSHM__PRIVATE 0x80000000u

/* With the lock held: addresses of this segment are ours from now on, and not any more. */
int mpshm__range_register(struct mpshm__segment *segment);
void mpshm__range_unregister(struct mpshm__segment *segment);
/* The entry whose block begins last at or before that offset into the data, + 1; 0 for none. */
uint32_t mpshm__index_before(struct mpshm__segment *segment, uint64_t at);
/* Give back what the calling thread keeps. */
void mpshm__thread_cache_flush(void);
/* With the lock held, see fork.c. */
void mpshm__heap_before_fork(void);
void mpshm__heap_after_fork(int in_child);

/* ---- fork.c ---- */

void mpshm__fork_handlers(void);
uint64_t mpshm__session_retained(const struct mpshm__session *session); /* how many blocks */

/* ---- home.c ---- */

int mpshm__is_own_session(const unsigned char *id);
int mpshm__own_session(struct mpshm__session **session); /* entered; with the lock held */

/* ---- block.c: how many handles this process has to a block, and the one bit that says so ---- */

/* The lock, as `flags` allow: 0 when it must not be waited for. */
int mpshm__lock_by_flags(int flags);
void mpshm__retain(struct mpshm__session *session, struct mpshm__segment *segment, uint32_t i);
void mpshm__release(struct mpshm__session *session, struct mpshm__segment *segment, uint32_t i);
void mpshm__block_fill(mpshm_block *out, struct mpshm__segment *segment, uint32_t i);
void mpshm__release_block(const mpshm_block *block);
/* One more hold on a block that this process holds already. -EAGAIN as flags allow. */
int mpshm__block_retain(struct mpshm__segment *segment, uint32_t i, int flags, mpshm_block *out);
/* A segment that was mapped stands in the table from now on. -ESTALE when it may not. */
int mpshm__segment_insert(struct mpshm__session *session, struct mpshm__segment *segment);

/* ---- starter.c ---- */

/* Is somebody listening? */
int mpshm__manager_is_there(const struct mpshm__session *session);
/* A connection to the manager of the session; `start` starts one when there is none. */
int mpshm__manager_connect(struct mpshm__session *session, int start);
int mpshm__manager_try(const struct mpshm__session *session); /* waits for nobody */
/* A socket that listens at the session's path, in place of whatever is there. */
int mpshm__manager_listen(const unsigned char *id);

#endif
