/* The functions of the CUDA driver that a message calls, found in the library that the bindings have
 * loaded. Nothing is loaded or linked before a message has device memory. */
#include <dlfcn.h>

#include "native.h"

typedef int CUresult;

enum { VERSION = 12000 };

static struct {
    CUresult (*get_current)(void **context);
    CUresult (*push)(void *context);
    CUresult (*pop)(void **context);
    CUresult (*record)(void *event, void *stream);
    CUresult (*wait)(void *stream, void *event, unsigned flags);
    CUresult (*synchronize_stream)(void *stream);
    CUresult (*synchronize)(void);
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
