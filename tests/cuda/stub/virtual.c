/* Test code (stub driver): virtual memory: reserve addresses, create memory, map it. */
#define _GNU_SOURCE
#include "stub.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct physical {
    uint64_t offset, size;
    int device;
    bool exportable;
};

struct properties {
    int type, handles;
    struct {
        int type, id;
    } where;
};

CUresult cuMemGetAllocationGranularity(size_t *size, const struct properties *how, int which)
{
    ENTER;
    (void)how, (void)which;
    *size = BLOCK;
    return SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags)
{
    ENTER;
    (void)alignment, (void)wish;
    if (!size || size % BLOCK || flags)
        return INVALID_VALUE;
    void *at = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return OUT_OF_MEMORY;
    *out = (CUdeviceptr)at;
    return SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size)
{
    ENTER;
    return munmap((void *)pointer, size) ? INVALID_VALUE : SUCCESS;
}

CUresult cuMemCreate(struct physical **out, size_t size, const struct properties *how,
                     unsigned long long flags)
{
    ENTER;
    int device = physical_of(how->where.id);
    if (device < 0 || how->type != 1 || how->where.type != 1 || !size || size % BLOCK || flags)
        return INVALID_VALUE;
    struct physical *memory = calloc(1, sizeof *memory);
    int fd = device_file(device);
    lock_state(); /* the file must only grow */
    *memory = (struct physical){.offset = state->next_offset[device],
                                .size = size,
                                .device = device,
                                .exportable = how->handles & 1};
    state->next_offset[device] += size;
    int bad = fd < 0 || ftruncate(fd, (off_t)(memory->offset + size));
    unlock_state();
    if (bad) {
        free(memory);
        return OUT_OF_MEMORY;
    }
    count(ALLOCS);
    *out = memory;
    return SUCCESS;
}

CUresult cuMemRelease(struct physical *memory)
{
    ENTER;
    free(memory);
    count(FREES);
    return SUCCESS;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, struct physical *memory,
                  unsigned long long flags)
{
    ENTER;
    if (offset || size != memory->size || flags || find_range(pointer))
        return INVALID_VALUE;
    int fd = device_file(memory->device);
    if (fd < 0)
        return OUT_OF_MEMORY;
    void *at = mmap((void *)pointer, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                    (off_t)memory->offset);
    if (at == MAP_FAILED)
        return OUT_OF_MEMORY;
    struct range *range = calloc(1, sizeof *range);
    lock_state();
    uint64_t serial = state->next_serial++;
    unlock_state();
    *range = (struct range){.at = (char *)pointer,
                            .size = size,
                            .serial = serial,
                            .index = MAX_ALLOCATIONS, /* in no table: no process can open it */
                            .device = memory->device,
                            .kind = VIRTUAL_MEMORY,
                            .exportable = memory->exportable};
    remember_range(range);
    return SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const void *who, size_t n)
{
    ENTER;
    (void)size, (void)who, (void)n;
    return find_range(pointer) ? SUCCESS : INVALID_VALUE;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    ENTER;
    struct range *range = find_range(pointer);
    if (!range || range->kind != VIRTUAL_MEMORY || (uint64_t)range->at != pointer ||
        range->size != size)
        return INVALID_VALUE;
    drain_device(range->device);
    forget_range(range);
    mmap((void *)pointer, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return SUCCESS;
}
