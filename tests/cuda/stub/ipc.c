/* Test code (stub driver): memory of one process opened by another, and pools. */
#define _GNU_SOURCE
#include "stub.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct memory_handle {
    uint32_t magic, index;
    uint64_t serial;
    struct process owner;
    char rest[64 - 32];
};

CUresult cuIpcGetMemHandle(struct memory_handle *handle, CUdeviceptr pointer)
{
    ENTER;
    struct range *range = find_range(pointer);
    if (!range || range->kind != DEVICE_MEMORY || range->imported)
        return INVALID_VALUE;
    memset(handle, 0, sizeof *handle);
    *handle = (struct memory_handle){
        .magic = MAGIC, .index = range->index, .serial = range->serial, .owner = me};
    return SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, struct memory_handle handle, unsigned flags)
{
    ENTER;
    if (!current())
        return INVALID_CONTEXT;
    if (flags != 1 || handle.magic != MAGIC || handle.index >= MAX_ALLOCATIONS)
        return INVALID_VALUE;
    if (handle.owner.pid == me.pid)
        return INVALID_CONTEXT; /* the driver compares only pids */
    struct range *again = find_import(handle.index, handle.serial);
    if (!again)
        return map_import(out, handle.index, handle.serial, DEVICE_MEMORY);
    const char *strict = getenv("MP_CUDA_STUB_STRICT");
    if (strict && *strict == '1') {
        violation("process %d opens allocation %lu twice", me.pid, (unsigned long)handle.serial);
        return ALREADY_MAPPED;
    }
    lock_state();
    CUresult result = add_import(false, handle.index, handle.serial);
    unlock_state();
    again->opens++;
    *out = (CUdeviceptr)again->at;
    return result;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    ENTER;
    struct range *range = find_range(pointer);
    if (!range || !range->imported || (uint64_t)range->at != pointer)
        return INVALID_VALUE;
    /* The caller must have waited: work that still uses the memory is counted as a violation. */
    lock_state();
    drop_import(false, range->index, range->serial);
    unlock_state();
    if (--range->opens == 0)
        forget_range(range);
    return SUCCESS;
}

/* ---- pools: the descriptor of a pool is a file that contains its number ---- */

struct pool {
    struct pool *next;
    uint32_t number;
    int device;
    bool imported, exportable;
};

struct location {
    int type, id;
};

struct pool_properties {
    int allocation, handles;
    struct location where;
    void *security;
    size_t most;
    unsigned short usage;
    unsigned char rest[54];
};

static struct pool defaults[MAX_DEVICES], *pools;

/* The pool handle that a pointer attribute of this process reports, by the pool's number. */
void *pool_handle(uint32_t number)
{
    if (number && number <= MAX_DEVICES)
        return &defaults[number - 1];
    struct pool *pool = pools;
    while (pool && pool->number != number)
        pool = pool->next;
    return pool;
}

CUresult cuMemPoolCreate(struct pool **out, const struct pool_properties *how)
{
    ENTER;
    int device = physical_of(how->where.id);
    if (device < 0 || how->where.type != 1)
        return INVALID_VALUE;
    struct pool *pool = calloc(1, sizeof *pool);
    lock_state();
    /* below 1000: default pools; from 1000: exportable; from 2000000: not exportable */
    pool->number = (how->handles & 1 ? 1000 : 2000000) + state->next_pool++;
    unlock_state();
    pool->device = device;
    pool->exportable = how->handles & 1;
    pool->next = pools;
    pools = pool;
    *out = pool;
    return SUCCESS;
}

CUresult cuMemPoolDestroy(struct pool *pool)
{
    ENTER;
    if (!pool)
        return INVALID_VALUE;
    for (struct pool **at = &pools; *at; at = &(*at)->next)
        if (*at == pool) {
            *at = pool->next;
            break;
        }
    free(pool);
    return SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(struct pool **out, CUdevice device)
{
    ENTER;
    int physical = physical_of(device);
    if (physical < 0)
        return INVALID_DEVICE;
    defaults[physical] = (struct pool){.number = (uint32_t)physical + 1, .device = physical};
    *out = &defaults[physical];
    return SUCCESS;
}

CUresult cuDeviceGetMemPool(struct pool **out, CUdevice device)
{
    return cuDeviceGetDefaultMemPool(out, device);
}

CUresult cuMemPoolGetAttribute(struct pool *pool, int attribute, void *value)
{
    ENTER;
    (void)pool, (void)attribute;
    *(uint64_t *)value = 0;
    return SUCCESS;
}

CUresult cuMemPoolSetAttribute(struct pool *pool, int attribute, void *value)
{
    ENTER;
    (void)pool, (void)attribute, (void)value;
    return SUCCESS;
}

CUresult cuMemPoolSetAccess(struct pool *pool, const void *map, size_t n)
{
    ENTER;
    (void)pool, (void)map, (void)n;
    return SUCCESS;
}

CUresult cuMemPoolGetAccess(int *flags, struct pool *pool, struct location *where)
{
    ENTER;
    *flags = physical_of(where->id) == pool->device ? 3 : 0;
    return SUCCESS;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, struct pool *pool, CUstream stream)
{
    ENTER;
    (void)stream;
    if (pool->imported)
        return INVALID_VALUE;
    return allocate(out, size, pool->device, POOL_MEMORY, pool->number);
}

CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream)
{
    ENTER;
    if (!current())
        return INVALID_CONTEXT;
    struct pool *pool;
    cuDeviceGetDefaultMemPool(&pool, ordinal_of(current()->device));
    return cuMemAllocFromPoolAsync(out, size, pool, stream);
}

static void close_import(void *argument)
{
    struct range *range = argument;
    lock_state();
    drop_import(false, range->index, range->serial);
    unlock_state();
    forget_range(range);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    ENTER;
    struct range *range = find_range(pointer);
    if (!range || (uint64_t)range->at != pointer)
        return INVALID_VALUE;
    if (range->imported)
        return enqueue(stream, (struct op){.kind = CALL, .call = close_import, .argument = range});
    return enqueue(stream, (struct op){.kind = FREE, .range = range});
}

static void pool_path(char *path, size_t size, uint32_t number)
{
    snprintf(path, size, "%s/pool%u", getenv("MP_CUDA_STUB_FOLDER"), number);
}

CUresult cuMemPoolExportToShareableHandle(void *out, struct pool *pool, int type,
                                          unsigned long long flags)
{
    ENTER;
    char path[512];
    if (flags || type != 1 || !pool->exportable)
        return INVALID_VALUE;
    pool_path(path, sizeof path, pool->number);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    uint32_t words[2] = {pool->number, (uint32_t)pool->device};
    if (fd < 0 || pwrite(fd, words, sizeof words, 0) != sizeof words)
        return NOT_SUPPORTED;
    *(int *)out = fd;
    return SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(struct pool **out, void *handle, int type,
                                            unsigned long long flags)
{
    ENTER;
    uint32_t words[2];
    if (flags || type != 1 || pread((int)(intptr_t)handle, words, sizeof words, 0) != sizeof words)
        return INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    **out = (struct pool){.number = words[0], .device = (int)words[1], .imported = true};
    return SUCCESS;
}

CUresult cuMemPoolExportPointer(struct memory_handle *data, CUdeviceptr pointer)
{
    ENTER;
    struct range *range = find_range(pointer);
    if (!range || range->kind != POOL_MEMORY || range->imported || range->pool <= MAX_DEVICES ||
        range->pool > 1000000)
        return INVALID_VALUE;
    memset(data, 0, sizeof *data);
    *data = (struct memory_handle){
        .magic = MAGIC + 2, .index = range->index, .serial = range->serial, .owner = me};
    return SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *out, struct pool *pool, struct memory_handle *data)
{
    ENTER;
    if (data->magic != MAGIC + 2 || !pool->imported)
        return INVALID_VALUE;
    /* The driver does not count imports: the first free unmaps both. */
    if (find_import(data->index, data->serial))
        violation("process %d imports one pointer of a pool twice", me.pid);
    return map_import(out, data->index, data->serial, POOL_MEMORY);
}
