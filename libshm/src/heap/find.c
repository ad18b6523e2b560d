/* From an address to the block in which it lies, for memory that came back from somebody who kept
 * only the address: of blocks with a handle, too, which the heap knows nothing of. */
#include <errno.h>

#include "internal.h"

static int look(struct mpshm__arena *arena, uint64_t offset, mpshm_block *out)
{
    uint32_t i = mpshm__row_before(arena, offset);

    /* Not held: it may be freed while we look. Private: a fork made that memory our own. */
    if (i-- == 0 || arena->held[i] == 0 || (arena->held[i] & MPSHM__PRIVATE))
        return -ENOENT;
    uint64_t first = (uint64_t)atomic_load(&arena->blocks[i].where) * 64;
    uint64_t nbytes = atomic_load(&arena->blocks[i].nbytes);
    if (offset - first >= nbytes)
        return -ENOENT;
    arena->held[i]++;
    *out = (mpshm_block){.data = arena->data + first, .nbytes = nbytes, .arena = arena, .index = i};
    return 0;
}

int mpshm_block_find(const void *address, int flags, mpshm_block *out)
{
    int err = mpshm_block_at(address, flags, out);

    if (err != -ENOENT)
        return err;
    if (!(flags & MPSHM_NOWAIT))
        mpshm__acquire();
    else if (!mpshm__try_acquire())
        return -EAGAIN;
    for (int t = 0; t < MPSHM__TREES && err == -ENOENT; t++) {
        struct mpshm__tree *tree = mpshm__trees[t];
        for (uint32_t a = 0; tree != NULL && a < tree->arena_top; a++) {
            struct mpshm__arena *arena = tree->arenas[a];
            if (arena == NULL || (uintptr_t)address < (uintptr_t)arena->data ||
                (uintptr_t)address - (uintptr_t)arena->data >= arena->room)
                continue;
            err = look(arena, (uintptr_t)address - (uintptr_t)arena->data, out);
            break;
        }
    }
    mpshm__release();
    return err;
}
