/* Test code (stub driver): cuGetProcAddress, the one symbol that bindings look up.
 *
 * X(name, function, newest CUDA version in which the name has this signature)
 */
#define _GNU_SOURCE
#include "stub.h"

#include <stdlib.h>
#include <string.h>

#define ENTRIES(X)                                                                                 \
    X(cuCtxGetApiVersion, cuCtxGetApiVersion, 99999)                                               \
    X(cuCtxGetCurrent, cuCtxGetCurrent, 99999)                                                     \
    X(cuCtxGetDevice, cuCtxGetDevice, 12999)                                                       \
    X(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, 99999)                             \
    X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 99999)                                                  \
    X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 99999)                                                \
    X(cuCtxSetCurrent, cuCtxSetCurrent, 99999)                                                     \
    X(cuCtxSynchronize, cuCtxSynchronize, 12999)                                                   \
    X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 99999)                                         \
    X(cuDeviceGet, cuDeviceGet, 99999)                                                             \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute, 99999)                                           \
    X(cuDeviceGetCount, cuDeviceGetCount, 99999)                                                   \
    X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 99999)                                 \
    X(cuDeviceGetMemPool, cuDeviceGetMemPool, 99999)                                               \
    X(cuDeviceGetName, cuDeviceGetName, 99999)                                                     \
    X(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, 99999)                                             \
    X(cuDeviceGetUuid, cuDeviceGetUuid_v2, 99999)                                                  \
    X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 99999)                               \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 99999)                              \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 99999)                                   \
    X(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2, 99999)                            \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, 99999)                                                \
    X(cuDriverGetVersion, cuDriverGetVersion, 99999)                                               \
    X(cuEventCreate, cuEventCreate, 99999)                                                         \
    X(cuEventDestroy, cuEventDestroy_v2, 99999)                                                    \
    X(cuEventElapsedTime, cuEventElapsedTime_v2, 99999)                                            \
    X(cuEventQuery, cuEventQuery, 99999)                                                           \
    X(cuEventRecord, cuEventRecord, 99999)                                                         \
    X(cuEventRecordWithFlags, cuEventRecordWithFlags, 99999)                                       \
    X(cuEventSynchronize, cuEventSynchronize, 99999)                                               \
    X(cuGetErrorName, cuGetErrorName, 99999)                                                       \
    X(cuGetErrorString, cuGetErrorString, 99999)                                                   \
    X(cuInit, cuInit, 99999)                                                                       \
    X(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 99999)                                             \
    X(cuIpcGetEventHandle, cuIpcGetEventHandle, 99999)                                             \
    X(cuIpcGetMemHandle, cuIpcGetMemHandle, 99999)                                                 \
    X(cuIpcOpenEventHandle, cuIpcOpenEventHandle, 99999)                                           \
    X(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, 99999)                                            \
    X(cuLaunchHostFunc, cuLaunchHostFunc, 13019)                                                   \
    X(cuMemAllocAsync, cuMemAllocAsync, 99999)                                                     \
    X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 99999)                                     \
    X(cuMemAllocHost, cuMemAllocHost_v2, 99999)                                                    \
    X(cuMemAllocManaged, cuMemAllocManaged, 99999)                                                 \
    X(cuMemAlloc, cuMemAlloc_v2, 99999)                                                            \
    X(cuMemFreeAsync, cuMemFreeAsync, 99999)                                                       \
    X(cuMemFreeHost, cuMemFreeHost, 99999)                                                         \
    X(cuMemFree, cuMemFree_v2, 99999)                                                              \
    X(cuMemGetAddressRange, cuMemGetAddressRange_v2, 99999)                                        \
    X(cuMemGetInfo, cuMemGetInfo_v2, 99999)                                                        \
    X(cuMemPoolCreate, cuMemPoolCreate, 99999)                                                     \
    X(cuMemPoolDestroy, cuMemPoolDestroy, 99999)                                                   \
    X(cuMemPoolExportPointer, cuMemPoolExportPointer, 99999)                                       \
    X(cuMemPoolExportToShareableHandle, cuMemPoolExportToShareableHandle, 99999)                   \
    X(cuMemPoolGetAccess, cuMemPoolGetAccess, 99999)                                               \
    X(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 99999)                                         \
    X(cuMemPoolImportFromShareableHandle, cuMemPoolImportFromShareableHandle, 99999)               \
    X(cuMemPoolImportPointer, cuMemPoolImportPointer, 99999)                                       \
    X(cuMemPoolSetAccess, cuMemPoolSetAccess, 99999)                                               \
    X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 99999)                                         \
    X(cuMemcpy, cuMemcpy, 99999)                                                                   \
    X(cuMemcpyAsync, cuMemcpyAsync, 99999)                                                         \
    X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, 99999)                                              \
    X(cuMemcpyDtoD, cuMemcpyDtoD_v2, 99999)                                                        \
    X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 99999)                                              \
    X(cuMemcpyDtoH, cuMemcpyDtoH_v2, 99999)                                                        \
    X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, 99999)                                              \
    X(cuMemcpyHtoD, cuMemcpyHtoD_v2, 99999)                                                        \
    X(cuMemAddressFree, cuMemAddressFree, 99999)                                                   \
    X(cuMemAddressReserve, cuMemAddressReserve, 99999)                                             \
    X(cuMemCreate, cuMemCreate, 99999)                                                             \
    X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 99999)                         \
    X(cuMemMap, cuMemMap, 99999)                                                                   \
    X(cuMemRelease, cuMemRelease, 99999)                                                           \
    X(cuMemSetAccess, cuMemSetAccess, 99999)                                                       \
    X(cuMemUnmap, cuMemUnmap, 99999)                                                               \
    X(cuMemsetD8Async, cuMemsetD8Async, 99999)                                                     \
    X(cuMemsetD8, cuMemsetD8_v2, 99999)                                                            \
    X(cuPointerGetAttribute, cuPointerGetAttribute, 99999)                                         \
    X(cuPointerGetAttributes, cuPointerGetAttributes, 99999)                                       \
    X(cuStreamCreate, cuStreamCreate, 99999)                                                       \
    X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 99999)                               \
    X(cuStreamDestroy, cuStreamDestroy_v2, 99999)                                                  \
    X(cuStreamGetCtx, cuStreamGetCtx, 12049)                                                       \
    X(cuStreamGetDevice, cuStreamGetDevice, 99999)                                                 \
    X(cuStreamGetFlags, cuStreamGetFlags, 99999)                                                   \
    X(cuStreamGetPriority, cuStreamGetPriority, 99999)                                             \
    X(cuStreamIsCapturing, cuStreamIsCapturing, 99999)                                             \
    X(cuStreamQuery, cuStreamQuery, 99999)                                                         \
    X(cuStreamSynchronize, cuStreamSynchronize, 99999)                                             \
    X(cuStreamWaitEvent, cuStreamWaitEvent, 99999)                                                 \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 99999)

#define DECLARE(asked, function, newest) extern CUresult function();
ENTRIES(DECLARE)

static const struct {
    const char *name;
    void *function;
    int newest;
} table[] = {
#define ENTRY(asked, function, newest) {#asked, (void *)function, newest},
    ENTRIES(ENTRY)};

PUBLIC CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
                                    int *found)
{
    /* MP_CUDA_STUB_LACKS=name: a driver that is too old for this function. */
    const char *lacks = getenv("MP_CUDA_STUB_LACKS");
    bool too_new = lacks && !strcmp(lacks, name);
    (void)flags;
    *out = NULL;
    for (size_t i = 0; !too_new && i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name) && version <= table[i].newest)
            *out = table[i].function;
    if (!strcmp(name, "cuGetProcAddress"))
        *out = (void *)cuGetProcAddress_v2;
    if (found)
        *found = *out ? 0 : 1;
    return *out ? SUCCESS : NOT_FOUND;
}
