/* The functions of the CUDA driver that messages need, found in the library that the bindings have
 * loaded. Nothing is loaded or linked before a message has device memory. */
#include <dlfcn.h>
#include <string.h>

#include "native.h"

typedef int CUresult;

typedef struct {
    unsigned char bytes[MP_CUDA_HANDLE];
} ipc_handle;

enum { VERSION = 12000, LAZY_PEER_ACCESS = 1, BUFFER_ID = 7 };

static struct {
    CUresult (*get_current)(void **context);
    CUresult (*push)(void *context);
    CUresult (*pop)(void **context);
    CUresult (*record)(void *event, void *stream);
    CUresult (*wait)(void *stream, void *event, unsigned flags);
    CUresult (*synchronize_stream)(void *stream);
    CUresult (*synchronize)(void);
    CUresult (*attribute)(void *to, int attribute, uint64_t pointer);
    CUresult (*attributes)(unsigned n, int *attributes, void **to, uint64_t pointer);
    CUresult (*range)(uint64_t *base, size_t *nbytes, uint64_t pointer);
    CUresult (*memory_handle)(ipc_handle *to, uint64_t base);
    CUresult (*open_memory)(uint64_t *to, ipc_handle handle, unsigned flags);
    CUresult (*close_memory)(uint64_t pointer);
    CUresult (*free_memory)(uint64_t pointer);
    CUresult (*destroy_event)(uint64_t event);
} driver;

static void *contexts[MP_DEVICES];
static int is_loaded;

static int load(void)
{
    typedef CUresult (*get)(const char *, void **, int, uint64_t, int *);
    static const struct {
        const char *name;
        void *to;
    } functions[] = {
        {"cuCtxGetCurrent", &driver.get_current},
        {"cuCtxPushCurrent", &driver.push},
        {"cuCtxPopCurrent", &driver.pop},
        {"cuEventRecord", &driver.record},
        {"cuStreamWaitEvent", &driver.wait},
        {"cuStreamSynchronize", &driver.synchronize_stream},
        {"cuCtxSynchronize", &driver.synchronize},
        {"cuPointerGetAttribute", &driver.attribute},
        {"cuPointerGetAttributes", &driver.attributes},
        {"cuMemGetAddressRange", &driver.range},
        {"cuIpcGetMemHandle", &driver.memory_handle},
        {"cuIpcOpenMemHandle", &driver.open_memory},
        {"cuIpcCloseMemHandle", &driver.close_memory},
        {"cuMemFree", &driver.free_memory},
        {"cuEventDestroy", &driver.destroy_event},
    };
    PyObject *started = PyObject_CallNoArgs(mp_hook.start_driver);

    if (started == NULL)
        return -1;
    Py_DECREF(started);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    get find = library == NULL ? NULL : (get)dlsym(library, "cuGetProcAddress_v2");
    if (find == NULL) {
        PyErr_Format(
            PyExc_RuntimeError,
            "libcuda.so.1 has no cuGetProcAddress_v2: install a driver of CUDA 12 or newer");
        return -1;
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void **to = functions[i].to;
        CUresult code = find(functions[i].name, to, VERSION, 0, NULL);
        if (code != 0 || *to == NULL) {
            PyErr_Format(PyExc_RuntimeError, "the CUDA driver has no %s (%d)", functions[i].name,
                         code);
            return -1;
        }
    }
    is_loaded = 1;
    return 0;
}

void mp_forget_driver(void)
{
    is_loaded = 0; /* the hook says what is wrong in a forked child */
}

static int failed(const char *function, CUresult code)
{
    PyObject *said = PyObject_CallFunction(mp_hook.driver_failed, "si", function, code);

    Py_XDECREF(said);
    return -1;
}

static void *context_of(int device)
{
    if (device < 0 || device >= MP_DEVICES)
        return PyErr_Format(PyExc_ValueError, "there is no device %d", device);
    if (contexts[device] == NULL) {
        PyObject *number = PyObject_CallFunction(mp_hook.context, "i", device);
        contexts[device] = number == NULL ? NULL : PyLong_AsVoidPtr(number);
        Py_XDECREF(number);
    }
    return contexts[device];
}

int mp_driver_begin(int device, mp_context *context)
{
    void *now = NULL;

    context->is_pushed = 0;
    if (!is_loaded && load() < 0)
        return -1;
    void *wanted = context_of(device);
    if (wanted == NULL)
        return -1;
    CUresult code = driver.get_current(&now);
    if (code == 0 && now == wanted)
        return 0;
    if (code == 0)
        code = driver.push(wanted);
    if (code != 0)
        return failed("cuCtxPushCurrent", code);
    context->is_pushed = 1;
    return 0;
}

void mp_driver_end(const mp_context *context)
{
    void *before;

    if (context->is_pushed)
        driver.pop(&before);
}

/* The driver may wait, for a function that needs the GIL, if a stream has very much to do. */
#define CALL(code, call)                                                                           \
    do {                                                                                           \
        Py_BEGIN_ALLOW_THREADS code = call;                                                        \
        Py_END_ALLOW_THREADS                                                                       \
    } while (0)

int mp_record(void *event, uint64_t stream)
{
    CUresult code;

    CALL(code, driver.record(event, (void *)(uintptr_t)stream));
    return code == 0 ? 0 : failed("cuEventRecord", code);
}

int mp_wait(void *event, uint64_t stream)
{
    CUresult code;

    CALL(code, driver.wait((void *)(uintptr_t)stream, event, 0));
    return code == 0 ? 0 : failed("cuStreamWaitEvent", code);
}

int mp_synchronize(uint64_t stream)
{
    CUresult code;

    CALL(code, driver.synchronize_stream((void *)(uintptr_t)stream));
    return code == 0 ? 0 : failed("cuStreamSynchronize", code);
}

int mp_synchronize_device(void)
{
    CUresult code;

    CALL(code, driver.synchronize());
    return code == 0 ? 0 : failed("cuCtxSynchronize", code);
}

/* ---- functions of the module ---- */

/* Call it with the context of the device: 0, or -1 with an exception. `how` is CALL, or ASK for what
 * the driver answers at once: to release the GIL for that may cost more than the answer. */
#define ASK(code, call) (code = (call))
#define ON_DEVICE(device, name, how, call)                                                         \
    ({                                                                                             \
        mp_context context;                                                                        \
        int rc = mp_driver_begin(device, &context);                                                \
        if (rc == 0) {                                                                             \
            CUresult code;                                                                         \
            how(code, call);                                                                       \
            mp_driver_end(&context);                                                               \
            rc = code == 0 ? 0 : failed(name, code);                                               \
        }                                                                                          \
        rc;                                                                                        \
    })

/* buffer_id(device, pointer) -> the driver's number of the allocation there; 0 if there is none */
PyObject *mp_py_buffer_id(PyObject *module, PyObject *args)
{
    unsigned long long pointer, number = 0;
    mp_context context;
    int device;
    (void)module;

    if (!PyArg_ParseTuple(args, "iK:buffer_id", &device, &pointer) ||
        mp_driver_begin(device, &context) < 0)
        return NULL;
    CUresult code = driver.attribute(&number, BUFFER_ID, pointer);
    mp_driver_end(&context);
    return PyLong_FromUnsignedLongLong(code == 0 ? number : 0);
}

/* pointer_attributes(device, pointer, attributes) -> their values, numbers, 0 for those that it has
 * not */
PyObject *mp_py_pointer_attributes(PyObject *module, PyObject *args)
{
    enum { MOST = 16 };
    unsigned long long pointer;
    uint64_t values[MOST] = {0};
    void *to[MOST];
    int device, numbers[MOST];
    PyObject *asked;
    (void)module;

    if (!PyArg_ParseTuple(args, "iKO!:pointer_attributes", &device, &pointer, &PyTuple_Type,
                          &asked))
        return NULL;
    Py_ssize_t n = PyTuple_Size(asked);
    if (n > MOST)
        return PyErr_Format(PyExc_ValueError, "%zd attributes at once", n);
    for (Py_ssize_t i = 0; i < n; i++) {
        numbers[i] = (int)PyLong_AsLong(PyTuple_GetItem(asked, i));
        to[i] = &values[i];
    }
    if (PyErr_Occurred() || ON_DEVICE(device, "cuPointerGetAttributes", ASK,
                                      driver.attributes((unsigned)n, numbers, to, pointer)) < 0)
        return NULL;
    PyObject *all = PyTuple_New(n);
    for (Py_ssize_t i = 0; all != NULL && i < n; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(values[i]);
        if (value == NULL || PyTuple_SetItem(all, i, value) < 0)
            Py_CLEAR(all);
    }
    return all;
}

/* address_range(device, pointer) -> (first byte, size) of its allocation */
PyObject *mp_py_address_range(PyObject *module, PyObject *args)
{
    unsigned long long pointer;
    uint64_t base = 0;
    size_t nbytes = 0;
    int device;
    (void)module;

    if (!PyArg_ParseTuple(args, "iK:address_range", &device, &pointer) ||
        ON_DEVICE(device, "cuMemGetAddressRange", ASK, driver.range(&base, &nbytes, pointer)) < 0)
        return NULL;
    return Py_BuildValue("KK", (unsigned long long)base, (unsigned long long)nbytes);
}

/* memory_handle(device, base) -> 64 bytes that open the allocation in another process */
PyObject *mp_py_memory_handle(PyObject *module, PyObject *args)
{
    unsigned long long base;
    ipc_handle handle;
    int device;
    (void)module;

    if (!PyArg_ParseTuple(args, "iK:memory_handle", &device, &base) ||
        ON_DEVICE(device, "cuIpcGetMemHandle", ASK, driver.memory_handle(&handle, base)) < 0)
        return NULL;
    return PyBytes_FromStringAndSize((const char *)handle.bytes, sizeof(handle.bytes));
}

/* open_memory(device, handle) -> its address here */
PyObject *mp_py_open_memory(PyObject *module, PyObject *args)
{
    const char *bytes;
    Py_ssize_t nbytes;
    ipc_handle handle;
    uint64_t pointer = 0;
    int device;
    (void)module;

    if (!PyArg_ParseTuple(args, "iy#:open_memory", &device, &bytes, &nbytes))
        return NULL;
    if (nbytes != sizeof(handle.bytes))
        return PyErr_Format(PyExc_ValueError, "a CUDA handle has %d bytes, not %zd", MP_CUDA_HANDLE,
                            nbytes);
    memcpy(handle.bytes, bytes, sizeof(handle.bytes));
    if (ON_DEVICE(device, "cuIpcOpenMemHandle", CALL,
                  driver.open_memory(&pointer, handle, LAZY_PEER_ACCESS)) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(pointer);
}

/* End all of these numbers, without the GIL: what the driver answers for each, 0 for success. */
static PyObject *end_all(PyObject *args, CUresult (**end)(uint64_t number))
{
    enum { FEW = 32 };
    uint64_t few[FEW], *numbers = few;
    mp_context context;
    PyObject *given, *codes = NULL;
    int device;

    if (!PyArg_ParseTuple(args, "iO!", &device, &PyTuple_Type, &given))
        return NULL;
    Py_ssize_t n = PyTuple_Size(given);
    if (n > FEW && (numbers = PyMem_Malloc((size_t)n * sizeof(*numbers))) == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++)
        numbers[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(given, i));
    if (!PyErr_Occurred() && mp_driver_begin(device, &context) == 0) {
        PyThreadState *state = PyEval_SaveThread();
        for (Py_ssize_t i = 0; i < n; i++)
            numbers[i] = (uint64_t)(*end)(numbers[i]);
        PyEval_RestoreThread(state);
        mp_driver_end(&context);
        codes = PyTuple_New(n);
    }
    for (Py_ssize_t i = 0; codes != NULL && i < n; i++) {
        PyObject *code = PyLong_FromUnsignedLongLong(numbers[i]);
        if (code == NULL || PyTuple_SetItem(codes, i, code) < 0)
            Py_CLEAR(codes);
    }
    if (numbers != few)
        PyMem_Free(numbers);
    return codes;
}

/* close_memory(device, addresses) -> codes of the driver */
PyObject *mp_py_close_memory(PyObject *module, PyObject *args)
{
    (void)module;
    return end_all(args, &driver.close_memory);
}

/* free_memory(device, addresses) -> codes of the driver */
PyObject *mp_py_free_memory(PyObject *module, PyObject *args)
{
    (void)module;
    return end_all(args, &driver.free_memory);
}

/* destroy_events(device, numbers) -> codes of the driver */
PyObject *mp_py_destroy_events(PyObject *module, PyObject *args)
{
    (void)module;
    return end_all(args, &driver.destroy_event);
}

/* synchronize(device): wait until all work given to it is done */
PyObject *mp_py_synchronize(PyObject *module, PyObject *device)
{
    long number = PyLong_AsLong(device);
    (void)module;

    if ((number == -1 && PyErr_Occurred()) ||
        ON_DEVICE((int)number, "cuCtxSynchronize", CALL, driver.synchronize()) < 0)
        return NULL;
    Py_RETURN_NONE;
}
