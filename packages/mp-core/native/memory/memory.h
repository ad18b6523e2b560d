/* Blocks, and the references that a message carries. mp_core.h documents the functions that are
 * also in its table. */
#ifndef MP_MEMORY_H
#define MP_MEMORY_H
#include "mp_core.h"

/* ---- block.c ---- */

extern PyObject *mp_block_type; /* the class mp_core.Block */
/* The allocated block of an object of that class; NULL for any other object. */
mpshm_block *mp_block_of(PyObject *object);
extern int mp_strategy;

/* Add the type Buffer to the module. */
int mp_add_buffer_type(PyObject *module);
PyObject *mp_wrap(PyObject *type, mpshm_block *block);
/* Allocate, and release the GIL if that takes time. 0 or -errno. */
int mp_allocate(int strategy, uint64_t nbytes, int flags, mpshm_block *block);
int mp_block_find(const void *address, mpshm_block *block);
void mp_lease_sign(const mpshm_block *block);
int mp_lease_owner_lives(const mpshm_block *block);
int mp_lease_end(const mpshm_block *block);
int mp_heap_block_at(const void *address, mpshm_block *block);
void mp_release_place(mp_place *place);

/* ---- message.c ---- */

typedef struct mp_message {
    struct mp_message *outer;
    PyObject *handles; /* a list, or NULL before the first */
    size_t carried;
    int by_value;
    int for_ring; /* its handles are noted: see handle_log.c, Note [A writer that is killed] */
    int is_exhausted;
} mp_message;

/* Begin a message on the stack, and end it; returns its handles, or NULL. */
void mp_message_enter(mp_message *message);
PyObject *mp_message_leave(mp_message *message);
/* Whether the messages that this thread begins go through a ring; returns what it was before. */
int mp_message_for_ring(int on);
/* Just before a message is its receiver's: remove the notes of its handles, a list or NULL. */
void mp_message_unhold(PyObject *handles);
/* Discard the handles of a message that is not sent, and drop their list, which may be NULL. An
 * exception that is set stays. */
void mp_drop_handles(PyObject *handles);
/* Give the handles of a message nested in this thread's, which ended well, to the latter; without
 * one leave them to the caller. Takes over the list, or NULL. */
void mp_message_adopt(PyObject *handles);
/* The number of handles of this thread's message; and discard those that came after so many. */
Py_ssize_t mp_message_handles(void);
void mp_message_take_back(Py_ssize_t handles);
int mp_goes_by_value(void);
/* Add the type Message to the module. */
int mp_add_message_type(PyObject *module);
/* Return a Message; it takes both over, and each may be NULL. */
PyObject *mp_message_new(PyObject *data, PyObject *handles);
int mp_is_message(PyObject *object);
/* Set the exception that kept a Message from being pickled or sent, and take it over. */
void mp_message_failed(PyObject *message, PyObject *error);
/* The one Message that stands for each that was sent, borrowed. */
PyObject *mp_sent_message(void);
/* Return the Message of what the function returns, which pickles an object. */
PyObject *mp_pickled(int by_value, PyObject *function, PyObject *args);
/* Call the first of the arguments, a tuple, which pickles an object for a ring, with the others;
 * returns its result and the handles, a list or NULL. */
PyObject *mp_call_for_ring(PyObject *args, PyObject **handles);
/* The bytes of a Message, borrowed; another object is returned itself. */
PyObject *mp_message_data(PyObject *object);
/* Leave the references of a Message, if it is one, to its receiver. */
void mp_message_sent(PyObject *object);
/* Its handles, a list, borrowed; NULL if it has none. */
PyObject *mp_message_handles_of(PyObject *object);
/* Raise the error, an OSError, of that number, with the system call that failed. Returns NULL. */
/* Discard the reference of a handle, without the GIL: it may wait for the manager. */
static inline void mp_discard_handle(const char *handle)
{
    unsigned char bytes[MPSHM_HANDLE_SIZE];

    memcpy(bytes, handle, sizeof(bytes));
    Py_BEGIN_ALLOW_THREADS
    mpshm_block_discard(bytes, sizeof(bytes));
    Py_END_ALLOW_THREADS
}
PyObject *mp_raise_errno(PyObject *type, int number);
/* Seconds, or None for ever, as nanoseconds; -1 for ever. 0, or -1 with an exception. */
int mp_timeout(PyObject *seconds, int64_t *ns);
int mp_message_has_room(size_t nbytes, size_t limit);
PyObject *mp_make_handle(const mpshm_block *block, int flags);
/* The same, also in a message that goes by value. */
PyObject *mp_make_tracked_handle(const mpshm_block *block, int flags);
unsigned long long mp_count_copied(unsigned long long nbytes);

/* ---- receive.c ---- */

extern PyObject *mp_unpickle; /* pickle.loads, or what a program has replaced it by */
/* A thread unpickles a message between these two. */
void mp_receiving_begin(void);
void mp_receiving_end(void);
/* Called between them with an exception set: discard what was not received. Returns an object in
 * place of the message, or NULL with the exception to raise. */
PyObject *mp_receiving_failed(PyObject *message);
int mp_receive(const char *handle, size_t nbytes, mpshm_block *block);
PyObject *mp_receive_block(PyObject *handle, int *rc);
Py_ssize_t mp_size_of_copy(PyObject *handle, int rc);
int mp_read_copy(PyObject *handle, int rc, void *data, uint64_t nbytes);
PyObject *mp_refuse(PyObject *handle, int rc);

/* ---- functions of the module _block ---- */

/* block.c */
PyObject *mp_py_allocate(PyObject *, PyObject *);
PyObject *mp_py_find(PyObject *, PyObject *);
PyObject *mp_py_setup(PyObject *, PyObject *);
PyObject *mp_py_strategy(PyObject *, PyObject *);
PyObject *mp_py_reduce_block(PyObject *, PyObject *);
PyObject *mp_py_lasting_handle(PyObject *, PyObject *);
PyObject *mp_py_reduce_copy(PyObject *, PyObject *);
PyObject *mp_py_open_block(PyObject *, PyObject *);
/* message.c */
PyObject *mp_py_in_message(PyObject *, PyObject *);
PyObject *mp_py_pickled(PyObject *, PyObject *);
PyObject *mp_py_pickled_by_value(PyObject *, PyObject *);
PyObject *mp_py_sent(PyObject *, PyObject *);
PyObject *mp_py_by_value(PyObject *, PyObject *);
PyObject *mp_py_shares_now(PyObject *, PyObject *);
PyObject *mp_py_share(PyObject *, PyObject *);
PyObject *mp_py_copied_bytes(PyObject *, PyObject *);
PyObject *mp_py_message_exhausted(PyObject *, PyObject *);
/* receive.c */
PyObject *mp_py_setup_receiving(PyObject *, PyObject *);
PyObject *mp_py_rebuild_block(PyObject *, PyObject *);
PyObject *mp_py_rebuild_copy(PyObject *, PyObject *);
PyObject *mp_py_discard(PyObject *, PyObject *);
PyObject *mp_py_discard_unread(PyObject *, PyObject *);
PyObject *mp_py_inject(PyObject *, PyObject *);

#endif
