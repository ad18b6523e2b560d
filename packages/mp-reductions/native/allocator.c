/* The shared allocator: a memory handler for NumPy (its NEP 49) that puts large arrays in shared
 * memory.
 *
 * The handler that was in force before allocates small arrays, and all arrays when shared memory
 * has run out. An address alone decides which of the two owns a pointer: the size that NumPy passes
 * to free() is not always the one it passed to malloc().
 *
 * NumPy nearly always holds the GIL when it calls; see Note [The GIL and libshm's lock] in
 * mp-core's block.c. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "native.h"

static const PyDataMemAllocator *lower; /* NumPy's own */
static int (*holds_gil)(void);          /* PyGILState_Check, which is not in the stable ABI */

/* ---- allocating ---- */

static void *allocate(size_t size, int flags)
{
    int strategy = *mp_core.strategy, rc = -EAGAIN;
    void *at = NULL;

    /* Under this strategy libshm reserves all pages, so a large block takes long. */
    if (strategy != MPSHM_FILE_SYSTEM || size < MP_RELEASE_GIL_BYTES)
        rc = mp_core.heap_allocate(strategy, size, flags | MPSHM_NOWAIT, &at);
    if (rc == -EAGAIN && holds_gil()) {
        Py_BEGIN_ALLOW_THREADS
        rc = mp_core.heap_allocate(strategy, size, flags, &at);
        Py_END_ALLOW_THREADS
    } else if (rc == -EAGAIN) {
        rc = mp_core.heap_allocate(strategy, size, flags, &at);
    }
    return rc == 0 ? at : NULL;
}

static void *shared_malloc(void *ctx, size_t size)
{
    void *at = size < MPSHM_HEAP_LEAST ? NULL : allocate(size, 0);

    return at != NULL ? at : lower->malloc(lower->ctx, size);
}

static void *shared_calloc(void *ctx, size_t count, size_t size)
{
    size_t nbytes;
    void *at = NULL;

    if (__builtin_mul_overflow(count, size, &nbytes))
        return NULL;
    if (nbytes >= MPSHM_HEAP_LEAST)
        at = allocate(nbytes, MPSHM_ZEROED);
    return at != NULL ? at : lower->calloc(lower->ctx, count, size);
}

static void shared_free(void *ctx, void *at, size_t size)
{
    if (!mp_core.heap_free(at))
        lower->free(lower->ctx, at, size);
}

/* Private memory stays private: it may contain addresses, and nothing shows whether it does. Shared
 * memory stays shared unless it becomes too small. */
static void *shared_realloc(void *ctx, void *at, size_t size)
{
    uint64_t before;
    void *moved;
    int rc;

    if (at == NULL)
        return lower->realloc(lower->ctx, at, size);
    rc = mp_core.heap_resize(at, size, &before);
    if (rc == -ENOENT)
        return lower->realloc(lower->ctx, at, size);
    if (rc != 0)
        return rc > 0 ? at : NULL;
    moved = shared_malloc(ctx, size);
    if (moved != NULL) {
        memcpy(moved, at, before < size ? before : size);
        mp_core.heap_free(at);
    }
    return moved;
}

/* Static, because arrays refer to their handler until the process ends. */
static PyDataMem_Handler shared = {
    "mp_shared",
    1,
    {NULL, shared_malloc, shared_calloc, shared_realloc, shared_free},
};

/* Replaces NumPy's own handler after it was `shared`: allocates as NumPy does, and still frees
 * shared memory. */
static PyDataMem_Handler retired = {
    "default_allocator",
    1,
    {NULL, NULL, NULL, shared_realloc, shared_free},
};

/* ---- for Python ---- */

/* The capsule of `shared`, made on first use: until then nothing of NumPy is touched. Borrowed. */
static PyObject *shared_capsule(void)
{
    static PyObject *capsule;

    if (capsule == NULL) {
        const PyDataMem_Handler *own =
            PyCapsule_GetPointer(PyDataMem_DefaultHandler, MP_HANDLER_CAPSULE);
        if (own == NULL)
            return NULL;
        if (own->version < 1)
            return PyErr_Format(PyExc_ImportError, "unknown version %d of NumPy's memory handler",
                                own->version);
        holds_gil = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
        if (holds_gil == NULL)
            return PyErr_Format(PyExc_ImportError, "this interpreter has no PyGILState_Check");
        lower = &own->allocator;
        retired.allocator.ctx = lower->ctx;
        retired.allocator.malloc = lower->malloc;
        retired.allocator.calloc = lower->calloc;
        mp_core.set_fork_private(mp_holds_objects);
        capsule = PyCapsule_New(&shared, MP_HANDLER_CAPSULE, NULL);
    }
    return capsule;
}

PyObject *mp_py_shared_handler(PyObject *module, PyObject *unused)
{
    return Py_XNewRef(shared_capsule());
}

PyObject *mp_py_get_handler(PyObject *module, PyObject *unused)
{
    return PyDataMem_GetHandler();
}

PyObject *mp_py_set_handler(PyObject *module, PyObject *handler)
{
    PyObject *before = PyDataMem_SetHandler(handler);
    if (before == NULL)
        return NULL;
    Py_DECREF(before);
    Py_RETURN_NONE;
}

/* NumPy's default handler, with which every new context begins, is a capsule. NumPy follows its
 * pointer at each call, so one store changes the handler for all threads. */
PyObject *mp_py_replace_default_handler(PyObject *module, PyObject *on)
{
    if (shared_capsule() == NULL ||
        PyCapsule_SetPointer(PyDataMem_DefaultHandler, on == Py_True ? &shared : &retired) < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *mp_py_block_at(PyObject *module, PyObject *a)
{
    mpshm_block block;

    if (!PyArray_Check(a))
        return PyErr_Format(PyExc_TypeError, "block_at takes an array, not %R", Py_TYPE(a));
    if (mp_core.heap_block_at(PyArray_DATA((PyArrayObject *)a), &block) < 0)
        Py_RETURN_NONE;
    return mp_core.wrap(*mp_core.block_type, &block);
}
