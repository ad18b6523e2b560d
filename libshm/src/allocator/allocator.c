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

/* Into a list of ours. Whoever adopts this segment one day goes by the flag, see adopt.c. */
static void push(struct mpshm__arena *arena, uint32_t *list, uint32_t i, uint8_t pages)
{
    atomic_store(&arena->traits[i].warmth, (uint8_t)(pages | MPSHM__LISTED));
    arena->next[i] = *list;
    *list = i + 1;
}

/* The first of the list that the manager is not just purging; its page state goes to `pages`. */
static uint32_t pop(struct mpshm__arena *arena, uint32_t *list, uint8_t *pages)
{
    for (uint32_t *link = list; *link != 0; link = &arena->next[*link - 1]) {
        uint32_t i = *link - 1;
        uint8_t state = atomic_load_explicit(&arena->traits[i].warmth, memory_order_relaxed);
        while (MPSHM__PAGES(state) != MPSHM__PURGING)
            if (atomic_compare_exchange_weak(&arena->traits[i].warmth, &state, MPSHM__IN_USE)) {
                *link = arena->next[i];
                *pages = (uint8_t)MPSHM__PAGES(state);
                return i + 1;
            }
    }
    return 0;
}

static uint64_t place(const struct mpshm__arena *arena, uint32_t i)
{
    return (uint64_t)atomic_load_explicit(&arena->blocks[i].where, memory_order_relaxed) * 64;
}

static int reads_as_zero(uint8_t pages)
{
    return pages == MPSHM__FRESH || pages == MPSHM__PUNCHED;
}

void mpshm__list_block(struct mpshm__arena *arena, uint32_t i)
{
    uint32_t c = atomic_load(&arena->traits[i].size_class) % MPSHM__CLASSES;
    uint8_t pages = (uint8_t)MPSHM__PAGES(atomic_fetch_or(&arena->traits[i].warmth, MPSHM__LISTED));
    uint32_t *list = reads_as_zero(pages) ? &arena->cold[c] : &arena->warm[c];

    arena->next[i] = *list;
    *list = i + 1;
}

/* Twice over the list, see adopt.c, Note [What an adopter believes]. No more steps than there are
 * blocks: links stand where others can write. */
void mpshm__drain_returned(struct mpshm__arena *arena)
{
    uint64_t steps = arena->capacity, head, at;

    head = atomic_load_explicit(&arena->header->returned, memory_order_acquire);
    if (head == 0)
        return;
    for (at = head; at != 0 && at <= arena->capacity && steps-- > 0;
         at = atomic_load(&arena->blocks[at - 1].outstanding))
        atomic_fetch_or(&arena->traits[at - 1].warmth, MPSHM__LISTED);
    head = atomic_exchange(&arena->header->returned, 0);
    steps = arena->capacity;
    while (head != 0 && head <= arena->capacity && steps-- > 0) {
        uint32_t i = (uint32_t)(head - 1);
        head = atomic_load(&arena->blocks[i].outstanding);
        mpshm__list_block(arena, i);
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
static int reserve_block(struct mpshm__arena *arena, uint32_t i, uint64_t size, uint64_t nbytes,
                         uint8_t pages)
{
    int punched = pages == MPSHM__PUNCHED, small = size < MPSHM__SLAB_LIMIT, err;

    if (!arena->must_reserve)
        return 0;
    if (small) /* all of it: it may lie across two pages, and has no second look */
        nbytes = size;
    uint32_t need = (uint32_t)(mpshm__pages(nbytes) / MPSHM__PAGE);
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
    atomic_store(&arena->traits[i].warmth, MPSHM__IN_USE);
}

/* Small at first, so that a process's first small array does not pay for many. An adopter finds the
 * slabs again by their number. */
uint64_t mpshm__slab_bytes(uint64_t nth)
{
    return nth < 16 ? MPSHM__SLAB_BYTES / 4 : MPSHM__SLAB_BYTES;
}

/* A new slab of the class: its rows are consecutive, and all go to the cold list. */
static int carve_slab(struct mpshm__arena *arena, uint32_t size_class)
{
    struct mpshm__arena_header *h = arena->header;
    uint64_t size = mpshm__class_bytes(size_class);
    uint64_t at = atomic_load(&h->carved);
    uint32_t first = atomic_load(&h->used);
    uint64_t bytes = mpshm__slab_bytes(arena->slabs);
    uint32_t count = (uint32_t)(bytes / size);
    int err;

    if (at + bytes > arena->room || at + bytes > MPSHM__OFFSETS ||
        first + (uint64_t)count > arena->capacity)
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
        push(arena, &arena->cold[size_class], first + k, MPSHM__FRESH);
    }
    atomic_store(&h->carved, at + bytes);
    atomic_store(&h->used, first + count);
    mpshm__arena_dump(arena);
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

    if (at + size > room || at >= MPSHM__OFFSETS || i + (uint64_t)1 > arena->capacity)
        return -EXFULL;
    err = reserve_rows(arena, i + 1);
    if (err == 0)
        err = reserve_data(arena, at, nbytes); /* the rest of the class is never touched */
    if (err < 0)
        return err;
    settle(arena, i, at, size_class);
    set_extent(arena, i, (uint32_t)(mpshm__pages(nbytes) / MPSHM__PAGE));
    atomic_store(&h->carved, at + size);
    atomic_store(&h->used, i + 1);
    mpshm__arena_dump(arena);
    *out = i;
    return 0;
}

/* Killed in between: a block that is IN_USE and does not live, and that nobody lists again. */
static int reuse(struct mpshm__control *control, struct mpshm__arena *arena, uint32_t *list,
                 uint64_t size, uint64_t nbytes, int zeroed, uint32_t *out)
{
    uint8_t pages;
    uint32_t i = pop(arena, list, &pages);
    int err;

    if (i-- == 0)
        return -EXFULL;
    if (pages == MPSHM__WARM)
        mpshm__cache_take(control, arena, size);
    if (pages == MPSHM__WARM && zeroed && nbytes >= ZERO_BY_FRESH && mpshm__purge_pages(arena, i))
        pages = MPSHM__PUNCHED;
    err = reserve_block(arena, i, size, nbytes, pages);
    if (err < 0) {
        if (pages == MPSHM__WARM)
            mpshm__cache_add(control, arena, size);
        push(arena, list, i, pages);
        return err;
    }
    if (zeroed && !reads_as_zero(pages))
        memset(arena->data + place(arena, i), 0, nbytes);
    *out = i;
    return 0;
}

int mpshm__allocate_in(struct mpshm__control *control, struct mpshm__arena *arena,
                       enum mpshm__source source, uint64_t nbytes, int zeroed, uint32_t *out)
{
    uint32_t c = mpshm__class_of(nbytes);
    uint64_t size = mpshm__class_bytes(c);
    int err;

    switch (source) {
    case MPSHM__FROM_WARM:
        mpshm__drain_returned(arena);
        /* Zeroing much warm memory costs more than the page faults of what is really touched. */
        if (zeroed && nbytes >= ZERO_BY_FRESH)
            return -EXFULL;
        return reuse(control, arena, &arena->warm[c], size, nbytes, zeroed, out);
    case MPSHM__FROM_COLD:
        return reuse(control, arena, &arena->cold[c], size, nbytes, zeroed, out);
    case MPSHM__FROM_GROUND:
        if (size >= MPSHM__SLAB_LIMIT)
            return carve_large(arena, c, nbytes, out);
        err = carve_slab(arena, c);
        return err < 0 ? err : reuse(control, arena, &arena->cold[c], size, nbytes, zeroed, out);
    default:
        return reuse(control, arena, &arena->warm[c], size, nbytes, zeroed, out);
    }
}

/* ---- giving back ---- */

static void trim_large(struct mpshm__control *control, struct mpshm__arena *arena)
{
    for (uint32_t c = mpshm__class_of(MPSHM__SLAB_LIMIT); c < MPSHM__CLASSES; c++) {
        uint32_t i, kept = 0;
        uint8_t pages;
        while ((i = pop(arena, &arena->warm[c], &pages)) != 0) {
            if (pages == MPSHM__WARM && !mpshm__purge_pages(arena, i - 1)) {
                push(arena, &kept, i - 1, pages);
                continue;
            }
            if (pages == MPSHM__WARM)
                mpshm__cache_take(control, arena, mpshm__class_bytes(c));
            push(arena, &arena->cold[c], i - 1, MPSHM__PUNCHED);
        }
        if (arena->warm[c] == 0) {
            arena->warm[c] = kept;
        } else { /* what is being purged stays at the end of the list */
            uint32_t last = arena->warm[c];
            while (arena->next[last - 1] != 0)
                last = arena->next[last - 1];
            arena->next[last - 1] = kept;
        }
    }
}

static int slab_is_idle(const struct mpshm__arena *arena, const struct mpshm__slab *slab)
{
    for (uint32_t k = 0; k < slab->count; k++)
        /* in use, or its last user is just letting go of it */
        if ((atomic_load(&arena->blocks[slab->first + k].state) & MPSHM__LIVE) ||
            MPSHM__PAGES(atomic_load(&arena->traits[slab->first + k].warmth)) == MPSHM__IN_USE)
            return 0;
    return 1;
}

/* A block that another process has freed and not yet returned must keep its warmth: it decides on
 * which list it will go. So only blocks that are in our lists are given back. */
static void trim_slabs(struct mpshm__control *control, struct mpshm__arena *arena)
{
    for (uint64_t s = 0; s < arena->slabs; s++) {
        struct mpshm__slab *slab = &arena->slab_list[s];

        if (!slab_is_idle(arena, slab) || atomic_load(&arena->header->returned) != 0 ||
            !mpshm__purge_slab(control, arena, slab))
            continue;
        for (uint32_t k = 0; k < slab->count; k++)
            set_extent(arena, slab->first + k, 0);
    }
    /* What has gone cold moves over to the cold list. */
    for (uint32_t c = 0; c < mpshm__class_of(MPSHM__SLAB_LIMIT); c++) {
        uint32_t i = arena->warm[c], next;
        arena->warm[c] = 0;
        for (; i != 0; i = next) {
            next = arena->next[i - 1];
            mpshm__list_block(arena, i - 1);
        }
    }
}

void mpshm__trim(struct mpshm__control *control, struct mpshm__arena *arena)
{
    mpshm__drain_returned(arena);
    trim_large(control, arena);
    trim_slabs(control, arena);
}
