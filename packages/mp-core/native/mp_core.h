/* The C functions that mp-core offers to other compiled packages, as one table in a capsule.
 *
 *   mp_core_api *api = PyCapsule_Import(MP_CORE_API, 0);
 *   if (api == NULL || api->version != MP_CORE_API_VERSION) ...
 *
 * Only mp-core links libshm, so a process has one copy of the engine. A package that uses the table
 * is compiled with this header and mpshm.h, and links nothing of mp-core. The distributions require
 * each other at one exact version; the version in the table detects two installations that are
 * mixed. Increase it with each change of this struct, of mp_buffer or of mpshm_block. */
#ifndef MP_CORE_H
#define MP_CORE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "mpshm.h"

#define MP_CORE_API "mp_core._native.c_api"
enum { MP_CORE_API_VERSION = 4 };

/* From this size on, libshm may have to reserve or touch many pages: release the GIL meanwhile. */
enum { MP_RELEASE_GIL_BYTES = 1 << 20 };

/* The tables of objects that a message may have; see beside.c, Note [Objects beside a pickle]. */
enum { MP_TABLES = 2 };

/* The base of mp_core.Block: one reference of this process to a block. */
typedef struct {
    PyObject_HEAD mpshm_block block;
} mp_buffer;

typedef struct {
    int version;

    /* Set from Python: the sharing strategy for new blocks, and the class mp_core.Block. */
    const int *strategy;
    PyObject *const *block_type;

    /* libshm: see mpshm.h. */
    int (*block_allocate)(int strategy, uint64_t nbytes, int flags, mpshm_block *out);
    void (*block_release)(mpshm_block *block);
    int (*heap_allocate)(int strategy, uint64_t nbytes, int flags, void **out);
    int (*heap_free)(void *address);
    int (*heap_resize)(void *address, uint64_t nbytes, uint64_t *before);
    void (*set_fork_private)(int (*decide)(const void *data, uint64_t nbytes));

    /* Retain the heap block that contains `address`. 0, or -ENOENT. Releases the GIL if it has to
     * wait. */
    int (*heap_block_at)(const void *address, mpshm_block *block);

    /* Make an object of `type` that takes over the reference; on failure the reference is released
     * and NULL returned. */
    PyObject *(*wrap)(PyObject *type, mpshm_block *block);

    /* Return 1 if the message that this thread is pickling goes by value, otherwise 0. */
    int (*goes_by_value)(void);

    /* Return 1 and count `nbytes` if that many more bytes may travel in the message that this
     * thread is pickling, of which `limit` bytes may; otherwise return 0. */
    int (*message_has_room)(size_t nbytes, size_t limit);

    /* Add an in-flight reference to the block, for the message that this thread is pickling, and
     * return its handle as bytes. `flags` is 0 or MPSHM_COPY. */
    PyObject *(*make_handle)(const mpshm_block *block, int flags);

    /* Count bytes copied from private into shared memory; returns the sum for this process. */
    unsigned long long (*count_copied)(unsigned long long nbytes);

    /* Receive the block of a handle (bytes) as an mp_core.Block. NULL on failure: with an exception
     * set, or with -errno in `rc`. In the second case try read_copy, then call refuse. */
    PyObject *(*receive_block)(PyObject *handle, int *rc);

    /* Return the size of the copy that read_copy may take after receive_block failed with `rc`, or
     * -1 if the message was not sent with MPSHM_COPY. */
    Py_ssize_t (*size_of_copy)(PyObject *handle, int rc);

    /* Copy those bytes into private memory instead of sharing them: 0 when `data` has them;
     * otherwise nothing has changed. */
    int (*read_copy)(PyObject *handle, int rc, void *data, uint64_t nbytes);

    /* Raise the error that says why the block cannot be received; returns NULL. */
    PyObject *(*refuse)(PyObject *handle, int rc);

    /* Return the reduction of the object at position `at` of a table. */
    PyObject *(*beside)(int table, size_t at);

    /* Let `pickle` make the message of an object of exactly that type, as long as `reducer` is the
     * reducer that ForkingPickler has for it. It returns bytes, or NULL without an exception for an
     * object that needs the reducer. It is not called for a message by value. `unpickle` returns
     * the object of such a message, or NULL without an exception for another message. */
    void (*set_pickler)(PyTypeObject *type, PyObject *reducer,
                        PyObject *(*pickle)(PyObject *object),
                        PyObject *(*unpickle)(const char *data, Py_ssize_t nbytes));
} mp_core_api;

#endif
