/* Shared by the C files of the module mp_core._block. mp_core.h documents the functions that are
 * also in its table. */
#ifndef MP_NATIVE_H
#define MP_NATIVE_H
#include "mp_core.h"

/* ---- block.c ---- */

extern PyObject *mp_block_type; /* the class mp_core.Block */
extern int mp_strategy;

PyObject *mp_wrap(PyObject *type, mpshm_block *block);
int mp_heap_block_at(const void *address, mpshm_block *block);

/* ---- message.c ---- */

int mp_goes_by_value(void);
int mp_message_has_room(size_t nbytes, size_t limit);
PyObject *mp_make_handle(const mpshm_block *block, int flags);
/* The same, also in a message that goes by value. */
PyObject *mp_make_tracked_handle(const mpshm_block *block, int flags);
unsigned long long mp_count_copied(unsigned long long nbytes);

/* ---- receive.c ---- */

PyObject *mp_receive_block(PyObject *handle, int *rc);
Py_ssize_t mp_size_of_copy(PyObject *handle, int rc);
int mp_read_copy(PyObject *handle, int rc, void *data, uint64_t nbytes);
PyObject *mp_refuse(PyObject *handle, int rc);

/* ---- copy.c ---- */

/* Copy private memory into a new block. 0 or -errno. */
int mp_copy_to_block(const void *from, uint64_t nbytes, mpshm_block *block);

/* ---- beside.c ---- */

PyObject *mp_beside(int table, size_t at);

/* ---- lock_type.c ---- */

/* Add the type SemLock to the module. */
int mp_add_lock_type(PyObject *module);

/* ---- journal.c ---- */

/* Add the type Journal to the module. */
int mp_add_journal_type(PyObject *module);

/* ---- api.c ---- */

/* Return a new capsule around the table of mp_core.h. */
PyObject *mp_api_capsule(void);

/* ---- plain_pickle.c ---- */

int mp_setup_plain_pickle(PyObject *dumps, PyObject *protocol, PyObject *forking_pickler);
void mp_set_pickler(PyTypeObject *type, PyObject *reducer, PyObject *(*pickle)(PyObject *object),
                    PyObject *(*unpickle)(const char *data, Py_ssize_t nbytes));
/* Return the pickle of an object that needs no ForkingPickler; otherwise NULL, perhaps with an
 * exception. Without `may_share` it is one that multiprocessing alone would make. */
PyObject *mp_plain_pickle(PyObject *object, int may_share);
/* Return the object of a message, given as bytes. */
PyObject *mp_plain_loads(PyObject *data);

/* ---- atom_pickle.c ---- */

/* Both return NULL for what they leave to a pickler, perhaps with an exception. */
PyObject *mp_pickle_atom(PyObject *object);
PyObject *mp_unpickle_atom(const char *data, Py_ssize_t nbytes);

/* ---- channel_type.c ---- */

/* Add the type Channel to the module: 0, or -1 with an exception. */
int mp_add_channel_type(PyObject *module);

/* ---- functions of the module _block that other files define ---- */

PyObject *mp_py_setup_receiving(PyObject *, PyObject *);
PyObject *mp_py_loads(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);
PyObject *mp_py_rebuild_block(PyObject *, PyObject *);
PyObject *mp_py_rebuild_copy(PyObject *, PyObject *);
PyObject *mp_py_discard(PyObject *, PyObject *);
PyObject *mp_py_discard_unread(PyObject *, PyObject *);
PyObject *mp_py_inject(PyObject *, PyObject *);

PyObject *mp_py_message_begin(PyObject *, PyObject *);
PyObject *mp_py_message_begin_by_value(PyObject *, PyObject *);
PyObject *mp_py_message_depth(PyObject *, PyObject *);
PyObject *mp_py_message_end(PyObject *, PyObject *);
PyObject *mp_py_by_value(PyObject *, PyObject *);
PyObject *mp_py_share(PyObject *, PyObject *);
PyObject *mp_py_copied_bytes(PyObject *, PyObject *);

PyObject *mp_py_setup_channels(PyObject *, PyObject *);
PyObject *mp_py_make_channel(PyObject *, PyObject *);
PyObject *mp_py_open_channel(PyObject *, PyObject *);
PyObject *mp_py_channel_count(PyObject *, PyObject *);
PyObject *mp_py_plain_loads(PyObject *, PyObject *);
PyObject *mp_py_plain_pickle(PyObject *, PyObject *);

PyObject *mp_py_copy_in(PyObject *, PyObject *);

PyObject *mp_py_beside(PyObject *, PyObject *);
PyObject *mp_py_load_beside(PyObject *, PyObject *);
PyObject *mp_py_setup_beside(PyObject *, PyObject *);

/* dlpack.c, tensors.c */
PyObject *mp_py_describe_tensors(PyObject *, PyObject *);
PyObject *mp_py_find_private(PyObject *, PyObject *);
PyObject *mp_py_handles_at(PyObject *, PyObject *);
PyObject *mp_py_copies_of(PyObject *, PyObject *);
PyObject *mp_py_receive_tensors(PyObject *, PyObject *);

PyObject *mp_py_peer(PyObject *, PyObject *);
/* atoms.c: 1 for a number, a text, bytes or None. */
int mp_is_atom(PyObject *object);
/* 1 for a leaf, or a tuple or list of at most `most` such, nested at most `depth` times. */
int mp_is_made_of(int (*leaf)(PyObject *), PyObject *object, int depth, Py_ssize_t most);
PyObject *mp_py_is_of_atoms(PyObject *, PyObject *);
PyObject *mp_py_is_small(PyObject *, PyObject *);

PyObject *mp_py_setup_locks(PyObject *, PyObject *);
PyObject *mp_py_create_sync(PyObject *, PyObject *);
PyObject *mp_py_sync_handle(PyObject *, PyObject *);
PyObject *mp_py_condition_notify(PyObject *, PyObject *const *, Py_ssize_t);

#endif
