/* Blocks by address, for allocators: see heap.c. */
#ifndef MPSHM_HEAP_H
#define MPSHM_HEAP_H

/* Release the blocks that the calling thread caches. */
void mpshm__thread_cache_flush(void);
void mpshm__thread_cache_flush_locked(void); /* with the process lock held */

/* Around a fork: see fork_private.c. */
void mpshm__fork_private_before(void);
void mpshm__fork_private_after(int in_child);

#endif
