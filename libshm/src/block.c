/* Blocks as a process uses them: allocate, send, claim, release. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "internal.h"

/* What travels in a message. `check` covers all before it, so that a damaged handle is told from a
 * stale one; it is no secret and protects against accidents only. */
struct handle {
    unsigned char tree[MPSHM_ID_SIZE];
    uint64_t arena; /* first half of its nonce */
    uint32_t row;   /* of the arena in the control file */
    uint32_t block;
    uint32_t generation;
    uint32_t message; /* which bit of `outstanding`, OVERFLOW for none; and COPY */
    uint64_t nbytes;
    uint64_t check;
};

enum { OVERFLOW = 64, COPY = 1 << 16 };

_Static_assert(sizeof(struct handle) == MPSHM_HANDLE_SIZE, "the size of a handle is public");

/* Nobody who must not wait waits for the lock either: who has it may be waiting for the manager. */
static int enter_engine(int flags)
{
    if (flags & MPSHM_NOWAIT)
        return mpshm__try_acquire();
    mpshm__acquire();
    return 1;
}

/* ---- home: the tree in which this process allocates ---- */

static unsigned char home_id[MPSHM_ID_SIZE];
static int home_is_set;

static int home_id_once(void)
{
    if (!home_is_set &&
        MPSHM__RETRY(getrandom(home_id, sizeof(home_id), 0)) != (long)sizeof(home_id))
        return -EIO;
    home_is_set = 1;
    return 0;
}

int mpshm__is_home(const unsigned char *id)
{
    return home_is_set && memcmp(home_id, id, MPSHM_ID_SIZE) == 0;
}

int mpshm_home(unsigned char *id)
{
    mpshm__acquire();
    int err = home_id_once();
    memcpy(id, home_id, sizeof(home_id));
    mpshm__release();
    return err;
}

int mpshm_set_home(const unsigned char *id)
{
    int err = 0;

    mpshm__acquire();
    if (!home_is_set) {
        memcpy(home_id, id, sizeof(home_id));
        home_is_set = 1;
    } else if (memcmp(home_id, id, sizeof(home_id)) != 0) {
        err = -EBUSY;
    }
    mpshm__release();
    return err;
}

static int home(struct mpshm__tree **tree)
{
    int err = home_id_once();

    return err < 0 ? err : mpshm__tree_of(home_id, 1, tree);
}

int mpshm_open_for_child(int fds[2])
{
    int err;

    fds[0] = fds[1] = -1;
    mpshm__acquire();
    err = home_id_once();
    if (err == 0)
        fds[0] = err = mpshm__tree_hold(home_id);
    mpshm__release();
    return err < 0 ? err : 0;
}

int mpshm_enter_with(const unsigned char *id, const int fds[2])
{
    int err = mpshm_set_home(id);

    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return err < 0 ? err : mpshm_enter();
}

int mpshm_enter(void)
{
    struct mpshm__tree *tree;

    mpshm__acquire();
    int err = home(&tree);
    mpshm__release();
    return err;
}

/* ---- holding: how many handles this process has to a block, and the one bit that says so ---- */

static void hold(struct mpshm__tree *tree, struct mpshm__arena *arena, uint32_t i)
{
    if (arena->held[i]++ == 0) {
        arena->holding++;
        atomic_fetch_or(&arena->blocks[i].holders[tree->slot / 64],
                        (uint64_t)1 << (tree->slot % 64));
    }
}

static void let_go(struct mpshm__tree *tree, struct mpshm__arena *arena, uint32_t i)
{
    if (--arena->held[i] == 0) {
        arena->holding--;
        atomic_fetch_and(&arena->blocks[i].holders[tree->slot / 64],
                         ~((uint64_t)1 << (tree->slot % 64)));
        mpshm__try_free(tree->control, arena, i);
    }
}

void mpshm__let_go(const mpshm_block *block)
{
    struct mpshm__arena *arena = block->arena;

    let_go(arena->tree, arena, block->index);
}

static void fill(mpshm_block *out, struct mpshm__arena *arena, uint32_t i)
{
    out->data = arena->data + (uint64_t)atomic_load(&arena->blocks[i].where) * 64;
    out->nbytes = atomic_load(&arena->blocks[i].nbytes);
    out->arena = arena;
    out->index = i;
}

/* ---- allocate ---- */

/* What this process keeps warm is the first thing to go when memory is short. */
static void trim_own(struct mpshm__tree *tree)
{
    for (uint32_t a = 0; a < tree->arena_top; a++)
        if (tree->arenas[a] != NULL && tree->arenas[a]->own)
            mpshm__trim(tree->control, tree->arenas[a]);
}

static int from_some_arena(struct mpshm__tree *tree, int strategy, uint64_t nbytes, int flags,
                           struct mpshm__arena **out, uint32_t *i)
{
    int zeroed = flags & MPSHM_ZEROED;
    struct mpshm__arena *arena;
    int err;

    /* The one that served last is tried first; there is seldom another. */
    for (uint32_t k = 0; k <= tree->arena_top; k++) {
        arena =
            k == 0 ? (tree->current ? tree->arenas[tree->current - 1] : NULL) : tree->arenas[k - 1];
        if (arena == NULL || !arena->own || arena->strategy != strategy)
            continue;
        err = mpshm__carve_or_reuse(tree->control, arena, nbytes, zeroed, i);
        if (err == -EXFULL)
            continue;
        *out = arena;
        return err;
    }
    if (flags & MPSHM_NOWAIT)
        return -EAGAIN;
    err = mpshm__join(tree);
    if (err == 0)
        err = mpshm__arena_create(strategy, nbytes + nbytes / 4, tree->id,
                                  &tree->control->slots[tree->slot], &arena);
    if (err < 0)
        return err;
    err = mpshm__arena_register(tree, arena);
    if (err < 0) {
        if (strategy == MPSHM_FILE_SYSTEM)
            mpshm__object_unlink(arena->nonce);
        mpshm__arena_unmap(arena);
        return err;
    }
    atomic_store(&tree->control->slots[tree->slot].making[0], 0);
    tree->current = arena->index + 1;
    *out = arena;
    err = mpshm__carve_or_reuse(tree->control, arena, nbytes, zeroed, i);
    return err == -EXFULL ? -ENOMEM : err;
}

int mpshm_block_allocate(int strategy, uint64_t nbytes, int flags, mpshm_block *out)
{
    struct mpshm__tree *tree;
    struct mpshm__arena *arena = NULL;
    uint32_t i;
    int err;

    if (strategy != MPSHM_FILE_DESCRIPTOR && strategy != MPSHM_FILE_SYSTEM)
        return -EINVAL;
    if (nbytes > mpshm__memory_bytes() * 4 || nbytes > MPSHM__LARGEST)
        return -ENOMEM; /* nothing that this machine could ever hold */
    if (!enter_engine(flags))
        return -EAGAIN;
    err = (flags & MPSHM_NOWAIT) && mpshm__trees[0] == NULL ? -EAGAIN : home(&tree);
    if (err == 0 && tree->slot < 0)
        err = flags & MPSHM_NOWAIT ? -EAGAIN : mpshm__join(tree);
    if (err == 0) {
        err = from_some_arena(tree, strategy, nbytes, flags, &arena, &i);
        if (err == -ENOSPC || err == -ENOMEM) {
            trim_own(tree);
            err = from_some_arena(tree, strategy, nbytes, flags, &arena, &i);
        }
    }
    if (err == 0) {
        struct mpshm__block *block = &arena->blocks[i];
        /* Nobody looks at these before the state says that it lives. */
        atomic_store_explicit(&block->outstanding, 0, memory_order_relaxed);
        atomic_store_explicit(&block->overflow, 0, memory_order_relaxed);
        atomic_store_explicit(&block->nbytes, nbytes, memory_order_relaxed);
        for (int w = 0; w < MPSHM__HOLDER_WORDS; w++)
            atomic_store_explicit(&block->holders[w], 0, memory_order_relaxed);
        arena->held[i] = 0;
        hold(tree, arena, i);
        /* Killed before this line: the block is still free and its arena has lost its owner. */
        uint64_t generation = MPSHM__GENERATION(atomic_load(&block->state));
        atomic_store(&block->state, generation << MPSHM__GENERATION_SHIFT | MPSHM__LIVE);
        fill(out, arena, i);
        if ((flags & MPSHM__HEAP) && (err = mpshm__heap_enlist(arena)) < 0)
            let_go(tree, arena, i);
    }
    mpshm__release();
    return err;
}

int mpshm__block_again(struct mpshm__arena *arena, uint32_t i, int flags, mpshm_block *out)
{
    if (!enter_engine(flags))
        return -EAGAIN;
    hold(arena->tree, arena, i);
    /* Somebody knows of it now beside its user: see heap.c, Note [What a process keeps]. */
    atomic_fetch_add(&arena->blocks[i].state, 1);
    fill(out, arena, i);
    mpshm__release();
    return 0;
}

/* ---- send ---- */

static uint64_t checksum(const struct handle *handle)
{
    uint64_t words[offsetof(struct handle, check) / 8], h = 0xcbf29ce484222325u;

    memcpy(words, handle, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / 8; i++) {
        h = (h ^ words[i]) * 0x9e3779b97f4a7c15u; /* odd, so no change of one word is lost */
        h ^= h >> 32;
    }
    return h;
}

int mpshm_block_send(const mpshm_block *ref, int flags, unsigned char *bytes)
{
    struct mpshm__arena *arena = ref->arena;
    struct mpshm__tree *tree = arena->tree;
    struct mpshm__block *block = &arena->blocks[ref->index];
    struct handle handle = {.row = arena->index, .block = ref->index, .nbytes = ref->nbytes};
    uint64_t state, out, bit;

    /* No lock: the caller's hold keeps the block alive, and all that changes is atomic. */
    memcpy(handle.tree, tree->id, MPSHM_ID_SIZE);
    handle.arena = arena->nonce[0];
    state = atomic_load(&block->state);
    handle.generation = MPSHM__GENERATION(state);

    out = atomic_load(&block->outstanding);
    do {
        if (out == UINT64_MAX) {
            atomic_fetch_add(&block->overflow, 1);
            handle.message = OVERFLOW;
            break;
        }
        /* The search begins at another bit for each message, so that a handle that was used once
         * is not good again for the next message. */
        unsigned from = (unsigned)(state & 63);
        uint64_t free = ~out, turned = from ? free >> from | free << (64 - from) : free;
        handle.message = ((unsigned)__builtin_ctzll(turned) + from) % 64;
        bit = (uint64_t)1 << handle.message;
    } while (!atomic_compare_exchange_weak(&block->outstanding, &out, out | bit));
    atomic_fetch_add(&block->state, 1); /* after, see Note [References] */
    if (flags & MPSHM_COPY)
        handle.message |= COPY;

    handle.check = checksum(&handle);
    memcpy(bytes, &handle, sizeof(handle));
    return 0;
}

/* ---- claim ---- */

static int take_message(struct mpshm__block *block, uint32_t message)
{
    if (message < OVERFLOW) {
        uint64_t bit = (uint64_t)1 << message;
        return atomic_fetch_and(&block->outstanding, ~bit) & bit ? 0 : -ESTALE;
    }
    uint32_t n = atomic_load(&block->overflow);
    do {
        if (n == 0)
            return -ESTALE;
    } while (!atomic_compare_exchange_weak(&block->overflow, &n, n - 1));
    return 0;
}

static int is_live(uint64_t state, uint32_t generation)
{
    return (state & MPSHM__LIVE) && MPSHM__GENERATION(state) == (generation & 0xffffffu);
}

static int claim(const struct handle *handle, int flags, mpshm_block *out)
{
    struct mpshm__tree *tree;
    struct mpshm__arena *arena;
    struct mpshm__block *block;
    int err = 0;

    if ((flags & MPSHM_NOWAIT) && !mpshm__tree_is_met(handle->tree))
        return -EAGAIN;
    err = mpshm__tree_of(handle->tree, mpshm__is_home(handle->tree), &tree);
    if (err == 0 && (flags & MPSHM_NOWAIT) &&
        (tree->slot < 0 || !mpshm__arena_is_met(tree, handle->row, handle->arena)))
        err = -EAGAIN;
    if (err == 0 && tree->slot < 0)
        err = mpshm__join(tree);
    if (err == 0)
        err = mpshm__arena_meet(tree, handle->row, handle->arena, &arena);
    if (err < 0)
        return err;
    if (handle->block >= mpshm__used(arena))
        return -EBADMSG;
    block = &arena->blocks[handle->block];
    if (!is_live(atomic_load(&block->state), handle->generation) ||
        (arena->held[handle->block] & MPSHM__PRIVATE))
        return -ESTALE;
    hold(tree, arena, handle->block);
    /* Now it cannot be freed, unless it was already: the epoch tells. */
    if (!is_live(atomic_fetch_add(&block->state, 1), handle->generation) ||
        atomic_load(&block->nbytes) != handle->nbytes)
        err = -ESTALE;
    else
        err = take_message(block, handle->message & ~(uint32_t)COPY);
    if (err < 0) {
        let_go(tree, arena, handle->block);
        return err;
    }
    fill(out, arena, handle->block);
    if (out->nbytes > arena->room ||
        (uint64_t)((char *)out->data - arena->data) > arena->room - out->nbytes) {
        let_go(tree, arena, handle->block);
        return -EBADMSG; /* a descriptor that somebody has written over */
    }
    return 0;
}

static int parse(const unsigned char *bytes, size_t len, struct handle *handle)
{
    if (len != sizeof(*handle))
        return -EBADMSG;
    memcpy(handle, bytes, sizeof(*handle));
    if (handle->check != checksum(handle) || (handle->message & ~(uint32_t)COPY) > OVERFLOW)
        return -EBADMSG;
    return 0;
}

int mpshm_handle_info(const unsigned char *bytes, size_t len, uint64_t *nbytes)
{
    struct handle handle;
    int err = parse(bytes, len, &handle);

    if (err < 0)
        return err;
    *nbytes = handle.nbytes;
    return (handle.message & COPY) != 0;
}

int mpshm_handle_alive(const unsigned char *bytes, size_t len)
{
    struct handle handle;
    struct mpshm__tree *tree;
    struct mpshm__arena *arena;
    int alive = 0;

    if (parse(bytes, len, &handle) < 0 || !enter_engine(MPSHM_NOWAIT))
        return 0;
    if (mpshm__tree_is_met(handle.tree) &&
        mpshm__tree_of(handle.tree, mpshm__is_home(handle.tree), &tree) == 0 && tree->slot >= 0 &&
        mpshm__arena_is_met(tree, handle.row, handle.arena) &&
        mpshm__arena_meet(tree, handle.row, handle.arena, &arena) == 0 &&
        handle.block < mpshm__used(arena))
        alive = is_live(atomic_load(&arena->blocks[handle.block].state), handle.generation);
    mpshm__release();
    return alive;
}

int mpshm_block_read(const unsigned char *bytes, size_t len, void *data, uint64_t nbytes)
{
    mpshm_block block;
    uint64_t there;
    int copy = mpshm_handle_info(bytes, len, &there);

    if (copy < 0)
        return copy;
    if (!copy || there != nbytes)
        return -EINVAL;
    int err = mpshm_block_claim(bytes, len, 0, &block);
    if (err < 0)
        return err;
    memcpy(data, block.data, nbytes);
    mpshm_block_release(&block);
    return 0;
}

int mpshm_block_discard(const unsigned char *bytes, size_t len)
{
    mpshm_block block;
    int err = mpshm_block_claim(bytes, len, 0, &block);

    if (err == 0)
        mpshm_block_release(&block);
    return err;
}

int mpshm_block_claim(const unsigned char *bytes, size_t len, int flags, mpshm_block *out)
{
    struct handle handle;
    int err = parse(bytes, len, &handle);

    if (err < 0)
        return err;
    if (!enter_engine(flags))
        return -EAGAIN;
    err = claim(&handle, flags, out);
    mpshm__release();
    return err;
}

/* ---- release ---- */

void mpshm_block_release(mpshm_block *ref)
{
    if (ref->arena == NULL)
        return;
    if (mpshm__try_acquire()) {
        mpshm__let_go(ref);
        mpshm__release();
    } else {
        mpshm__release_later(ref);
    }
    ref->arena = NULL;
    ref->data = NULL;
}

int mpshm_block_others(const mpshm_block *ref)
{
    const struct mpshm__arena *arena = ref->arena;
    const struct mpshm__tree *tree = arena->tree;
    const struct mpshm__block *block = &arena->blocks[ref->index];
    uint64_t before, after;
    int others;

    /* The same look as before a free: repeated when somebody moved meanwhile. */
    do {
        before = atomic_load(&block->state);
        others = (int)atomic_load(&block->overflow) +
                 __builtin_popcountll(atomic_load(&block->outstanding));
        for (int w = 0; w < MPSHM__HOLDER_WORDS; w++) {
            uint64_t bits = atomic_load(&block->holders[w]);
            if (tree->slot >= 0 && w == tree->slot / 64)
                bits &= ~((uint64_t)1 << (tree->slot % 64));
            others += __builtin_popcountll(bits);
        }
        after = atomic_load(&block->state);
    } while (before != after);
    return others;
}

void mpshm_block_revoke(const mpshm_block *ref)
{
    struct mpshm__block *block = &((struct mpshm__arena *)ref->arena)->blocks[ref->index];

    /* A claim in progress has set its holder first: either it finds its message or it does not. */
    atomic_store(&block->outstanding, 0);
    atomic_store(&block->overflow, 0);
}

int mpshm_block_strategy(const mpshm_block *ref)
{
    return ((const struct mpshm__arena *)ref->arena)->strategy;
}
