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

enum {
    FIRST = 1 << 26, /* data of the first segment of a process */
    LEAST = 1 << 20, /* no segment is smaller, unless it was asked for */
    ROW_FOR = 1024,  /* bytes of data for each row of the tables: small blocks fill it too */
    LEAST_ROWS = 1024,
    DUMP_STEP = 1 << 24,
};

static const char MAGIC[8] = {'m', 'p', 's', 'h', 'm', 'A', 0, MPSHM__LAYOUT};

/* As large as all before, so that there are few. MPSHM_ARENA_BYTES is for tests that want to see
 * many. */
uint64_t mpshm__arena_next_size(uint64_t total)
{
    const char *text = getenv("MPSHM_ARENA_BYTES");
    uint64_t size = text ? strtoull(text, NULL, 10) : 0;
    struct rlimit limit;

    if (size == 0)
        for (size = FIRST; size < total && size < MPSHM__OFFSETS / 2; size *= 2)
            ;
    /* Every process of the tree maps it: under a limit on address space, leave room for others. */
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        while (size > LEAST && size > limit.rlim_cur / 32)
            size /= 2;
    return size < MPSHM__OFFSETS ? size : MPSHM__OFFSETS;
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
    /* To dump a page that has never been touched makes it: a crash would write, and use, as much
     * memory as there is address space. */
    madvise(at, size, MADV_DONTDUMP);
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
    if (arena->held == NULL)
        return -ENOMEM;
    const char *dump = getenv("MPSHM_DUMP");
    arena->dump = dump != NULL && strcmp(dump, "1") == 0;
    mpshm__arena_dump(arena);
    return 0;
}

/* With MPSHM_DUMP=1 a core dump has what has been allocated so far, in steps, since each call that
 * says so may split a mapping. */
void mpshm__arena_dump(struct mpshm__arena *arena)
{
    uint64_t carved, end;

    if (!arena->dump)
        return;
    carved = atomic_load(&arena->header->carved);
    if (carved <= arena->dumped)
        return;
    end = (carved + DUMP_STEP - 1) / DUMP_STEP * DUMP_STEP;
    if (end > arena->room)
        end = arena->room;
    if (madvise(arena->data, mpshm__pages(end) <= arena->room ? mpshm__pages(end) : arena->room,
                MADV_DODUMP) == 0)
        arena->dumped = end;
}

int mpshm__arena_own(struct mpshm__arena *arena)
{
    if (arena->next == NULL)
        arena->next = anonymous(arena->capacity * sizeof(uint32_t));
    if (arena->extent == NULL)
        arena->extent = anonymous(arena->capacity * sizeof(uint32_t));
    if (arena->next == NULL || arena->extent == NULL)
        return -ENOMEM;
    memset(arena->warm, 0, sizeof(arena->warm));
    memset(arena->cold, 0, sizeof(arena->cold));
    arena->slabs = 0;
    arena->own = 1;
    return 0;
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

/* The data of a segment, and a row for each block that may come to lie there. One that is made for
 * a block larger than it would have been has just that block. */
static void measure(struct mpshm__arena_header *plan, uint64_t size, uint64_t need)
{
    uint64_t bytes = mpshm__class_bytes(mpshm__class_of(need));
    uint64_t least = mpshm__pages(bytes < MPSHM__SLAB_BYTES ? MPSHM__SLAB_BYTES : bytes);

    plan->capacity = LEAST_ROWS;
    if (size > least && size / ROW_FOR > LEAST_ROWS)
        plan->capacity = size / ROW_FOR;
    plan->blocks_at = MPSHM__PAGE;
    plan->traits_at = plan->blocks_at + mpshm__pages(plan->capacity * sizeof(struct mpshm__block));
    plan->far_at = far_begin(plan->traits_at, plan->capacity);
    plan->data_at = data_begin(plan->far_at, plan->capacity);
    plan->size = plan->data_at + mpshm__pages(size > least ? size : least);
}

int mpshm__arena_create(int strategy, uint64_t size, uint64_t need, const unsigned char *tree,
                        struct mpshm__slot *maker, struct mpshm__arena **out)
{
    struct mpshm__arena_header plan = {0};
    struct mpshm__arena *arena = NULL;
    int fd = -1, err;

    if (need > MPSHM__LARGEST)
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

    for (;; size /= 2) {
        measure(&plan, size, need);
        err = mpshm__file_size_allowed(plan.size);
        fd = err < 0 ? err : mpshm__object_create(strategy, plan.nonce, plan.size);
        if (fd == -EFBIG && size > need && size > LEAST)
            continue; /* ulimit -f */
        if (fd < 0)
            return fd;
        err = map(fd, plan.size, &arena);
        if (err == 0)
            break;
        close(fd);
        if (strategy == MPSHM_FILE_SYSTEM)
            mpshm__object_unlink(plan.nonce);
        /* Address space can be scarce too (ulimit -v), and memory that may be locked (mlockall,
         * then it is EAGAIN): be content with less. */
        if ((err != -ENOMEM && err != -EAGAIN) || size <= need || size <= LEAST)
            return err == -EAGAIN ? -ENOMEM : err;
    }
    mpshm__fd_set(&arena->fd, fd);
    arena->must_reserve = mpshm__object_must_reserve(strategy);
    if (arena->must_reserve && (err = mpshm__reserve(fd, 0, MPSHM__PAGE)) < 0)
        goto fail;
    memcpy(arena->header, &plan, sizeof(plan));
    err = point(arena);
    if (err == 0)
        err = mpshm__arena_own(arena);
    if (err < 0)
        goto fail;
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
