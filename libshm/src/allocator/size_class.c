/* Size classes: multiples of 64 up to 512, then four steps in each doubling, so that at most a
 * fifth of a block is unused. Untouched pages of a large block cost nothing. */
#include "allocator/size_class.h"

uint64_t mpshm__class_bytes(uint32_t size_class)
{
    if (size_class < 8)
        return (uint64_t)(size_class + 1) * 64;
    uint32_t doubling = (size_class - 8) / 4, step = (size_class - 8) % 4;
    return ((uint64_t)512 << doubling) / 4 * (step + 5);
}

uint32_t mpshm__class_of(uint64_t nbytes)
{
    if (nbytes <= 512)
        return nbytes == 0 ? 0 : (uint32_t)((nbytes - 1) / 64);
    uint32_t doubling = (uint32_t)(63 - __builtin_clzll(nbytes - 1)) - 9;
    uint64_t quarter = ((uint64_t)512 << doubling) / 4;
    return 8 + doubling * 4 + (uint32_t)((nbytes - 1 - ((uint64_t)512 << doubling)) / quarter);
}
