#ifndef MPSHM_H
#define MPSHM_H

/* mpshm: shared memory between processes, made to be bound from other languages.
 *
 * Include this file alone. It includes the headers of the interface in the order in which to read
 * them, each about one subject.
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
 *   - The Python binding compiles these headers as its interface definition, so they are plain C:
 *     enums, one macro for a number that is too large for an enum, no inline functions. */

#include "mpshm/process.h"
#include "mpshm/block.h"
#include "mpshm/channel.h"
#include "mpshm/heap.h"
#include "mpshm/sync.h"
#include "mpshm/diagnostics.h"
#include "mpshm/session.h"

/* "X.Y.Z", the version of the library that is linked in. A static string. */
const char *mpshm_version(void);

#endif
