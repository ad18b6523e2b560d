/* Tensors of another library by DLPack: where their bytes are, and new ones over blocks.
 *
 * Note [Tensors by DLPack]
 *   A library with DLPack's exchange of version 1 (torch >= 2.10) offers C functions in a capsule,
 *   the attribute __dlpack_c_exchange_api__ of its class of tensors. A message may have thousands
 *   of tensors; these functions take a third to a tenth of the time of the library's in Python.
 *
 *   A tensor that is made here has a reference to its block, which DLPack's deleter releases. That
 *   needs no GIL: the library may call it from any thread, also while the interpreter ends.
 *
 *   A layout is bytes, one record for each tensor, in the byte order of the machine:
 *
 *     u8 code and u8 bits of the dtype, u8 dimensions, u8 1 for a gradient, 2 for a Parameter
 *     i64 for each dimension */
#include <stdlib.h>
#include <string.h>

#include "native.h"

const dl_exchange *mp_dl_exchange(PyObject *capsule)
{
    const dl_exchange *exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");

    if (exchange == NULL || (exchange->version.major == 1 && exchange->from_object != NULL))
        return exchange;
    PyErr_Format(PyExc_ValueError, "DLPack's exchange has version %u instead of 1",
                 exchange->version.major);
    return NULL;
}

/* ---- from tensors ---- */

int mp_dl_shape_of(const dl_tensor *t, dl_shape *shape)
{
    int64_t itemsize = t->dtype.bits / 8, nbytes = itemsize;

    if (t->device.type != DL_CPU || t->dtype.lanes != 1 || t->dtype.bits % 8 != 0 ||
        t->ndim > DL_DIMS)
        return -1;
    for (int i = t->ndim; i-- > 0;) {
        if (t->shape[i] != 1 && t->strides[i] * itemsize != nbytes)
            return -1;
        nbytes *= t->shape[i];
        shape->dims[i] = t->shape[i];
    }
    shape->data = (const char *)t->data + t->byte_offset;
    shape->nbytes = nbytes;
    shape->record = (dl_record){t->dtype.code, t->dtype.bits, (uint8_t)t->ndim, 0};
    return nbytes > 0 ? 0 : -1;
}

/* ---- to tensors ---- */

/* A tensor over a block; dims has the shape and then the strides. */
struct dl_memory {
    dl_managed managed;
    mpshm_block block;
    dl_managed *kept; /* what is released with it, or NULL */
    int *released;    /* set when the tensor is released while it is made, otherwise NULL */
    int64_t dims[];
};

static void release(dl_managed *managed)
{
    dl_memory *self = managed->context;

    if (self->released != NULL)
        *self->released = 1;
    mp_core.block_release(&self->block);
    if (self->kept != NULL)
        self->kept->deleter(self->kept);
    free(self);
}

PyObject *mp_dl_tensor_over(const dl_exchange *exchange, mpshm_block *block, dl_record r,
                            const int64_t *dims, dl_memory **memory)
{
    dl_memory *self = calloc(1, sizeof(*self) + 2 * (size_t)r.nd * sizeof(dims[0]));
    int64_t nbytes = r.bits / 8;
    int released = 0;
    void *tensor;

    if (self == NULL) {
        mp_core.block_release(block);
        return PyErr_NoMemory();
    }
    self->block = *block;
    self->released = &released;
    self->managed = (dl_managed){.version = {1, 0},
                                 .context = self,
                                 .deleter = release,
                                 .tensor = {.data = block->data,
                                            .device = {DL_CPU, 0},
                                            .ndim = r.nd,
                                            .dtype = {r.code, r.bits, 1},
                                            .shape = self->dims,
                                            .strides = self->dims + r.nd}};
    for (int i = r.nd; i-- > 0 && nbytes > 0;) {
        self->dims[i] = dims[i];
        self->dims[r.nd + i] = nbytes / (r.bits / 8);
        if (__builtin_mul_overflow(nbytes, dims[i], &nbytes))
            nbytes = -1;
    }
    if (nbytes <= 0 || (uint64_t)nbytes != block->nbytes)
        PyErr_Format(PyExc_ValueError,
                     "the message of tensors is damaged: a shape does not have the %llu bytes of "
                     "its block",
                     (unsigned long long)block->nbytes);
    else if (exchange->to_object(&self->managed, &tensor) == 0) {
        self->released = NULL;
        if (memory != NULL)
            *memory = self;
        return tensor;
    }
    if (!released) /* DLPack does not say who releases what could not be made */
        release(&self->managed);
    return NULL;
}

void mp_dl_keep(const dl_exchange *exchange, dl_memory *memory, PyObject *tensor)
{
    if (exchange->managed_from_object == NULL ||
        exchange->managed_from_object(tensor, &memory->kept) != 0)
        Py_INCREF(tensor); /* without memory: a leak is better than an early free */
    PyErr_Clear();
}
