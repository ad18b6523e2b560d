/* The functions of the CUDA driver that messages need, found in the library that the bindings have
 * loaded. Nothing is loaded or linked before a message has device memory. */
#include <dlfcn.h>
#include <string.h>

#include "native.h"

typedef int CUresult;

typedef struct {
    unsigned char bytes[MP_CUDA_HANDLE];
} ipc_handle;

enum { VERSION = 12000, LAZY_PEER_ACCESS = 1, BUFFER_ID = 7, FIRST_OF_CAPTURE = 900 };

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

/* 0 for success, otherwise -1 with an exception. */
static int checked(const char *function, CUresult code)
{
    if (code != 0)
        Py_XDECREF(PyObject_CallFunction(mp_hook.driver_failed, "si", function, code));
    return code == 0 ? 0 : -1;
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
        return checked("cuCtxPushCurrent", code);
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
        Py_BEGIN_ALLOW_THREADS                                                                     \
        code = call;                                                                               \
        Py_END_ALLOW_THREADS                                                                       \
    } while (0)

int mp_record(void *event, uint64_t stream)
{
    CUresult code;

    CALL(code, driver.record(event, (void *)(uintptr_t)stream));
    return checked("cuEventRecord", code);
}

int mp_wait(void *event, uint64_t stream)
{
    CUresult code;

    CALL(code, driver.wait((void *)(uintptr_t)stream, event, 0));
    return checked("cuStreamWaitEvent", code);
}

int mp_synchronize(uint64_t stream)
{
    CUresult code;

    CALL(code, driver.synchronize_stream((void *)(uintptr_t)stream));
    return checked("cuStreamSynchronize", code);
}

int mp_synchronize_device(void)
{
    CUresult code;

    CALL(code, driver.synchronize());
    return checked("cuCtxSynchronize", code);
}

/* ---- memory ---- */

int mp_buffer_id(int device, uint64_t pointer, uint64_t *number)
{
    mp_context context;

    *number = 0;
    if (mp_driver_begin(device, &context) < 0)
        return -1;
    if (driver.attribute(number, BUFFER_ID, pointer) != 0)
        *number = 0;
    mp_driver_end(&context);
    return 0;
}

int mp_ask_pointer(int device, uint64_t pointer, mp_pointer *to)
{
    static int asked[] = {2, BUFFER_ID, 8, 9, 10, 14, 17};
    void *values[] = {&to->type,      &to->buffer_id,    &to->is_managed, &to->device,
                      &to->is_legacy, &to->handle_types, &to->pool};
    const char *name = "cuPointerGetAttributes";
    mp_context context;
    size_t nbytes = 0;

    *to = (mp_pointer){.base = 0};
    if (mp_driver_begin(device, &context) < 0)
        return -1;
    CUresult code = driver.attributes(sizeof(asked) / sizeof(asked[0]), asked, values, pointer);
    if (code == 0 && to->buffer_id != 0 && to->type != MP_HOST &&
        driver.range(&to->base, &nbytes, pointer) == 0)
        to->nbytes = nbytes;
    if (code == 0 && to->nbytes > 0 && to->is_legacy && !to->is_managed) {
        name = "cuIpcGetMemHandle";
        code = driver.memory_handle((ipc_handle *)to->handle, to->base);
    }
    mp_driver_end(&context);
    return checked(name, code);
}

int mp_open_handle(int device, const void *bytes, uint64_t *pointer)
{
    mp_context context;
    ipc_handle handle;
    CUresult code;

    if (mp_driver_begin(device, &context) < 0)
        return -1;
    memcpy(handle.bytes, bytes, sizeof(handle.bytes));
    CALL(code, driver.open_memory(pointer, handle, LAZY_PEER_ACCESS));
    mp_driver_end(&context);
    return code;
}

/* End all of these, without the GIL; their numbers are then what the driver answers, 0 for
 * success. */
static int end_all(int device, CUresult (**end)(uint64_t number), uint64_t *numbers, size_t n)
{
    mp_context context;

    if (mp_driver_begin(device, &context) < 0)
        return -1;
    PyThreadState *state = PyEval_SaveThread();
    for (size_t i = 0; i < n; i++)
        numbers[i] = (uint64_t)(*end)(numbers[i]);
    PyEval_RestoreThread(state);
    mp_driver_end(&context);
    return 0;
}

int mp_close_handles(int device, uint64_t *pointers, size_t n)
{
    return end_all(device, &driver.close_memory, pointers, n);
}

int mp_device_is_idle(int device)
{
    mp_context context;
    CUresult code;

    if (mp_driver_begin(device, &context) < 0)
        return -1;
    CALL(code, driver.synchronize());
    mp_driver_end(&context);
    if (code >= FIRST_OF_CAPTURE && code < FIRST_OF_CAPTURE + 20)
        return 0;
    return checked("cuCtxSynchronize", code) < 0 ? -1 : 1;
}

/* ---- functions of the module ---- */

static PyObject *end_these(PyObject *args, CUresult (**end)(uint64_t number))
{
    PyObject *given, *codes = NULL;
    int device;

    if (!PyArg_ParseTuple(args, "iO!", &device, &PyTuple_Type, &given))
        return NULL;
    Py_ssize_t n = PyTuple_Size(given);
    uint64_t *numbers = PyMem_Malloc(((size_t)n + 1) * sizeof(*numbers));
    if (numbers == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++)
        numbers[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(given, i));
    if (!PyErr_Occurred() && end_all(device, end, numbers, (size_t)n) == 0)
        codes = PyTuple_New(n);
    for (Py_ssize_t i = 0; codes != NULL && i < n; i++) {
        PyObject *code = PyLong_FromUnsignedLongLong(numbers[i]);
        if (code == NULL || PyTuple_SetItem(codes, i, code) < 0)
            Py_CLEAR(codes);
    }
    PyMem_Free(numbers);
    return codes;
}

static PyObject *free_memory(PyObject *module, PyObject *args)
{
    return end_these(args, &driver.free_memory);
}

static PyObject *destroy_events(PyObject *module, PyObject *args)
{
    return end_these(args, &driver.destroy_event);
}

static PyObject *synchronize(PyObject *module, PyObject *device)
{
    long number = PyLong_AsLong(device);
    int is_idle = number == -1 && PyErr_Occurred() ? -1 : mp_device_is_idle((int)number);

    return is_idle < 0 ? NULL : PyBool_FromLong(is_idle);
}

/* ---- devices ---- */

static unsigned char uuids[MP_DEVICES][16];
static char is_known[MP_DEVICES];

int mp_uuid_of(int device, unsigned char *uuid)
{
    if (device < 0 || device >= MP_DEVICES || !is_known[device]) {
        PyObject *bytes = PyObject_CallFunction(mp_hook.uuid_of, "i", device);
        if (bytes == NULL)
            return -1;
        int ok = device < MP_DEVICES && PyBytes_Check(bytes) && PyBytes_Size(bytes) == 16;
        if (ok) {
            memcpy(uuids[device], PyBytes_AsString(bytes), 16);
            is_known[device] = 1;
        }
        Py_DECREF(bytes);
        if (!ok) {
            PyErr_Format(PyExc_ValueError, "there is no device %d", device);
            return -1;
        }
    }
    memcpy(uuid, uuids[device], 16);
    return 0;
}

int mp_ordinal_of(const unsigned char *uuid)
{
    for (int i = 0; i < MP_DEVICES; i++)
        if (is_known[i] && memcmp(uuids[i], uuid, 16) == 0)
            return i;
    PyObject *number = PyObject_CallFunction(mp_hook.ordinal_of, "y#", uuid, (Py_ssize_t)16);
    int device = number == NULL ? -1 : (int)PyLong_AsLong(number);
    Py_XDECREF(number);
    unsigned char same[16];
    return device < 0 || mp_uuid_of(device, same) < 0 ? -1 : device;
}

static PyMethodDef functions[] = {
    MP_FUNCTION(free_memory, METH_VARARGS, "(device, addresses, /)",
                "Free allocations; return codes."),
    MP_FUNCTION(destroy_events, METH_VARARGS, "(device, numbers, /)",
                "Destroy events; return codes."),
    MP_FUNCTION(synchronize, METH_O, "(device, /)",
                "Wait for all work of a device; return False during a capture."),
    {NULL, NULL, 0, NULL},
};

int mp_add_driver(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
