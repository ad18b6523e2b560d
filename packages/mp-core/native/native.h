/* What the modules compiled into this one library share: a hold as a Python object, and the message
 * that the calling thread is pickling. */
#ifndef MP_NATIVE_H
#define MP_NATIVE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "mpshm.h"

/* From this size on, memory may be reserved or touched page by page: let other threads run. */
enum { MP_TAKES_A_WHILE = 1 << 20 };

/* From this size on, a private array that is sent again is worth a word about share_memory. */
enum { MP_LARGE = 32 << 20 };

/* block.c: one hold on a block, and the base of mp_core.Block. */
typedef struct {
    PyObject_HEAD mpshm_block block;
} mp_buffer;

/* The hold as an object of `type`; gives it back and returns NULL when there is no memory. */
PyObject *mp_wrap(PyObject *type, mpshm_block *block);

/* receive.c: claim what `handle` (bytes) speaks of, as an mp_core.Block. NULL when that fails: with
 * an exception, or with -errno in `rc`, for mp_read_copy to be tried and mp_refuse to be called. */
PyObject *mp_receive_block(PyObject *handle, int *rc);

/* After a receive that failed with `rc`: take the bytes into private memory instead. 0 when `data`
 * has them; otherwise nothing is changed. Only the bytes of a message sent with MPSHM_COPY. */
int mp_read_copy(PyObject *handle, int rc, void *data, uint64_t nbytes);

/* The size of a copy that mp_read_copy may take after `rc`, or -1. */
Py_ssize_t mp_size_of_copy(PyObject *handle, int rc);

/* Raise what says why the block cannot be received; returns NULL. */
PyObject *mp_refuse(PyObject *handle, int rc);

/* The class mp_core.Block and the strategy of the moment, as Python has said them. */
extern PyObject *mp_block_type;
extern int mp_strategy;

/* message.c: a new claim on the block, for the message that this thread is pickling; `flags` is 0
 * or MPSHM_COPY. */
PyObject *mp_claim_on(const mpshm_block *block, int flags);

/* Does the message that this thread is pickling go by value? */
int mp_by_value(void);

/* May `nbytes` more travel in the message itself, where `limit` bytes may? If so they are counted.
 */
int mp_message_has_room(size_t nbytes, size_t limit);

/* Count bytes copied from private into shared memory; returns the sum since the process began. */
unsigned long long mp_copied(unsigned long long nbytes);

/* born.c: one more hold on the block, born by the allocator, in which an address lies; -ENOENT. */
int mp_block_at(const void *address, mpshm_block *block);

/* The functions of receive.c and peer.c for Python, in the module _block. */
PyObject *mp_setup_receiving(PyObject *, PyObject *);
PyObject *mp_loads(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);
PyObject *mp_rebuild_block(PyObject *, PyObject *);
PyObject *mp_rebuild_copy(PyObject *, PyObject *);
PyObject *mp_discard(PyObject *, PyObject *);
PyObject *mp_inject(PyObject *, PyObject *);
PyObject *mp_peer(PyObject *, PyObject *);

/* message.c's, there too. */
PyObject *mp_message_begin(PyObject *, PyObject *);
PyObject *mp_message_begin_by_value(PyObject *, PyObject *);
PyObject *mp_goes_by_value(PyObject *, PyObject *);
PyObject *mp_share(PyObject *, PyObject *);
PyObject *mp_message_end(PyObject *, PyObject *);
PyObject *mp_copied_bytes(PyObject *, PyObject *);

#endif
