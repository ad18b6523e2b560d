/* Allocation in an own arena: a warm block of the class, a cold one, or new ground.
 *
 * All of it is private to the owner and under its process's lock, except the list of returned
 * blocks, which everybody pushes to and the owner empties in one exchange. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum {
    ROWS_AT_A_TIME = 1024,
    ZERO_BY_FRESH = 1 << 20, /* from this size on, zeroed memory is memory never written to */
};

static uint32_t pop(struct mpshm__arena *arena, uint32_t *list)
{
    uint32_t head = *list;

    if (head != 0)
        *list = arena->next[head - 1];
    return head;
}

static void push(struct mpshm__arena *arena, uint32_t *list, uint32_t i)
{
    arena->next[i] = *list;
    *list = i + 1;
}

static uint64_t place(const struct mpshm__arena *arena, uint32_t i)
{
    return (uint64_t)atomic_load_explicit(&arena->blocks[i].where, memory_order_relaxed) * 64;
}

static void uncache(struct mpshm__control *control, struct mpshm__arena *arena, uint64_t size)
{
    atomic_fetch_sub(&arena->header->cached, size);
    atomic_fetch_sub(&control->cached_bytes, size);
}

static int reads_as_zero(const struct mpshm__arena *arena, uint32_t i)
{
    int warmth = atomic_load(&arena->traits[i].warmth);

    return warmth == MPSHM__FRESH || warmth == MPSHM__PUNCHED;
}

void mpshm__drain_returned(struct mpshm__arena *arena)
{
    uint64_t head;

    if (atomic_load_explicit(&arena->header->returned, memory_order_relaxed) == 0)
        return;
    head = atomic_exchange(&arena->header->returned, 0);
    while (head != 0 && head <= arena->capacity) {
        uint32_t i = (uint32_t)(head - 1);
        uint32_t c = atomic_load(&arena->traits[i].size_class) % MPSHM__CLASSES;
        head = atomic_load(&arena->blocks[i].outstanding);
        push(arena, reads_as_zero(arena, i) ? &arena->cold[c] : &arena->warm[c], i);
    }
}

/* ---- what may be touched without a SIGBUS ---- */

static int reserve_rows(struct mpshm__arena *arena, uint32_t rows)
{
    struct mpshm__arena_header *h = arena->header;
    uint32_t from = arena->reserved_rows, to = rows + ROWS_AT_A_TIME;
    int err;

    if (!arena->must_reserve || rows <= from)
        return 0;
    if (to > arena->capacity)
        to = (uint32_t)arena->capacity;
    err = mpshm__arena_reserve(arena, h->blocks_at + from * sizeof(struct mpshm__block),
                               (to - from) * sizeof(struct mpshm__block));
    if (err == 0)
        err = mpshm__arena_reserve(arena, h->traits_at + from * sizeof(struct mpshm__trait),
                                   (to - from) * sizeof(struct mpshm__trait));
    if (err == 0) /* processes with a far slot write here, and they cannot reserve it */
        err = mpshm__arena_reserve(arena, h->far_at + from * sizeof(struct mpshm__far),
                                   (to - from) * sizeof(struct mpshm__far));
    if (err == 0)
        arena->reserved_rows = to;
    return err;
}

static int reserve_data(struct mpshm__arena *arena, uint64_t at, uint64_t size)
{
    return arena->must_reserve ? mpshm__arena_reserve(arena, arena->header->data_at + at, size) : 0;
}

/* Where nothing has to be reserved the list is never touched, and costs no memory. */
static void set_extent(struct mpshm__arena *arena, uint32_t i, uint32_t pages)
{
    if (arena->must_reserve)
        arena->extent[i] = pages;
}

/* A free block is about to be used for `nbytes`: are its pages there? */
static int reserve_block(struct mpshm__arena *arena, uint32_t i, uint64_t nbytes)
{
    int punched = atomic_load(&arena->traits[i].warmth) == MPSHM__PUNCHED;
    int small = mpshm__class_bytes(atomic_load(&arena->traits[i].size_class)) < MPSHM__SLAB_LIMIT;
    uint32_t need = (uint32_t)(mpshm__pages(nbytes) / MPSHM__PAGE);
    int err;

    if (!arena->must_reserve)
        return 0;
    /* A large block may have been punched by whoever freed it; a small one is punched by its owner
     * alone, who then clears its extent. */
    if (arena->extent[i] >= need && (small || !punched))
        return 0;
    err = reserve_data(arena, place(arena, i), nbytes);
    arena->extent[i] = err == 0 ? need : 0;
    return err;
}

/* ---- new ground ---- */

static void settle(struct mpshm__arena *arena, uint32_t i, uint64_t at, uint32_t size_class)
{
    atomic_store(&arena->blocks[i].where, (uint32_t)(at / 64));
    atomic_store(&arena->traits[i].size_class, (uint8_t)size_class);
    atomic_store(&arena->traits[i].warmth, MPSHM__FRESH);
}

/* A new slab of the class: its rows are consecutive, and all go to the cold list. */
static int carve_slab(struct mpshm__arena *arena, uint32_t size_class)
{
    struct mpshm__arena_header *h = arena->header;
    uint64_t size = mpshm__class_bytes(size_class);
    uint64_t at = atomic_load(&h->carved);
    uint32_t first = atomic_load(&h->used);
    /* Small at first, so that a process's first small array does not pay for many. */
    uint64_t bytes = arena->slabs < 16 ? MPSHM__SLAB_BYTES / 4 : MPSHM__SLAB_BYTES;
    uint32_t count = (uint32_t)(bytes / size);
    int err;

    if (at + bytes > arena->room || first + (uint64_t)count > arena->capacity)
        return -EXFULL;
    err = reserve_rows(arena, first + count);
    if (err == 0)
        err = reserve_data(arena, at, bytes);
    if (err < 0)
        return err;
    if (arena->slabs == arena->slabs_room) {
        uint64_t room = arena->slabs_room ? 2 * arena->slabs_room : 16;
        void *list = realloc(arena->slab_list, room * sizeof(struct mpshm__slab));
        if (list == NULL)
            return -ENOMEM;
        arena->slab_list = list;
        arena->slabs_room = room;
    }
    arena->slab_list[arena->slabs++] = (struct mpshm__slab){
        .at = at, .size = bytes, .first = first, .count = count, .size_class = size_class};
    for (uint32_t k = count; k-- > 0;) {
        settle(arena, first + k, at + k * size, size_class);
        set_extent(arena, first + k, MPSHM__SLAB_LIMIT / MPSHM__PAGE);
        push(arena, &arena->cold[size_class], first + k);
    }
    atomic_store(&h->carved, at + bytes);
    atomic_store(&h->used, first + count);
    return 0;
}

static int carve_large(struct mpshm__arena *arena, uint32_t size_class, uint64_t nbytes,
                       uint32_t *out)
{
    struct mpshm__arena_header *h = arena->header;
    uint64_t room = arena->room, at = atomic_load(&h->carved);
    uint64_t size = mpshm__pages(mpshm__class_bytes(size_class));
    uint32_t i = atomic_load(&h->used);
    int err;

    if (at + size > room || i + (uint64_t)1 > arena->capacity)
        return -EXFULL;
    err = reserve_rows(arena, i + 1);
    if (err == 0)
        err = reserve_data(arena, at, nbytes); /* the rest of the class is never touched */
    if (err < 0)
        return err;
    settle(arena, i, at, size_class);
    atomic_store(&arena->traits[i].warmth, MPSHM__IN_USE);
    set_extent(arena, i, (uint32_t)(mpshm__pages(nbytes) / MPSHM__PAGE));
    atomic_store(&h->carved, at + size);
    atomic_store(&h->used, i + 1);
    *out = i;
    return 0;
}

int mpshm__carve_or_reuse(struct mpshm__control *control, struct mpshm__arena *arena,
                          uint64_t nbytes, int zeroed, uint32_t *out)
{
    uint32_t c = mpshm__class_of(nbytes), i;
    uint64_t size = mpshm__class_bytes(c);
    uint32_t *list;
    int err;

    mpshm__drain_returned(arena);
    /* Zeroing much warm memory costs more than the page faults of what is really touched. */
    if (arena->warm[c] != 0 && !(zeroed && nbytes >= ZERO_BY_FRESH))
        list = &arena->warm[c];
    else
        list = &arena->cold[c];
    if (*list == 0) {
        err = size >= MPSHM__SLAB_LIMIT ? carve_large(arena, c, nbytes, out) : carve_slab(arena, c);
        if (err == 0 && size >= MPSHM__SLAB_LIMIT)
            return 0;
        if (err < 0 && arena->warm[c] == 0)
            return err;
        if (err < 0)
            list = &arena->warm[c]; /* no new ground: then zero what is there */
    }
    i = pop(arena, list) - 1;
    err = reserve_block(arena, i, nbytes);
    if (err < 0) {
        push(arena, list, i);
        return err;
    }
    zeroed = zeroed && !reads_as_zero(arena, i);
    if (atomic_exchange(&arena->traits[i].warmth, MPSHM__IN_USE) == MPSHM__WARM)
        uncache(control, arena, size);
    if (zeroed)
        memset(arena->data + place(arena, i), 0, nbytes);
    *out = i;
    return 0;
}

/* ---- giving back ---- */

static void trim_large(struct mpshm__control *control, struct mpshm__arena *arena)
{
    for (uint32_t c = mpshm__class_of(MPSHM__SLAB_LIMIT); c < MPSHM__CLASSES; c++) {
        uint32_t i, kept = 0;
        while ((i = pop(arena, &arena->warm[c])) != 0) {
            uint64_t size = mpshm__class_bytes(c);
            if (!mpshm__arena_punch(arena, place(arena, i - 1), mpshm__pages(size))) {
                push(arena, &kept, i - 1);
                continue;
            }
            atomic_store(&arena->traits[i - 1].warmth, MPSHM__PUNCHED);
            uncache(control, arena, size);
            push(arena, &arena->cold[c], i - 1);
        }
        arena->warm[c] = kept;
    }
}

static int slab_is_idle(const struct mpshm__arena *arena, const struct mpshm__slab *slab)
{
    for (uint32_t k = 0; k < slab->count; k++)
        /* in use, or its last user is just letting go of it */
        if ((atomic_load(&arena->blocks[slab->first + k].state) & MPSHM__LIVE) ||
            atomic_load(&arena->traits[slab->first + k].warmth) == MPSHM__IN_USE)
            return 0;
    return 1;
}

/* A block that another process has freed and not yet returned must keep its warmth: it decides on
 * which list it will go. So only blocks that are in our lists are given back. */
static void trim_slabs(struct mpshm__control *control, struct mpshm__arena *arena)
{
    for (uint64_t s = 0; s < arena->slabs; s++) {
        struct mpshm__slab *slab = &arena->slab_list[s];
        uint64_t size = mpshm__class_bytes(slab->size_class);

        if (!slab_is_idle(arena, slab) || atomic_load(&arena->header->returned) != 0)
            continue;
        if (!mpshm__arena_punch(arena, slab->at, slab->size))
            continue;
        for (uint32_t k = 0; k < slab->count; k++) {
            set_extent(arena, slab->first + k, 0);
            if (atomic_exchange(&arena->traits[slab->first + k].warmth, MPSHM__PUNCHED) ==
                MPSHM__WARM)
                uncache(control, arena, size);
        }
    }
    /* What has gone cold moves over to the cold list. */
    for (uint32_t c = 0; c < mpshm__class_of(MPSHM__SLAB_LIMIT); c++) {
        uint32_t i, warm = 0;
        while ((i = pop(arena, &arena->warm[c])) != 0)
            push(arena, reads_as_zero(arena, i - 1) ? &arena->cold[c] : &warm, i - 1);
        arena->warm[c] = warm;
    }
}

void mpshm__trim(struct mpshm__control *control, struct mpshm__arena *arena)
{
    mpshm__drain_returned(arena);
    trim_large(control, arena);
    trim_slabs(control, arena);
}
