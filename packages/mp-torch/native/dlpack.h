/* The part of DLPack 1 that is used here. */
#ifndef MP_DLPACK_H
#define MP_DLPACK_H
#include "mp_core.h"

typedef struct {
    uint32_t major, minor;
} dl_version;

typedef struct {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides; /* in elements */
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
    dl_version version;
    void *context;
    void (*deleter)(struct dl_managed *);
    uint64_t flags;
    dl_tensor tensor;
} dl_managed;

typedef struct {
    dl_version version;
    void *previous;
    void *allocate;
    int (*managed_from_object)(void *object, dl_managed **tensor);
    int (*to_object)(dl_managed *tensor, void **object);     /* takes over the tensor */
    int (*from_object)(void *object, dl_tensor *descriptor); /* may be NULL; lends its pointers */
    void *current_stream;
} dl_exchange;

/* A device, a code of dtypes, and the most dimensions that a tensor in a table has. */
enum { DL_CPU = 1, DL_UNSIGNED = 1, DL_DIMS = 64 };

/* dtype and shape of a contiguous tensor, as in a layout (see dlpack.c) */
typedef struct {
    uint8_t code, bits, nd, flags;
} dl_record;

/* Return the functions of a capsule, NULL with an exception. */
const dl_exchange *mp_dl_exchange(PyObject *capsule);

/* A contiguous tensor on the CPU that is not empty. */
typedef struct {
    const void *data;
    int64_t nbytes;
    dl_record record;
    int64_t dims[DL_DIMS];
} dl_shape;

/* Describe a tensor; -1 for any other one. */
int mp_dl_shape_of(const dl_tensor *t, dl_shape *shape);

typedef struct dl_memory dl_memory;

/* Make a tensor over the block, and take over the reference to it, also on failure. NULL with an
 * exception; a shape that has not the bytes of the block is a ValueError. Unless `memory` is NULL,
 * set it for mp_dl_keep(). */
PyObject *mp_dl_tensor_over(const dl_exchange *exchange, mpshm_block *block, dl_record r,
                            const int64_t *dims, dl_memory **memory);

/* Keep the memory of a tensor as long as the memory of another one. */
void mp_dl_keep(const dl_exchange *exchange, dl_memory *memory, PyObject *tensor);

#endif
