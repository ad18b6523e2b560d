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
 *   - Every descriptor is born close-on-exec. EINTR never reaches the caller.
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

/* ---- Segments ------------------------------------------------------------------------------ */

/* A segment is one object of shared memory, mapped whole: a page that says what it is, and the
 * bytes behind it. Two strategies say how it is made and how another process meets it:
 *
 *   MPSHM_FILE_DESCRIPTOR  a sealed memfd, met by passing its descriptor. No name, nothing to
 *                          leak, not bounded by the size of /dev/shm. Sparse: memory is used when
 *                          it is touched (under strict overcommit it is reserved at birth).
 *   MPSHM_FILE_SYSTEM      a POSIX shared memory object, 128 random bits in its name, mode 0600,
 *                          met by that name. Its file system has a size, so every byte is reserved
 *                          at birth: a full /dev/shm is -ENOSPC here and never a SIGBUS later. */
typedef struct mpshm_segment mpshm_segment;

enum mpshm_strategy { MPSHM_FILE_DESCRIPTOR = 1, MPSHM_FILE_SYSTEM = 2 };

enum { MPSHM_ID_SIZE = 16, MPSHM_NAME_SIZE = 48 };

/* Make a segment that offers `nbytes` zeroed bytes (0 is allowed), with one claim on it.
 * -ENOMEM or -ENOSPC when there is no room, -EMFILE when there is no descriptor, -EINVAL for an
 * unknown strategy. The caller closes `*out`. */
int mpshm_segment_create(int strategy, uint64_t nbytes, mpshm_segment **out);

/* Meet a segment by a descriptor. `fd` stays the caller's: the segment keeps a duplicate.
 * Adds no claim (a memfd lives as long as a descriptor or a mapping does).
 * -EBADMSG when it is not a segment of ours, was cut short, or could still be cut short by its
 * maker (no seals): mapping it would risk a SIGBUS. The caller closes `*out`. */
int mpshm_segment_open_fd(int fd, mpshm_segment **out);

/* Meet a segment by name. Adds no claim: see mpshm_segment_claim. -ENOENT when the name has gone,
 * -EBADMSG when it is not ours. The caller closes `*out`. */
int mpshm_segment_open_name(const char *name, mpshm_segment **out);

/* Claims are the cross-process count of a named segment: one for each process that holds it and
 * one for each message that carries it. A claim on one that nobody holds any more is -ESTALE. */
int mpshm_segment_claim(mpshm_segment *segment);

/* Give one claim back. The last one unlinks the name; the mapping stays until close. */
int mpshm_segment_release(mpshm_segment *segment);

/* Unmap and close. Gives back no claim. */
void mpshm_segment_close(mpshm_segment *segment);

/* The usable bytes, page-aligned, and how many there are. */
void *mpshm_segment_data(const mpshm_segment *segment);
uint64_t mpshm_segment_nbytes(const mpshm_segment *segment);

/* MPSHM_ID_SIZE random bytes that no other segment has. */
const unsigned char *mpshm_segment_id(const mpshm_segment *segment);

/* The name ("/mpshm-" and 32 hex digits) of a named segment, otherwise "". */
const char *mpshm_segment_name(const mpshm_segment *segment);

/* The descriptor of a memfd segment, which the segment closes; otherwise -1. */
int mpshm_segment_fd(const mpshm_segment *segment);

#endif
