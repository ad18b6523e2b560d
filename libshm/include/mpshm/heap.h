/* Blocks by address, for allocators. */
#ifndef MPSHM_PUBLIC_HEAP_H
#define MPSHM_PUBLIC_HEAP_H
#include <stdint.h>

#include "mpshm/block.h"

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

#endif
