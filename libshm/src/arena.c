/* Arenas: made, met, mapped once, and unmapped. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

enum { LEAST = 1 << 24 }; /* no arena is smaller, unless it was asked for */

static const char MAGIC[8] = {'m', 'p', 's', 'h', 'm', 'A', 0, MPSHM__LAYOUT};

/* An arena is address space and not memory, so it is made large enough to be the only one: twice
 * the machine's memory. MPSHM_ARENA_BYTES is for tests that want to see several. */
static uint64_t default_size(void)
{
    const char *text = getenv("MPSHM_ARENA_BYTES");
    uint64_t size = text ? strtoull(text, NULL, 10) : 0;

    if (size == 0)
        for (size = (uint64_t)1 << 32; size < 2 * mpshm__memory_bytes(); size *= 2)
            ;
    return size < MPSHM__LARGEST ? size : MPSHM__LARGEST;
}

static uint64_t within_limits(uint64_t size)
{
    struct rlimit limit;

    /* Every process of the tree maps it: under a limit on address space, leave room for others. */
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        while (size > LEAST && size > limit.rlim_cur / 32)
            size /= 2;
    return size;
}

uint64_t mpshm__pages(uint64_t nbytes)
{
    return (nbytes + MPSHM__PAGE - 1) & ~(uint64_t)(MPSHM__PAGE - 1);
}

/* Aligned to the largest page that a supported machine has, so that holes fall on whole pages. */
static uint64_t far_begin(uint64_t traits_at, uint64_t capacity)
{
    return traits_at + mpshm__pages(capacity * sizeof(struct mpshm__trait));
}

static uint64_t data_begin(uint64_t far_at, uint64_t capacity)
{
    uint64_t end = far_at + capacity * sizeof(struct mpshm__far);

    return (end + 0xffff) & ~(uint64_t)0xffff;
}

static void *anonymous(uint64_t nbytes)
{
    void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static int map(int fd, uint64_t size, struct mpshm__arena **out)
{
    struct mpshm__arena *arena = calloc(1, sizeof(*arena));
    void *at;

    if (arena == NULL)
        return -ENOMEM;
    at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED) {
        int err = -errno;
        free(arena);
        return err;
    }
    arena->header = at;
    arena->size = size;
    arena->fd = MPSHM__NO_FD;
    *out = arena;
    return 0;
}

static int point(struct mpshm__arena *arena)
{
    struct mpshm__arena_header *h = arena->header;
    char *base = (char *)h;

    arena->blocks = (void *)(base + h->blocks_at);
    arena->traits = (void *)(base + h->traits_at);
    arena->far = (void *)(base + h->far_at);
    arena->data = base + h->data_at;
    arena->nonce[0] = h->nonce[0];
    arena->nonce[1] = h->nonce[1];
    arena->strategy = (int)h->strategy;
    arena->capacity = h->capacity;
    arena->room = arena->size - h->data_at;
    arena->held = anonymous(arena->capacity * sizeof(uint32_t));
    return arena->held == NULL ? -ENOMEM : 0;
}

void mpshm__arena_unmap(struct mpshm__arena *arena)
{
    if (arena == NULL)
        return;
    mpshm__heap_forget(arena);
    if (arena->held)
        munmap(arena->held, arena->capacity * sizeof(uint32_t));
    if (arena->next)
        munmap(arena->next, arena->capacity * sizeof(uint32_t));
    if (arena->extent)
        munmap(arena->extent, arena->capacity * sizeof(uint32_t));
    free(arena->slab_list);
    munmap(arena->header, arena->size);
    mpshm__fd_close(&arena->fd);
    free(arena);
}

int mpshm__arena_create(int strategy, uint64_t need, const unsigned char *tree,
                        struct mpshm__slot *maker, struct mpshm__arena **out)
{
    struct mpshm__arena_header plan = {0};
    struct mpshm__arena *arena = NULL;
    uint64_t size = default_size();
    int fd = -1, err;

    if (need > 2 * MPSHM__LARGEST - (1 << 30))
        return -ENOMEM;
    memcpy(plan.magic, MAGIC, sizeof(MAGIC));
    memcpy(plan.tree, tree, MPSHM_ID_SIZE);
    if (MPSHM__RETRY(getrandom(plan.nonce, sizeof(plan.nonce), 0)) != sizeof(plan.nonce))
        return -EIO;
    plan.nonce[0] |= 1; /* 0 means that there is none */
    plan.strategy = (uint32_t)strategy;
    if (maker != NULL && strategy == MPSHM_FILE_SYSTEM) {
        /* Killed before it is registered: the name is found here. */
        atomic_store(&maker->making[1], plan.nonce[1]);
        atomic_store(&maker->making[0], plan.nonce[0]);
    }

    size = within_limits(size);
    for (;; size /= 2) {
        /* A row for each page of data: only when smaller blocks than that fill a whole arena will
         * there be a second one. */
        plan.capacity = size / MPSHM__PAGE < 1024 ? 1024 : size / MPSHM__PAGE;
        plan.blocks_at = MPSHM__PAGE;
        plan.traits_at = plan.blocks_at + mpshm__pages(plan.capacity * sizeof(struct mpshm__block));
        plan.far_at = far_begin(plan.traits_at, plan.capacity);
        plan.data_at = data_begin(plan.far_at, plan.capacity);
        uint64_t data =
            size > need + MPSHM__SLAB_BYTES ? size : mpshm__pages(need) + MPSHM__SLAB_BYTES;
        plan.size = plan.data_at + data;

        fd = mpshm__object_create(strategy, plan.nonce, plan.size);
        if (fd == -EFBIG && size / 2 >= need && size > LEAST)
            continue; /* ulimit -f */
        if (fd < 0)
            return fd;
        err = map(fd, plan.size, &arena);
        if (err == 0)
            break;
        close(fd);
        if (strategy == MPSHM_FILE_SYSTEM)
            mpshm__object_unlink(plan.nonce);
        /* Address space can be scarce too (ulimit -v): be content with less. */
        if (err != -ENOMEM || size / 2 < need || size <= LEAST)
            return err;
    }
    mpshm__fd_set(&arena->fd, fd);
    arena->must_reserve = mpshm__object_must_reserve(strategy);
    if (arena->must_reserve && (err = mpshm__reserve(fd, 0, MPSHM__PAGE)) < 0)
        goto fail;
    memcpy(arena->header, &plan, sizeof(plan));
    err = point(arena);
    if (err < 0)
        goto fail;
    arena->next = anonymous(plan.capacity * sizeof(uint32_t));
    arena->extent = anonymous(plan.capacity * sizeof(uint32_t));
    if (arena->next == NULL || arena->extent == NULL) {
        err = -ENOMEM;
        goto fail;
    }
    arena->own = 1;
    *out = arena;
    return 0;

fail:
    if (strategy == MPSHM_FILE_SYSTEM)
        mpshm__object_unlink(plan.nonce);
    mpshm__arena_unmap(arena);
    return err;
}

/* Every number that is used to compute an address is checked here, once. */
static int sound(const struct mpshm__arena_header *h, uint64_t size,
                 const struct mpshm__arena_row *row, const unsigned char *tree)
{
    return memcmp(h->magic, MAGIC, sizeof(MAGIC)) == 0 &&
           memcmp(h->tree, tree, MPSHM_ID_SIZE) == 0 &&
           h->nonce[0] == atomic_load(&row->nonce[0]) &&
           h->nonce[1] == atomic_load(&row->nonce[1]) && h->size == size && h->capacity >= 1 &&
           h->capacity <= UINT32_MAX && h->blocks_at == MPSHM__PAGE &&
           h->traits_at == h->blocks_at + mpshm__pages(h->capacity * sizeof(struct mpshm__block)) &&
           h->far_at == far_begin(h->traits_at, h->capacity) &&
           h->data_at == data_begin(h->far_at, h->capacity) && h->data_at < size;
}

int mpshm__arena_map(int fd, uint32_t index, const struct mpshm__arena_row *row,
                     const struct mpshm__tree *tree, struct mpshm__arena **out)
{
    struct mpshm__arena *arena;
    struct stat st;
    int err = mpshm__object_check((int)atomic_load(&row->strategy), fd, tree->user);

    if (err < 0)
        return err;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size < MPSHM__PAGE)
        return -EBADMSG;
    err = map(fd, (uint64_t)st.st_size, &arena);
    if (err < 0)
        return err;
    if (!sound(arena->header, (uint64_t)st.st_size, row, tree->id)) {
        munmap(arena->header, arena->size);
        free(arena);
        return -ESTALE;
    }
    err = point(arena);
    if (err < 0) {
        mpshm__arena_unmap(arena);
        return err;
    }
    arena->index = index;
    *out = arena;
    return 0;
}

int mpshm__arena_punch(struct mpshm__arena *arena, uint64_t at, uint64_t size)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t first = (at + page - 1) / page * page, end = (at + size) / page * page;

    /* A stray write into the tables must not make a hole in somebody else's memory. */
    if (size > arena->room || at > arena->room - size)
        return 0;
    if (end <= first || first != at || end != at + size)
        return 0; /* all of it or nothing: what is half a hole is hard to keep books of */
    /* A hole through the mapping: it needs no descriptor. It fails on locked pages, for example;
     * then the memory stays in use and its content stays what it was. */
    return madvise(arena->data + at, size, MADV_REMOVE) == 0;
}
