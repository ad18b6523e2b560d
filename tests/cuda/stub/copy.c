/* Test code (stub driver): copies and fills, as operations on streams. */
#define _GNU_SOURCE
#include "stub.h"

static CUresult copy(CUstream stream, uint64_t to, uint64_t from, size_t size)
{
    return size ? enqueue(stream, (struct op){.kind = COPY, .to = to, .from = from, .size = size})
                : SUCCESS;
}

static CUresult copy_now(uint64_t to, uint64_t from, size_t size)
{
    if (!current())
        return INVALID_CONTEXT;
    CUresult bad = copy(NULL, to, from, size);
    return bad ? bad : drain(NULL);
}

#define SYNC_COPY(name)                                                                            \
    CUresult name(uint64_t to, uint64_t from, size_t n)                                            \
    {                                                                                              \
        ENTER;                                                                                     \
        return copy_now(to, from, n);                                                              \
    }
#define ASYNC_COPY(name)                                                                           \
    CUresult name(uint64_t to, uint64_t from, size_t n, CUstream stream)                           \
    {                                                                                              \
        ENTER;                                                                                     \
        return copy(stream, to, from, n);                                                          \
    }
SYNC_COPY(cuMemcpy)
SYNC_COPY(cuMemcpyHtoD_v2)
SYNC_COPY(cuMemcpyDtoH_v2)
SYNC_COPY(cuMemcpyDtoD_v2)
ASYNC_COPY(cuMemcpyAsync)
ASYNC_COPY(cuMemcpyHtoDAsync_v2)
ASYNC_COPY(cuMemcpyDtoHAsync_v2)
ASYNC_COPY(cuMemcpyDtoDAsync_v2)

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n, CUstream stream)
{
    ENTER;
    return enqueue(stream, (struct op){.kind = FILL, .to = to, .value = value, .size = n});
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t n)
{
    return cuMemsetD8Async(to, value, n, NULL);
}
