/* Blocks as malloc would give them: by address alone, for allocators that keep no handle.
 *
 * Note [What a process keeps]
 *   Taking a block and giving it back is some twenty atomic operations, most of them for the eyes
 * of other processes. A block that nobody else has ever heard of needs none: while it lives, its
 *   epoch is 0 (a send, a claim, a fork move it). So each thread keeps the last few such blocks
 * that were freed in it, and hands them out again. They count as held, no other thread touches
 * them, and they are given back when the thread ends, forks, or asks for statistics.
 *
 *   - Killed here: the sweep frees them, as all that this process held.
 *   - Forks here: the thread that forks has given back its own before. Those of other threads get
 *     the child as a holder, so their epoch is no longer 0, and they are given back when their turn
 *     comes; in the child they are held until it ends.
 *
 * Note [Whose address is it]
 *   free() must tell ours from malloc's without a lock. The ranges of the segments that serve here
 *   stand in a list; a range is emptied before its segment is unmapped, which happens only when
 *   nothing in it is held, and may then be filled with another. Whoever looks while a range is
 *   being changed may pass it by: no address that can be asked about lies in it. A version that is
 *   odd meanwhile, and another afterwards, tells. In each of these segments `index_at_page` says
 * for each page which block begins there, while it is in use. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "internal.h"

enum { RANGES = 256, THREAD_CACHE_BLOCKS = 8, THREAD_CACHE_LARGEST = 1 << 20 };

/* ---- ranges ---- */

static struct {
    _Atomic uintptr_t end; /* 0: none */
    _Atomic uintptr_t begin;
    struct mpshm__segment *_Atomic segment;
    _Atomic uint32_t version;
} ranges[RANGES];
static _Atomic uint32_t range_count;

static struct mpshm__segment *segment_at(const void *address)
{
    uintptr_t at = (uintptr_t)address;
    uint32_t n = atomic_load_explicit(&range_count, memory_order_acquire);

    for (uint32_t r = 0; r < n; r++) {
        uint32_t version = atomic_load_explicit(&ranges[r].version, memory_order_acquire);
        if (at >= atomic_load_explicit(&ranges[r].begin, memory_order_acquire) &&
            at < atomic_load_explicit(&ranges[r].end, memory_order_acquire)) {
            struct mpshm__segment *segment =
                atomic_load_explicit(&ranges[r].segment, memory_order_acquire);
            if (version % 2 == 0 &&
                atomic_load_explicit(&ranges[r].version, memory_order_relaxed) == version)
                return segment;
        }
    }
    return NULL;
}

static void set_range(uint32_t r, struct mpshm__segment *segment, uintptr_t begin, uintptr_t end)
{
    atomic_fetch_add(&ranges[r].version, 1);
    atomic_store(&ranges[r].begin, begin);
    atomic_store(&ranges[r].end, end);
    atomic_store(&ranges[r].segment, segment);
    atomic_fetch_add(&ranges[r].version, 1);
}

int mpshm__range_register(struct mpshm__segment *segment)
{
    uint32_t n = atomic_load(&range_count), r = 0;
    size_t bytes = (segment->room / MPSHM__PAGE + 1) * sizeof(uint32_t);
    void *index_at_page;

    if (segment->index_at_page != NULL)
        return 0;
    while (r < n && atomic_load(&ranges[r].segment) != NULL)
        r++;
    if (r == RANGES)
        return -ENOSPC;
    index_at_page = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (index_at_page == MAP_FAILED)
        return -ENOMEM;
    segment->index_at_page = index_at_page;
    set_range(r, segment, (uintptr_t)segment->data, (uintptr_t)segment->data + segment->room);
    if (r == n)
        atomic_store_explicit(&range_count, n + 1, memory_order_release);
    return 0;
}

void mpshm__range_unregister(struct mpshm__segment *segment)
{
    if (segment->index_at_page == NULL)
        return;
    for (uint32_t r = 0; r < atomic_load(&range_count); r++)
        if (atomic_load(&ranges[r].segment) == segment)
            set_range(r, NULL, UINTPTR_MAX, 0);
    munmap(segment->index_at_page, (segment->room / MPSHM__PAGE + 1) * sizeof(uint32_t));
    segment->index_at_page = NULL;
}

static uint32_t *page_entry(struct mpshm__segment *segment, const void *address)
{
    return &segment->index_at_page[(uint64_t)((const char *)address - segment->data) / MPSHM__PAGE];
}

/* The entry whose block begins last at or before `at`, + 1: blocks lie in the order of their
 * entries. */
uint32_t mpshm__index_before(struct mpshm__segment *segment, uint64_t at)
{
    uint32_t low = 0, high = mpshm__used(segment);

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint64_t where = atomic_load_explicit(&segment->blocks[middle].where, memory_order_relaxed);
        if (where * 64 <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

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

/* ---- what a thread keeps ---- */

static __thread struct {
    uint32_t count;
    int armed;
    struct cached {
        struct mpshm__segment *segment;
        void *data;
        uint32_t index, size_class;
    } blocks[THREAD_CACHE_BLOCKS];
} thread_cache;

static pthread_key_t at_thread_end;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void give_back(struct mpshm__segment *segment, uint32_t i)
{
    mpshm_block block = {.segment = segment, .index = i};

    mpshm_block_release(&block);
}

static void give_all_back(void *unused)
{
    (void)unused;
    while (thread_cache.count > 0) {
        struct cached *last = &thread_cache.blocks[--thread_cache.count];
        give_back(last->segment, last->index);
    }
}

void mpshm__thread_cache_flush(void)
{
    give_all_back(NULL);
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
    if (pthread_key_create(&at_thread_end, give_all_back) != 0)
        at_thread_end = (pthread_key_t)-1;
}

/* Is this thread's end going to be heard of? */
static int armed(void)
{
    if (!thread_cache.armed) {
        pthread_once(&once, make_key);
        thread_cache.armed = at_thread_end != (pthread_key_t)-1 &&
                                     pthread_setspecific(at_thread_end, &thread_cache) == 0
                                 ? 1
                                 : -1;
    }
    return thread_cache.armed > 0;
}

static int known_to_us_alone(struct mpshm__segment *segment, uint32_t i)
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
        if (!known_to_us_alone(got.segment, got.index)) {
            give_back(got.segment, got.index);
            continue;
        }
        atomic_store_explicit(&got.segment->blocks[got.index].nbytes, nbytes, memory_order_relaxed);
        *page_entry(got.segment, got.data) = got.index + 1;
        return got.data;
    }
    return NULL;
}

static void put_cached(struct mpshm__segment *segment, uint32_t i, void *data, uint32_t size_class)
{
    if (thread_cache.count == THREAD_CACHE_BLOCKS) { /* the oldest goes */
        struct cached oldest = thread_cache.blocks[0];
        memmove(&thread_cache.blocks[0], &thread_cache.blocks[1],
                (THREAD_CACHE_BLOCKS - 1) * sizeof(oldest));
        thread_cache.count--;
        give_back(oldest.segment, oldest.index);
    }
    thread_cache.blocks[thread_cache.count++] =
        (struct cached){.segment = segment, .data = data, .index = i, .size_class = size_class};
}

/* ---- the heap ---- */

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
    /* All of the class, where it has to be reserved: it may grow up to there. */
    rounded = nbytes <= THREAD_CACHE_LARGEST ? mpshm__class_bytes(mpshm__class_of(nbytes)) : nbytes;
    err = mpshm_block_allocate(strategy, rounded, flags | MPSHM__HEAP, &block);
    if (err < 0)
        return err;
    struct mpshm__segment *segment = block.segment;
    atomic_store(&segment->blocks[block.index].nbytes, nbytes);
    *page_entry(segment, block.data) = block.index + 1;
    *out = block.data;
    return 0;
}

int mpshm_heap_free(void *address)
{
    struct mpshm__segment *segment = segment_at(address);
    uint32_t *entry, i;

    if (segment == NULL)
        return 0;
    entry = page_entry(segment, address);
    i = *entry;
    /* None, when a fork made this memory the child's own: then it is never used again. */
    if (i-- == 0)
        return 1;
    *entry = 0;
    uint32_t size_class =
        atomic_load_explicit(&segment->metadata[i].size_class, memory_order_relaxed);
    if (mpshm__class_bytes(size_class) <= THREAD_CACHE_LARGEST && known_to_us_alone(segment, i) &&
        armed())
        put_cached(segment, i, address, size_class);
    else
        give_back(segment, i);
    return 1;
}

int mpshm_heap_resize(void *address, uint64_t nbytes, uint64_t *before)
{
    struct mpshm__segment *segment = segment_at(address);
    uint32_t i;

    if (segment == NULL)
        return -ENOENT;
    i = *page_entry(segment, address);
    if (i == 0) /* a fork made it our own: it can only be left behind */
        i = mpshm__index_before(segment, (uint64_t)((const char *)address - segment->data));
    if (i-- == 0)
        return -ENOENT;
    *before = atomic_load(&segment->blocks[i].nbytes);
    if (nbytes < MPSHM_HEAP_LEAST || nbytes > THREAD_CACHE_LARGEST ||
        !known_to_us_alone(segment, i) ||
        mpshm__class_of(nbytes) != atomic_load(&segment->metadata[i].size_class))
        return 0;
    atomic_store(&segment->blocks[i].nbytes, nbytes);
    return 1;
}

int mpshm_block_at(const void *address, int flags, mpshm_block *out)
{
    struct mpshm__segment *segment = segment_at(address);
    uint32_t i;
    int err = segment == NULL ? -ENOENT : find(segment, address, &i);

    return err < 0 ? err : mpshm__block_retain(segment, i, flags, out);
}

/* ---- fork ---- */

static int (*keeps_private)(const void *data, uint64_t nbytes);

void mpshm_set_fork_private(int (*decide)(const void *data, uint64_t nbytes))
{
    keeps_private = decide;
}

/* Snapshots of what the child shall have for itself, made while the parent stands still. */
static struct snapshot {
    struct snapshot *next;
    struct mpshm__segment *segment;
    uint32_t index;
    uint64_t bytes;
} *snapshots;

static void take_snapshot(struct mpshm__segment *segment, uint32_t i)
{
    void *data = segment->data + (uint64_t)atomic_load(&segment->blocks[i].where) * 64;
    uint64_t nbytes = atomic_load(&segment->blocks[i].nbytes), bytes = mpshm__pages(nbytes);
    struct snapshot *s;

    if (!keeps_private(data, nbytes))
        return;
    s = mmap(NULL, MPSHM__PAGE + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED)
        return; /* there is no way to refuse a fork from here */
    memcpy((char *)s + MPSHM__PAGE, data, nbytes);
    *s = (struct snapshot){.next = snapshots, .segment = segment, .index = i, .bytes = bytes};
    snapshots = s;
}

void mpshm__heap_before_fork(void)
{
    mpshm__thread_cache_flush_locked();
    for (uint32_t r = 0; keeps_private != NULL && r < atomic_load(&range_count); r++) {
        struct mpshm__segment *segment = atomic_load(&ranges[r].segment);
        if (segment == NULL || segment->retained_blocks == 0)
            continue;
        for (uint32_t i = 0, used = mpshm__used(segment); i < used; i++) {
            uint64_t where = (uint64_t)atomic_load(&segment->blocks[i].where) * 64;
            if (segment->local_refs[i] != 0 && where % MPSHM__PAGE == 0 && where < segment->room &&
                segment->index_at_page[where / MPSHM__PAGE] == i + 1)
                take_snapshot(segment, i);
        }
    }
}

/* The child's copy takes the place of the shared pages, at the same address. It goes on
 * retained_blocks the block and never lets go, so that nothing else is ever met at that address. */
void mpshm__heap_after_fork(int in_child)
{
    while (snapshots != NULL) {
        struct snapshot s = *snapshots;
        char *copy = (char *)snapshots + MPSHM__PAGE;
        uint64_t where = (uint64_t)atomic_load(&s.segment->blocks[s.index].where) * 64;
        if (!in_child) {
            munmap(snapshots, MPSHM__PAGE + s.bytes);
        } else {
            mremap(copy, s.bytes, s.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, s.segment->data + where);
            munmap(snapshots, MPSHM__PAGE);
            s.segment->index_at_page[where / MPSHM__PAGE] = 0;
            s.segment->local_refs[s.index] |= MPSHM__PRIVATE;
        }
        snapshots = s.next;
    }
}
