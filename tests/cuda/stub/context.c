/* Test code (stub driver): initialisation, devices, contexts, errors. */
#define _GNU_SOURCE
#include "stub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool initialised, forked;
static int visible[MAX_DEVICES], n_visible;
static struct context contexts[MAX_DEVICES];
static __thread CUcontext stack[64];
static __thread int depth;

static void in_child(void)
{
    if (initialised)
        forked = true;
    else
        depth = 0;
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

CUresult enter(const char *function, struct calls **calls)
{
    if (!initialised || forked)
        return NOT_INITIALIZED;
    if (!*calls)
        *calls = calls_of(function);
    __atomic_fetch_add(&(*calls)->count, 1, __ATOMIC_RELAXED);
    return fault(function);
}

CUcontext current(void)
{
    return depth ? stack[depth - 1] : NULL;
}
int physical_of(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < n_visible ? visible[ordinal] : -1;
}

CUdevice ordinal_of(int physical)
{
    for (int i = 0; i < n_visible; i++)
        if (visible[i] == physical)
            return i;
    return -1;
}

CUresult cuInit(unsigned flags)
{
    if (flags)
        return INVALID_VALUE;
    if (forked)
        return NOT_INITIALIZED;
    CUresult bad = fault("cuInit");
    if (bad)
        return bad;
    if (initialised)
        return SUCCESS;
    const char *asked = getenv("MP_CUDA_STUB_DEVICES"), *seen = getenv("CUDA_VISIBLE_DEVICES");
    int there = asked ? atoi(asked) : 2;
    n_visible = 0;
    if (!seen)
        for (; n_visible < there && n_visible < MAX_DEVICES; n_visible++)
            visible[n_visible] = n_visible;
    while (seen && *seen) {
        int device = (int)strtol(seen, (char **)&seen, 10);
        if (device < 0 || device >= there || n_visible == MAX_DEVICES)
            break;
        visible[n_visible++] = device;
        if (*seen++ != ',')
            break;
    }
    if (!n_visible)
        return NO_DEVICE;
    bad = open_state();
    if (bad)
        return bad;
    for (int i = 0; i < n_visible; i++)
        open_device(visible[i]);
    for (int i = 0; i < MAX_DEVICES; i++)
        contexts[i].device = i;
    initialised = true;
    return SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    const char *asked = getenv("MP_CUDA_STUB_VERSION");
    *version = asked ? atoi(asked) : 13000;
    return SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    static const struct {
        int code;
        const char *name;
    } names[] = {{SUCCESS, "CUDA_SUCCESS"},
                 {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
                 {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                 {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
                 {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
                 {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
                 {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
                 {MAP_FAILED_, "CUDA_ERROR_MAP_FAILED"},
                 {ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED"},
                 {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
                 {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
                 {NOT_READY, "CUDA_ERROR_NOT_READY"},
                 {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                 {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == error) {
            *name = names[i].name;
            return SUCCESS;
        }
    *name = NULL;
    return INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    (void)error;
    *text = "an error of the stub driver, not of a GPU";
    return SUCCESS;
}

CUresult cuDeviceGetCount(int *n)
{
    ENTER;
    *n = n_visible;
    return SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER;
    if (physical_of(ordinal) < 0)
        return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    ENTER;
    snprintf(name, (size_t)length, "STUB, not a GPU (%d)", physical_of(device));
    return SUCCESS;
}

CUresult cuDeviceGetUuid_v2(char uuid[16], CUdevice device)
{
    ENTER;
    if (physical_of(device) < 0)
        return INVALID_DEVICE;
    memcpy(uuid, "STUB-NOT-A-GPU-", 15);
    uuid[15] = (char)('0' + physical_of(device));
    return SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    ENTER;
    if (physical_of(device) < 0)
        return INVALID_DEVICE;
    switch (attribute) {
    case 41:
    case 103:
    case 115:
    case 125:
    case 102:
    case 47:
        *value = 1;
        break; /* unified, fd handles, pools, IPC events */
    case 119:
        *value = 1;
        break; /* POSIX file descriptors */
    case 75:
        *value = 9;
        break; /* compute capability */
    case 76:
        *value = 0;
        break;
    case 10:
        *value = 32;
        break; /* warp */
    case 16:
        *value = 1;
        break;
    default:
        *value = 0;
    }
    return SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    ENTER;
    (void)device;
    *bytes = (size_t)1 << 34;
    return SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    ENTER;
    snprintf(text, (size_t)length, "0000:%02x:00.0", physical_of(device));
    return SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice a, CUdevice b)
{
    ENTER;
    *can = a != b;
    return SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER;
    if (physical_of(device) < 0)
        return INVALID_DEVICE;
    *context = &contexts[physical_of(device)];
    (*context)->retained++;
    return SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER;
    if (physical_of(device) < 0)
        return INVALID_DEVICE;
    return contexts[physical_of(device)].retained-- > 0 ? SUCCESS : INVALID_CONTEXT;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    ENTER;
    if (physical_of(device) < 0)
        return INVALID_DEVICE;
    *flags = 0;
    *active = contexts[physical_of(device)].retained > 0;
    return SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    ENTER;
    (void)device, (void)flags;
    return SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER;
    if (!depth)
        depth = 1;
    stack[depth - 1] = context;
    return SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    ENTER;
    *context = current();
    return SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER;
    if (!context || depth == 64)
        return INVALID_CONTEXT;
    stack[depth++] = context;
    return SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER;
    if (!depth)
        return INVALID_CONTEXT;
    depth--;
    if (context)
        *context = stack[depth];
    return SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER;
    if (!current())
        return INVALID_CONTEXT;
    *device = ordinal_of(current()->device);
    return SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
    ENTER;
    return current() ? drain_device(current()->device) : INVALID_CONTEXT;
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
    ENTER;
    (void)context;
    *version = 3020;
    return SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER;
    if (least)
        *least = 0;
    if (greatest)
        *greatest = 0;
    return SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    ENTER;
    *mode = 0;
    return SUCCESS;
}
