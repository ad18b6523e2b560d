/* An allocator for arrays, in the form that NumPy asks for: large ones are born in shared memory.
 * The module mp_reductions._born.
 *
 * A plain table of functions of the shape of NumPy's PyDataMem_Handler (its NEP 49), which never
 * changes once it is published. No NumPy is needed to compile or to import this; who has NumPy
 * hands over the handler that was in force before, and what is small, or finds no shared memory, is
 * left to that one. Whose a pointer is, is told by its address and never by what the caller says:
 * sizes given to free() are not always those given to malloc().
 *
 * NumPy holds the interpreter's lock nearly always when it calls; see block.c, Note [The
 * interpreter's lock and ours] for what that means. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "native.h"

typedef struct {
    char name[127];
    uint8_t version;
    void *ctx;
    void *(*malloc)(void *ctx, size_t size);
    void *(*calloc)(void *ctx, size_t count, size_t size);
    void *(*realloc)(void *ctx, void *at, size_t size);
    void (*free)(void *ctx, void *at, size_t size);
} Handler;

static const char CAPSULE[] = "mem_handler"; /* as NumPy looks for it */

static const Handler *lower;      /* NumPy's own */
static int (*lock_is_held)(void); /* PyGILState_Check, which the stable ABI leaves out */

/* ---- allocating ---- */

static void *shared(size_t size, int flags)
{
    int how = mp_strategy, rc = -EAGAIN;
    void *at = NULL;

    if (how != MPSHM_FILE_SYSTEM || size < MP_TAKES_A_WHILE)
        rc = mpshm_heap_allocate(how, size, flags | MPSHM_NOWAIT, &at);
    if (rc == -EAGAIN && lock_is_held()) {
        Py_BEGIN_ALLOW_THREADS rc = mpshm_heap_allocate(how, size, flags, &at);
        Py_END_ALLOW_THREADS
    } else if (rc == -EAGAIN) {
        rc = mpshm_heap_allocate(how, size, flags, &at);
    }
    return rc == 0 ? at : NULL;
}

static void *born_malloc(void *ctx, size_t size)
{
    void *at = size < MPSHM_HEAP_LEAST ? NULL : shared(size, 0);

    (void)ctx;
    return at != NULL ? at : lower->malloc(lower->ctx, size);
}

static void *born_calloc(void *ctx, size_t count, size_t size)
{
    size_t nbytes;
    void *at = NULL;

    (void)ctx;
    if (__builtin_mul_overflow(count, size, &nbytes))
        return NULL;
    if (nbytes >= MPSHM_HEAP_LEAST)
        at = shared(nbytes, MPSHM_ZEROED);
    return at != NULL ? at : lower->calloc(lower->ctx, count, size);
}

static void born_free(void *ctx, void *at, size_t size)
{
    (void)ctx;
    if (!mpshm_heap_free(at))
        lower->free(lower->ctx, at, size);
}

/* What was private stays private: it may hold addresses, and nobody can tell. What is shared stays
 * so, unless it becomes too small. */
static void *born_realloc(void *ctx, void *at, size_t size)
{
    uint64_t before;
    void *moved;
    int rc;

    if (at == NULL)
        return lower->realloc(lower->ctx, at, size);
    rc = mpshm_heap_resize(at, size, &before);
    if (rc == -ENOENT)
        return lower->realloc(lower->ctx, at, size);
    if (rc != 0)
        return rc > 0 ? at : NULL;
    moved = born_malloc(ctx, size);
    if (moved != NULL) {
        memcpy(moved, at, before < size ? before : size);
        mpshm_heap_free(at);
    }
    return moved;
}

static Handler born = {
    "mp_shared", 1, NULL, born_malloc, born_calloc, born_realloc, born_free,
};

/* In place of NumPy's own when that has been `born` for a while: nothing new is shared, and what
 * is shared is still freed. */
static Handler retired = {"default_allocator", 1, NULL, NULL, NULL, born_realloc, born_free};

int mp_block_at(const void *address, mpshm_block *block)
{
    int rc = mpshm_block_at(address, MPSHM_NOWAIT, block);

    if (rc == -EAGAIN) {
        Py_BEGIN_ALLOW_THREADS rc = mpshm_block_at(address, 0, block);
        Py_END_ALLOW_THREADS
    }
    return rc;
}

/* ---- across a fork ---- */

/* Can these 8 bytes be read, and what are they? Through the kernel, because they may be nowhere. */
static int peek(int memory, uintptr_t at, uintptr_t *word)
{
    return pread(memory, word, sizeof(*word), (off_t)at) == sizeof(*word);
}

static int looks_like_an_address(uintptr_t word)
{
    return word % sizeof(void *) == 0 && word >= 0x10000 && word < (uintptr_t)1 << 47;
}

/* An object is what has a type, which is an object whose type is `type` or derives from it. */
static int is_object(int memory, uintptr_t word)
{
    uintptr_t at = word, next;

    for (int step = 0; step < 3; step++) {
        if (!looks_like_an_address(at) || !peek(memory, at + offsetof(PyObject, ob_type), &next))
            return 0;
        if (step > 0 && next == (uintptr_t)&PyType_Type)
            return 1;
        at = next;
    }
    return 0;
}

/* Does an array of Python objects lie here? A child that wrote its own addresses into it, or only
 * dropped it, would ruin it for its parent. So before a fork the first few thousand bytes that are
 * not zero are looked at; numbers pass the first look at nearly every word. */
static int holds_objects(const void *data, uint64_t nbytes)
{
    enum { WORDS = 512, STRETCH = 1 << 20, PAGE = 4096 };
    const char *base = data;
    int memory = -1, left = WORDS, found = 0;

    for (uint64_t from = 0; from < nbytes && left > 0 && !found; from += STRETCH) {
        unsigned char there[STRETCH / PAGE];
        uint64_t bytes = nbytes - from < STRETCH ? nbytes - from : STRETCH;
        /* What was never touched must not come into being by being looked at. */
        if (mincore((void *)(base + from), bytes, there) != 0)
            memset(there, 1, sizeof(there));
        for (uint64_t at = 0; at + sizeof(uintptr_t) <= bytes && left > 0 && !found;) {
            uintptr_t word;
            if (at % PAGE == 0 && !(there[at / PAGE] & 1)) {
                at += PAGE;
                continue;
            }
            memcpy(&word, base + from + at, sizeof(word));
            at += sizeof(word);
            if (word == 0)
                continue;
            left--;
            if (!looks_like_an_address(word))
                continue;
            if (memory < 0)
                memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
            found = memory < 0 || is_object(memory, word);
        }
    }
    if (memory >= 0)
        close(memory);
    return found;
}

/* ---- for Python ---- */

/* wrap(capsule of NumPy's own handler) -> capsule of ours, the same each time and for ever */
static PyObject *wrap(PyObject *module, PyObject *own)
{
    static PyObject *capsule;
    const Handler *handler = PyCapsule_GetPointer(own, CAPSULE);
    (void)module;

    if (handler == NULL)
        return NULL;
    if (capsule == NULL) {
        if (handler->version < 1) {
            PyErr_Format(PyExc_ImportError, "unknown version %d of NumPy's memory handler",
                         handler->version);
            return NULL;
        }
        lower = handler;
        retired.ctx = lower->ctx;
        retired.malloc = lower->malloc;
        retired.calloc = lower->calloc;
        lock_is_held = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
        if (lock_is_held == NULL) {
            PyErr_SetString(PyExc_ImportError, "this interpreter has no PyGILState_Check");
            return NULL;
        }
        mpshm_set_fork_private(holds_objects);
        capsule = PyCapsule_New(&born, CAPSULE, NULL);
    }
    Py_XINCREF(capsule);
    return capsule;
}

/* replace(capsule of NumPy's own handler, on): one store, and every thread sees it */
static PyObject *replace(PyObject *module, PyObject *args)
{
    PyObject *own;
    int on;
    (void)module;

    if (!PyArg_ParseTuple(args, "Op:replace", &own, &on))
        return NULL;
    if (PyCapsule_SetPointer(own, on ? &born : &retired) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* block_at(object, offset) -> the Block in which the address lies that stands `offset` bytes into
 * the object, or None. An array keeps the address of its first element so. */
static PyObject *block_at(PyObject *module, PyObject *args)
{
    PyObject *op;
    Py_ssize_t offset;
    const void *address;
    mpshm_block block;
    (void)module;

    if (!PyArg_ParseTuple(args, "On:block_at", &op, &offset))
        return NULL;
    memcpy(&address, (const char *)op + offset, sizeof(address));
    int rc = mp_block_at(address, &block);
    if (rc < 0)
        Py_RETURN_NONE;
    return mp_wrap(mp_block_type, &block);
}

static PyMethodDef functions[] = {
    {"wrap", wrap, METH_O, NULL},
    {"replace", replace, METH_VARARGS, NULL},
    {"block_at", block_at, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef born_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_born",
    .m_doc = "Arrays born in shared memory: the allocator behind mp_reductions.shared_allocator.",
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__born(void)
{
    return PyModuleDef_Init(&born_module);
}
