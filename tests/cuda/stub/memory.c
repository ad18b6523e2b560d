/* Test code (stub driver): allocations, with small ones in shared 2 MiB blocks, and pointer
 * attributes. */
#define _GNU_SOURCE
#include "stub.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct block {
    char *mapping;
    uint64_t offset;
    unsigned used;
    unsigned char taken[BLOCK / 4096]; /* in units of 4 KiB */
    struct block *next;
    int device;
};

pthread_mutex_t ranges_lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;
static struct block *blocks;

struct range *find_range(CUdeviceptr pointer)
{
    struct range *range;
    pthread_mutex_lock(&ranges_lock);
    for (range = ranges; range; range = range->next)
        if (pointer >= (uint64_t)range->at && pointer < (uint64_t)range->at + range->size)
            break;
    pthread_mutex_unlock(&ranges_lock);
    return range;
}

struct range *find_import(uint32_t index, uint64_t serial)
{
    struct range *range;
    pthread_mutex_lock(&ranges_lock);
    for (range = ranges; range; range = range->next)
        if (range->imported && range->index == index && range->serial == serial)
            break;
    pthread_mutex_unlock(&ranges_lock);
    return range;
}

void remember_range(struct range *range)
{
    pthread_mutex_lock(&ranges_lock);
    range->next = ranges;
    ranges = range;
    pthread_mutex_unlock(&ranges_lock);
}

void forget_range(struct range *range)
{
    pthread_mutex_lock(&ranges_lock);
    for (struct range **at = &ranges; *at; at = &(*at)->next)
        if (*at == range) {
            *at = range->next;
            break;
        }
    pthread_mutex_unlock(&ranges_lock);
    if (range->mapping)
        munmap(range->mapping, range->mapping_size);
    free(range);
}

static char *map_device(int device, uint64_t offset, uint64_t size, bool grow)
{
    int fd = device_file(device);
    if (fd < 0)
        return NULL;
    char *at = MAP_FAILED;
    if (!grow || !ftruncate(fd, (off_t)(offset + size)))
        at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    return at == MAP_FAILED ? NULL : at;
}

/* Call it under the state's lock. Offsets are never reused, so a stale mapping never sees bytes of
 * another allocation. */
static uint64_t take_offset(int device, uint64_t size)
{
    uint64_t offset = state->next_offset[device];
    state->next_offset[device] += size;
    return offset;
}

static struct block *block_with_room(int device, unsigned units, unsigned *first)
{
    for (struct block *block = blocks; block; block = block->next) {
        unsigned run = 0;
        if (block->device != device)
            continue;
        for (unsigned i = 0; i < sizeof block->taken; i++) {
            run = block->taken[i] ? 0 : run + 1;
            if (run == units) {
                *first = i + 1 - units;
                return block;
            }
        }
    }
    struct block *block = calloc(1, sizeof *block);
    block->device = device;
    block->offset = take_offset(device, BLOCK);
    block->mapping = map_device(device, block->offset, BLOCK, true);
    if (!block->mapping) {
        free(block);
        return NULL;
    }
    block->next = blocks;
    blocks = block;
    *first = 0;
    return block;
}

CUresult allocate(CUdeviceptr *out, size_t size, int device, enum kind kind, uint32_t pool)
{
    if (!size)
        return INVALID_VALUE;
    if (size > (size_t)1 << 34)
        return OUT_OF_MEMORY;
    struct range *range = calloc(1, sizeof *range);
    struct allocation entry = {
        .size = size, .device = device, .kind = kind, .pool = pool, .owner = me};
    lock_state();
    if (size <= BLOCK / 2 && kind == DEVICE_MEMORY) {
        unsigned first = 0, units = (unsigned)((size + 4095) / 4096);
        pthread_mutex_lock(&ranges_lock);
        struct block *block = block_with_room(device, units, &first);
        if (block) {
            memset(block->taken + first, 1, units);
            block->used += units;
            entry.block = block->offset;
            entry.block_size = BLOCK;
            entry.offset = (uint64_t)first * 4096;
            range->block = block;
            range->at = block->mapping + entry.offset;
        }
        pthread_mutex_unlock(&ranges_lock);
    } else {
        entry.block_size = (size + BLOCK - 1) / BLOCK * BLOCK;
        entry.block = take_offset(device, entry.block_size);
        range->mapping = range->at = map_device(device, entry.block, entry.block_size, true);
        range->mapping_size = entry.block_size;
    }
    uint32_t free_index = MAX_ALLOCATIONS;
    if (range->at)
        for (uint32_t i = 0; i < MAX_ALLOCATIONS && free_index == MAX_ALLOCATIONS; i++)
            if (!state->allocations[i].serial)
                free_index = i;
    for (uint32_t i = 0; range->at && free_index == MAX_ALLOCATIONS && i < MAX_ALLOCATIONS; i++)
        if (!alive(state->allocations[i].owner))
            free_index = i;
    if (free_index < MAX_ALLOCATIONS) {
        entry.serial = state->next_serial++;
        state->allocations[free_index] = entry;
        count(ALLOCS); /* at once: a process that is killed in between leaves a difference for ever */
    }
    unlock_state();
    if (free_index == MAX_ALLOCATIONS) {
        free(range);
        return OUT_OF_MEMORY;
    }
    range->size = size;
    range->serial = entry.serial;
    range->index = free_index;
    range->device = device;
    range->kind = kind;
    range->pool = pool;
    remember_range(range);
    memset(range->at, 0xCD, size < 4096 ? size : 4096); /* new memory is not zeroed */
    *out = (CUdeviceptr)range->at;
    return SUCCESS;
}

CUresult free_range(struct range *range)
{
    lock_state();
    struct allocation *entry = &state->allocations[range->index];
    uint32_t open = open_imports(false, range->index, range->serial);
    if (open) {
        violation("process %d frees allocation %lu of %lu bytes, which is open %u times elsewhere",
                  me.pid, (unsigned long)range->serial, (unsigned long)range->size, open);
        memset(range->at, 0xDB, range->size);
    } else if (!range->block) {
        fallocate(device_file(range->device), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  (off_t)entry->block, (off_t)entry->block_size);
    } else
        memset(range->at, 0xDD, range->size);
    entry->serial = 0;
    count(FREES);
    if (range->block) {
        unsigned units = (unsigned)((range->size + 4095) / 4096);
        pthread_mutex_lock(&ranges_lock);
        memset(range->block->taken + (range->at - range->block->mapping) / 4096, 0, units);
        range->block->used -= units;
        pthread_mutex_unlock(&ranges_lock);
    }
    unlock_state();
    forget_range(range);
    return SUCCESS;
}

/* Map an allocation of another process. Call it without a lock; the entry may be gone already. */
CUresult map_import(CUdeviceptr *out, uint32_t index, uint64_t serial, int kind)
{
    if (index >= MAX_ALLOCATIONS)
        return INVALID_VALUE;
    lock_state();
    struct allocation entry = state->allocations[index];
    /* Like events, memory of a process that has ended can be opened. */
    CUresult result = entry.serial == serial && entry.kind == kind ? SUCCESS : MAP_FAILED_;
    if (!result && ordinal_of(entry.device) < 0)
        result = INVALID_DEVICE;
    char *at = result ? NULL : map_device(entry.device, entry.block, entry.block_size, false);
    if (!result && !at)
        result = MAP_FAILED_;
    if (!result)
        result = add_import(false, index, serial);
    unlock_state();
    if (result)
        return result;
    struct range *range = calloc(1, sizeof *range);
    *range = (struct range){.at = at + entry.offset,
                            .mapping = at,
                            .mapping_size = entry.block_size,
                            .size = entry.size,
                            .serial = serial,
                            .index = index,
                            .device = entry.device,
                            .kind = entry.kind,
                            .pool = entry.pool,
                            .opens = 1,
                            .imported = true};
    remember_range(range);
    *out = (CUdeviceptr)range->at;
    return SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
    ENTER;
    return current() ? allocate(out, size, current()->device, DEVICE_MEMORY, 0) : INVALID_CONTEXT;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    ENTER;
    if (!pointer)
        return SUCCESS;
    struct range *range = find_range(pointer);
    if (!range || (uint64_t)range->at != pointer || range->imported ||
        range->kind == VIRTUAL_MEMORY)
        return INVALID_VALUE;
    drain_device(range->device);
    return free_range(range);
}

CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags)
{
    ENTER;
    (void)flags;
    return current() ? allocate(out, size, current()->device, MANAGED_MEMORY, 0) : INVALID_CONTEXT;
}

CUresult cuMemAllocHost_v2(void **out, size_t size)
{
    ENTER;
    return current() ? allocate((CUdeviceptr *)out, size, current()->device, PINNED_MEMORY, 0)
                     : INVALID_CONTEXT;
}

CUresult cuMemFreeHost(void *pointer)
{
    return cuMemFree_v2((CUdeviceptr)pointer);
}

CUresult cuMemGetInfo_v2(size_t *left, size_t *total)
{
    ENTER;
    *left = *total = (size_t)1 << 34;
    return SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    ENTER;
    struct range *range = find_range(pointer);
    if (!range)
        return NOT_FOUND;
    if (base)
        *base = (CUdeviceptr)range->at;
    if (size)
        *size = range->size;
    return SUCCESS;
}

static CUresult attribute_of(void *data, int attribute, CUdeviceptr pointer)
{
    struct range *range = find_range(pointer);
    bool known = range != NULL;
    switch (attribute) {
    case 1:
        *(CUcontext *)data = NULL;
        break;
    case 2:
        *(int *)data = known ? (range->kind == PINNED_MEMORY ? 1 : 2) : 0;
        break;
    case 3:
    case 4:
        *(CUdeviceptr *)data = known ? pointer : 0;
        break;
    case 7:
        *(uint64_t *)data = known ? range->serial : 0;
        break;
    case 8:
        *(uint32_t *)data = known && range->kind == MANAGED_MEMORY;
        break;
    case 9:
        *(int *)data = known ? ordinal_of(range->device) : -2;
        break;
    case 10:
        *(uint32_t *)data = known && range->kind == DEVICE_MEMORY && !range->imported;
        break;
    case 11:
        *(CUdeviceptr *)data = known ? (CUdeviceptr)range->at : 0;
        break;
    case 12:
        *(size_t *)data = known ? range->size : 0;
        break;
    case 13:
        *(uint32_t *)data = known;
        break;
    case 14:
        *(uint64_t *)data = known && (range->pool > MAX_DEVICES || range->exportable);
        break;
    case 17:
        *(void **)data = known ? pool_handle(range->pool) : NULL;
        break;
    default:
        return INVALID_VALUE;
    }
    return known ? SUCCESS : INVALID_VALUE;
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer)
{
    ENTER;
    return attribute_of(data, attribute, pointer);
}

CUresult cuPointerGetAttributes(unsigned n, int *attributes, void **data, CUdeviceptr pointer)
{
    ENTER;
    for (unsigned i = 0; i < n; i++)
        attribute_of(data[i], attributes[i], pointer);
    return SUCCESS;
}
