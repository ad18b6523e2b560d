/* What the modules compiled into this one library share: a hold as a Python object, and the message
 * that the calling thread is pickling. */
#ifndef MP_NATIVE_H
#define MP_NATIVE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "mpshm.h"

/* From this size on, memory may be reserved or touched page by page: let other threads run. */
enum { MP_TAKES_A_WHILE = 1 << 20 };

/* block.c: one hold on a block, and the base of mp_core.Block. */
typedef struct {
    PyObject_HEAD mpshm_block block;
} mp_buffer;

/* The hold as an object of `type`; gives it back and returns NULL when there is no memory. */
PyObject *mp_wrap(PyObject *type, mpshm_block *block);

/* Claim what `handle` speaks of, as an mp_core.Block. NULL with an exception that says why. */
PyObject *mp_rebuild_block(PyObject *handle);

/* The class mp_core.Block and the strategy of the moment, as Python has said them. */
extern PyObject *mp_block_type;
extern int mp_strategy;

/* message.c: a new claim on the block, for the message that this thread is pickling. */
PyObject *mp_claim_on(const mpshm_block *block);

/* May `nbytes` more travel in the message itself, where `limit` bytes may? If so they are counted.
 */
int mp_message_has_room(size_t nbytes, size_t limit);

/* Count bytes copied from private into shared memory; returns the sum since the process began. */
unsigned long long mp_copied(unsigned long long nbytes);

/* born.c: one more hold on the block, born by the allocator, in which an address lies; -ENOENT. */
int mp_block_at(const void *address, mpshm_block *block);

/* message.c's functions for Python, in the module _block. */
PyObject *mp_message_begin(PyObject *, PyObject *);
PyObject *mp_message_end(PyObject *, PyObject *);
PyObject *mp_copied_bytes(PyObject *, PyObject *);

#endif
