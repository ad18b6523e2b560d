/* Private memory that is copied into a new block. */
#include <errno.h>
#include <string.h>

#include "native.h"

int mp_copy_to_block(const void *from, uint64_t nbytes, mpshm_block *block)
{
    int strategy = mp_strategy, rc = -EAGAIN;

    if (nbytes < MP_RELEASE_GIL_BYTES)
        rc = mpshm_block_allocate(strategy, nbytes, MPSHM_NOWAIT, block);
    if (rc == 0) {
        memcpy(block->data, from, nbytes);
    } else if (rc == -EAGAIN) {
        Py_BEGIN_ALLOW_THREADS rc = mpshm_block_allocate(strategy, nbytes, 0, block);
        if (rc == 0)
            memcpy(block->data, from, nbytes);
        Py_END_ALLOW_THREADS
    }
    if (rc == 0)
        mp_count_copied(nbytes);
    return rc;
}

/* copy_in(type, address, nbytes) -> object of type with those bytes, or -errno as an int.
 * The caller keeps the memory at `address` alive. */
PyObject *mp_py_copy_in(PyObject *module, PyObject *args)
{
    PyObject *type;
    unsigned long long address, nbytes;
    mpshm_block block;
    (void)module;

    if (!PyArg_ParseTuple(args, "OKK:copy_in", &type, &address, &nbytes))
        return NULL;
    int rc = mp_copy_to_block((const void *)(uintptr_t)address, nbytes, &block);
    return rc < 0 ? PyLong_FromLong(rc) : mp_wrap(type, &block);
}
