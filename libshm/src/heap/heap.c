/* Blocks by address, as malloc returns them, for allocators that keep no handle; each thread caches
 * the last few small ones that it freed.
 *
 * Note [The thread cache]
 *   To take a block and to free it costs some twenty atomic operations, most of which tell other
 *   processes about it. A block that no other process has ever known of needs none of them. Such a
 *   block has version 0, because a send, a receive and a fork all change the version. So each
 *   thread caches the last few such blocks that it freed and returns them from its next
 *   allocations. The process keeps its references to cached blocks, no other thread touches them,
 *   and the thread releases them when it ends, forks or asks for statistics.
 *
 *   - The process is killed: the reaper frees them with all that the process had.
 *   - The process forks: the thread that forks has released its own before. The blocks of other
 *     threads get the child as a holder, so their version is no longer 0 and they are released when
 *     their turn comes. The child keeps its references until it ends. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "allocator/grow.h"
#include "allocator/size_class.h"
#include "heap/heap.h"
#include "reference/block.h"
#include "segment/address_range.h"
#include "session/fork.h"

enum { THREAD_CACHE_BLOCKS = 8, THREAD_CACHE_LARGEST = 1 << 20 };

/* ---- the thread cache ---- */

static __thread struct {
    uint32_t count;
    int end_is_hooked;
    struct cached {
        struct mpshm__segment *segment;
        void *data;
        uint32_t index, size_class;
    } blocks[THREAD_CACHE_BLOCKS];
} thread_cache;

static pthread_key_t at_thread_end;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void release(struct mpshm__segment *segment, uint32_t i)
{
    mpshm_block block = {.segment = segment, .index = i};

    mpshm_block_release(&block);
}

static void release_all(void *unused)
{
    (void)unused;
    while (thread_cache.count > 0) {
        struct cached *last = &thread_cache.blocks[--thread_cache.count];
        release(last->segment, last->index);
    }
}

void mpshm__thread_cache_flush(void)
{
    release_all(NULL);
}

void mpshm__thread_cache_flush_locked(void)
{
    while (thread_cache.count > 0) {
        struct cached *last = &thread_cache.blocks[--thread_cache.count];
        mpshm__release_block(&(mpshm_block){.segment = last->segment, .index = last->index});
    }
}

static void make_key(void)
{
    if (pthread_key_create(&at_thread_end, release_all) != 0)
        at_thread_end = (pthread_key_t)-1;
}

/* 1 when this thread's end will call release_all. */
static int end_is_hooked(void)
{
    if (!thread_cache.end_is_hooked) {
        pthread_once(&once, make_key);
        thread_cache.end_is_hooked = at_thread_end != (pthread_key_t)-1 &&
                                             pthread_setspecific(at_thread_end, &thread_cache) == 0
                                         ? 1
                                         : -1;
    }
    return thread_cache.end_is_hooked > 0;
}

static int is_unshared(struct mpshm__segment *segment, uint32_t i)
{
    uint64_t state = atomic_load_explicit(&segment->blocks[i].state, memory_order_acquire);

    return segment->own && (state & (MPSHM__LIVE - 1)) == 0;
}

static void *take_cached(int strategy, uint64_t nbytes)
{
    uint32_t size_class = mpshm__class_of(nbytes);

    for (uint32_t k = thread_cache.count; k-- > 0;) {
        struct cached got = thread_cache.blocks[k];
        if (got.size_class != size_class ||
            got.segment->strategy != mpshm__usable_strategy(strategy))
            continue;
        memmove(&thread_cache.blocks[k], &thread_cache.blocks[k + 1],
                (--thread_cache.count - k) * sizeof(got));
        if (!is_unshared(got.segment, got.index)) {
            release(got.segment, got.index);
            continue;
        }
        atomic_store_explicit(&got.segment->blocks[got.index].nbytes, nbytes, memory_order_relaxed);
        *mpshm__page_entry(got.segment, got.data) = got.index + 1;
        return got.data;
    }
    return NULL;
}

static void put_cached(struct mpshm__segment *segment, uint32_t i, void *data, uint32_t size_class)
{
    if (thread_cache.count == THREAD_CACHE_BLOCKS) { /* release the oldest */
        struct cached oldest = thread_cache.blocks[0];
        memmove(&thread_cache.blocks[0], &thread_cache.blocks[1],
                (THREAD_CACHE_BLOCKS - 1) * sizeof(oldest));
        thread_cache.count--;
        release(oldest.segment, oldest.index);
    }
    thread_cache.blocks[thread_cache.count++] =
        (struct cached){.segment = segment, .data = data, .index = i, .size_class = size_class};
}

/* ---- the heap ---- */

static int find(struct mpshm__segment *segment, const void *address, uint32_t *out)
{
    uint64_t at = (uint64_t)((const char *)address - segment->data), where;
    uint32_t entry = mpshm__index_before(segment, at);

    if (entry == 0)
        return -ENOENT;
    where = (uint64_t)atomic_load(&segment->blocks[entry - 1].where) * 64;
    if (where >= segment->room || where % MPSHM__PAGE != 0 ||
        segment->index_at_page[where / MPSHM__PAGE] != entry ||
        at - where >= atomic_load(&segment->blocks[entry - 1].nbytes))
        return -ENOENT;
    *out = entry - 1;
    return 0;
}

int mpshm_heap_allocate(int strategy, uint64_t nbytes, int flags, void **out)
{
    mpshm_block block;
    uint64_t rounded;
    int err;

    if (nbytes < MPSHM_HEAP_LEAST)
        return -EINVAL;
    if (nbytes <= THREAD_CACHE_LARGEST && thread_cache.count > 0 &&
        (*out = take_cached(strategy, nbytes)) != NULL) {
        if (flags & MPSHM_ZEROED)
            memset(*out, 0, nbytes);
        return 0;
    }
    if (nbytes > MPSHM__LARGEST)
        return -ENOMEM;
    /* Reserve the whole class where memory must be reserved, because the block may grow up to
     * it. */
    rounded = nbytes <= THREAD_CACHE_LARGEST ? mpshm__class_bytes(mpshm__class_of(nbytes)) : nbytes;
    err = mpshm_block_allocate(strategy, rounded, flags | MPSHM__HEAP, &block);
    if (err < 0)
        return err;
    struct mpshm__segment *segment = block.segment;
    atomic_store(&segment->blocks[block.index].nbytes, nbytes);
    *mpshm__page_entry(segment, block.data) = block.index + 1;
    *out = block.data;
    return 0;
}

int mpshm_heap_free(void *address)
{
    struct mpshm__segment *segment = mpshm__segment_at(address);
    uint32_t *entry, i;

    if (segment == NULL)
        return 0;
    entry = mpshm__page_entry(segment, address);
    i = *entry;
    /* 0 when a fork made this memory private to the child: it is never used again. */
    if (i-- == 0)
        return 1;
    *entry = 0;
    uint32_t size_class =
        atomic_load_explicit(&segment->metadata[i].size_class, memory_order_relaxed);
    if (mpshm__class_bytes(size_class) <= THREAD_CACHE_LARGEST && is_unshared(segment, i) &&
        end_is_hooked())
        put_cached(segment, i, address, size_class);
    else
        release(segment, i);
    return 1;
}

int mpshm_heap_resize(void *address, uint64_t nbytes, uint64_t *before)
{
    struct mpshm__segment *segment = mpshm__segment_at(address);
    uint32_t i;

    if (segment == NULL)
        return -ENOENT;
    i = *mpshm__page_entry(segment, address);
    if (i == 0) /* private since a fork: it cannot be resized */
        i = mpshm__index_before(segment, (uint64_t)((const char *)address - segment->data));
    if (i-- == 0)
        return -ENOENT;
    *before = atomic_load(&segment->blocks[i].nbytes);
    if (nbytes < MPSHM_HEAP_LEAST || nbytes > THREAD_CACHE_LARGEST || !is_unshared(segment, i) ||
        mpshm__class_of(nbytes) != atomic_load(&segment->metadata[i].size_class))
        return 0;
    atomic_store(&segment->blocks[i].nbytes, nbytes);
    return 1;
}

int mpshm_block_at(const void *address, int flags, mpshm_block *out)
{
    struct mpshm__segment *segment = mpshm__segment_at(address);
    uint32_t i;
    int err = segment == NULL ? -ENOENT : find(segment, address, &i);

    return err < 0 ? err : mpshm__block_retain(segment, i, flags, out);
}

static void before_fork(void)
{
    mpshm__thread_cache_flush_locked();
    mpshm__fork_private_before();
}

__attribute__((constructor)) static void hook_fork(void)
{
    mpshm__set_fork_hook((struct mpshm__fork_hook){before_fork, mpshm__fork_private_after});
}
