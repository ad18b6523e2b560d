/* Shared by the C files of the module mp_core._block. mp_core.h documents the functions that are
 * also in its table. */
#ifndef MP_NATIVE_H
#define MP_NATIVE_H
#include "mp_core.h"

/* ---- block.c ---- */

extern PyObject *mp_block_type; /* the class mp_core.Block */
extern int mp_strategy;

/* Add the type Buffer to the module. */
int mp_add_buffer_type(PyObject *module);
PyObject *mp_wrap(PyObject *type, mpshm_block *block);
/* Allocate, and release the GIL if that takes time. 0 or -errno. */
int mp_allocate(int strategy, uint64_t nbytes, int flags, mpshm_block *block);
int mp_block_find(const void *address, mpshm_block *block);
int mp_lease_owner_lives(const mpshm_block *block);
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
PyObject *mp_raise_errno(PyObject *type, int number);
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

/* ---- packs.c ---- */

int mp_setup_packs(PyObject *module);
int mp_write_pack(mp_pack *pack, mp_writer *to);
const char *mp_read_pack(mp_reader *from, uint64_t *nbytes);
int mp_write_block(const mp_entry *entry, mp_writer *to);
PyObject *mp_read_block(mp_reader *from);

/* ---- object_table.c ---- */

/* Add the type ObjectTable to the module. */
int mp_add_object_table(PyObject *module);

/* ---- reducer_table.c ---- */

/* Add the type ReducerTable to the module. */
int mp_add_reducer_table(PyObject *module);
/* Return what reducers.py knows of a class without a reducer; NULL, perhaps with an exception, for
 * another one. */
PyObject *mp_without_reducer(PyObject *kind);

/* ---- lock_type.c ---- */

/* Add the type SemLock to the module. */
int mp_add_lock_type(PyObject *module);

/* ---- line.c ---- */

/* Add the type Line to the module. */
int mp_add_line_type(PyObject *module);

/* ---- try_lock.c ---- */

/* Add the type TryLock to the module. */
int mp_add_try_lock_type(PyObject *module);

/* ---- api.c ---- */

/* Return a new capsule around the table of mp_core.h. */
PyObject *mp_api_capsule(void);

/* ---- writer.c ---- */

void mp_begin_writing(mp_writer *to);
void mp_end_writing(mp_writer *to);
/* Return memory for `nbytes` more; NULL with an exception. */
char *mp_writer_room(mp_writer *to, size_t nbytes);

/* ---- plan.c ---- */

/* An object of a message, which the plan holds, or the memory of one. */
typedef struct {
    const void *key;
    uint32_t number; /* in the memo of the pickle */
} mp_seen;

enum { MP_FEW_ENTRIES = 16, MP_FEW_SEEN = 16 };

typedef struct {
    mp_writer bytes;
    mp_entry *entries;
    mp_seen *seen;
    mp_pack *packs;        /* the last one */
    mp_shared *shared;     /* likewise */
    uint32_t *slots, mask; /* of a hash table of `seen`, NULL as long as there are few */
    uint32_t entry_count, entry_room, seen_count, seen_room, numbers;
    mp_entry few_entries[MP_FEW_ENTRIES];
    mp_seen few_seen[MP_FEW_SEEN];
} mp_plan;

void mp_begin_plan(mp_plan *plan);
/* Give back all that it holds. */
void mp_end_plan(mp_plan *plan);
/* Return a new entry, which belongs at the end of the plan's bytes; NULL with an exception. The
 * plan has to hold the object already. */
mp_entry *mp_plan_entry(mp_plan *plan, PyObject *object, const mp_codec *codec);
/* Take the last entry back. */
void mp_plan_drop_entry(mp_plan *plan);
/* Find room in a pack for the entry: 1, or -1 with an exception. A pack has `room` bytes, or with 0
 * as many as are found before it is written. */
int mp_plan_pack(mp_plan *plan, mp_entry *entry, size_t room);
/* Give the block of a view its number: 1; 0 if the block is in the message as another object; -1
 * with an exception. */
int mp_plan_block(mp_plan *plan, mp_entry *entry);
/* Number what the entry shares, if it is new. */
void mp_plan_shared(mp_plan *plan, mp_entry *entry);
/* Take the last one back, with its number. */
void mp_plan_drop_shared(mp_plan *plan);
/* Finish all that the objects share: 0, or -1 with an exception. */
int mp_plan_finish(mp_plan *plan);
/* Take the last pack back, with its number. */
void mp_plan_drop_pack(mp_plan *plan);
/* Return 1 and hold an object that is new, 0 for one that was seen, -1 with an exception; `at` is
 * its position. */
int mp_plan_object(mp_plan *plan, PyObject *object, uint32_t *at);
/* Return 1 for memory that is new, 0 for memory that was seen, -1 with an exception. */
int mp_plan_memory(mp_plan *plan, const void *memory);
/* Give the object at that position the next number in the memo. */
void mp_plan_number(mp_plan *plan, uint32_t at);
/* Return 1 if the object at that position has a number, otherwise 0. */
int mp_plan_repeats(const mp_plan *plan, uint32_t at, uint32_t *number);

/* ---- codecs.c ---- */

void mp_register_codec(const mp_codec *codec);
/* Return the codec for the type of the object, or NULL; and the next one for the same type. */
const mp_codec *mp_codec_of(PyObject *object);
const mp_codec *mp_codec_after(const mp_codec *codec);
/* Return the function that makes an atom of the object, of which its type makes the object; or
 * NULL. */
PyObject *(*mp_constructor_of(PyObject *object))(PyObject *);
void mp_register_constructor(PyTypeObject *type, PyObject *(*atom_of)(PyObject *object));
/* Return the reducer that ForkingPickler has for the type, borrowed, or NULL. */
PyObject *mp_reducer_of(PyTypeObject *type, PyObject *forking_pickler);
/* 1 if it or copyreg has one; -1 with an exception. */
int mp_has_reducer(PyTypeObject *type);
/* Return 1 if ForkingPickler has the reducer for which the codec stands, otherwise 0. */
int mp_codec_is_current(const mp_codec *codec, PyObject *forking_pickler);
/* Let each codec's objects be reduced by another function in a table {type: reducer}, where its
 * reducer is the one for which the codec stands. 0, or -1 with an exception. */
int mp_replace_reducers(PyObject *reducers, PyObject *function);
/* Read an object that a codec has written: NULL, perhaps with an exception, if there is none. */
PyObject *mp_read_by_codec(mp_reader *from);

/* ---- pickling.c ---- */

/* Return an attribute of a module, for the lifetime of the process; NULL with an exception. */
PyObject *mp_imported(const char *module_name, const char *name);
/* Make the text, once: 0, or -1 with an exception. */
int mp_intern(PyObject **name, const char *text);
/* ForkingPickler, pickle.dumps, pickle.loads and the protocol; and the names of the functions of the
 * first. There after a call of the last, which returns 0, or -1 with an exception. */
extern PyObject *mp_forking_pickler, *mp_plain_dumps, *mp_plain_loads, *mp_protocol, *mp_dumps_name,
    *mp_loads_name;
int mp_set_up_pickling(void);

/* ---- names.c ---- */

int mp_setup_names(PyObject *module);
/* 1 for a function, and for a class that is no metaclass's. */
int mp_has_name(PyObject *object);
/* 1 if the program has not changed how ForkingPickler writes, or reads; -1 with an exception. */
int mp_pickler_is_standard(void);
int mp_unpickler_is_standard(void);
/* Write the name of a function or class: 1; 0 for one that needs a pickler; -1 with an exception. */
int mp_put_name(mp_writer *to, PyObject *thing);
/* The same as bytes, for a function of ours that is written often. 0, or -1 with an exception. */
int mp_make_global(mp_global *to, PyObject *function);
/* Import the module and return what the name leads to; NULL, perhaps without an exception. */
PyObject *mp_find_name(PyObject *module, PyObject *name);

/* ---- objects.c ---- */

int mp_setup_objects(PyObject *module);
/* 1 for a plain object, see objects.c; -1 with an exception. */
int mp_is_plain(PyObject *object);
/* Return the __dict__ of a plain object; NULL, without an exception for one that needs a pickler. */
PyObject *mp_state_of(PyObject *object);
/* 1 for a reduced object, see objects.c; -1 with an exception. */
int mp_is_reduced(PyObject *object);
/* Return (class or function, its arguments), which __new__ gets if it `makes_new`; NULL, without an
 * exception for one that needs a pickler. */
PyObject *mp_reduction_of(PyObject *object, int *makes_new);
/* Make an object of the class; NULL, perhaps without an exception. */
PyObject *mp_new_object(PyObject *kind, PyObject *args);
/* Give it that state: 1; 0 for a state that an unpickler may know; -1 with an exception. `usual` is
 * the last class in the message that has no __setstate__. */
int mp_set_state(PyObject *object, PyObject *state, PyTypeObject **usual);

/* ---- encode.c ---- */

enum {
    MP_WITHOUT_NAMES = 4, /* the protocol of a pickle without names, */
    MP_WITH_NAMES = 5,    /* and with */
    MP_LONGEST = 4096,    /* text, in characters, or bytes */
    MP_LONGEST_UTF8 = 4 * MP_LONGEST,
};

/* What is known of a message that is being surveyed. */
typedef struct {
    mp_plan plan;
    int may_share;
    int may_view;
    int is_crowded;   /* a container with many items: they may go into a pack */
    size_t pack_room; /* of each pack, or 0 */
    uint32_t objects,
        free_objects;        /* the number so far; how many more there may be for plain ones */
    const mp_codec *current; /* the last one of which the reducer is the one it stands for */
    PyTypeObject *plain;     /* the class of the plain object that was seen last, */
    PyTypeObject *reduced;   /* and of the reduced one */
    int is_standard;         /* the pickler, or -1 as long as nobody has asked */
    int has_names;           /* written so far */
} mp_survey;

void mp_begin_survey(mp_survey *s, int may_share);
/* Survey one more object, which occurs once, and write it at once, at the end of the plan's bytes:
 * 1; 0 for one that needs its reducer, and nothing has changed; -1 with an exception. It may ask only
 * the codecs whose objects are always beside a pickle. */
int mp_write_one(mp_survey *s, PyObject *object, int only_beside);

/* Return the pickle of an object that needs no ForkingPickler, and a list of its handles or NULL;
 * otherwise NULL, perhaps with an exception. Without `may_share` it is one that multiprocessing
 * alone would make. */
PyObject *mp_encode(PyObject *object, int may_share, PyObject **handles);
/* Return the Message that ForkingPickler.dumps makes of an object. */
PyObject *mp_forking_pickle(PyObject *object, int by_value);

/* ---- decode.c ---- */

/* Return the object of a message, given as bytes. */
PyObject *mp_decode(PyObject *data);
/* Return the object of a pickle in a message that is being read: its failure is the message's. The
 * second leaves it to an unpickler. */
PyObject *mp_decode_part(PyObject *data);
PyObject *mp_unpickle_part(PyObject *data);
/* Give the object, which may be NULL, the next number in the memo, which takes it over; returns it,
 * borrowed. */
PyObject *mp_memo_add(mp_reader *from, PyObject *object);
/* Take a number of the memo: its object, borrowed, or NULL if there is none. */
PyObject *mp_memo_take(mp_reader *from);

/* ---- large_bytes.c ---- */

/* From this size on, bytes, bytearray and str travel through a block. It is the size from which on
 * a pickler writes them straight to its file (FRAME_SIZE_TARGET of CPython); through a block they
 * were faster at each size that was measured, from 64 KiB up. */
enum { MP_LARGE = 1 << 16 };

/* Copy the bytes into a new block for one receiver, and return its handle; NULL with an exception,
 * or with -errno in `rc`. `may_change`: the memory may be read only with the GIL. */
PyObject *mp_copy_large(const void *data, size_t nbytes, int may_change, int *rc);
/* 1 for a large bytes, bytearray or str. */
int mp_is_large(PyObject *object);
/* It writes them; it is not among the registered ones, which are found by the type alone. */
extern const mp_codec mp_large_codec;
/* Read one: NULL, perhaps with an exception, if there is none. */
PyObject *mp_read_large(mp_reader *from);
int mp_setup_large_bytes(PyObject *module);

/* ---- pickle_writer.c, pickle_reader.c ---- */

/* Add the types PickleWriter and PickleReader to the module. */
int mp_add_pickle_writer(PyObject *module);
int mp_add_pickle_reader(PyObject *module);

/* ---- channel_type.c ---- */

/* Add the type Channel to the module: 0, or -1 with an exception. */
int mp_add_channel_type(PyObject *module);

/* ---- functions of the module _block ---- */

PyObject *mp_py_allocate(PyObject *, PyObject *);
PyObject *mp_py_find(PyObject *, PyObject *);
PyObject *mp_py_setup(PyObject *, PyObject *);
PyObject *mp_py_strategy(PyObject *, PyObject *);
PyObject *mp_py_reduce_block(PyObject *, PyObject *);
PyObject *mp_py_lasting_handle(PyObject *, PyObject *);
PyObject *mp_py_reduce_copy(PyObject *, PyObject *);
PyObject *mp_py_setup_receiving(PyObject *, PyObject *);
PyObject *mp_py_version(PyObject *, PyObject *);
PyObject *mp_py_set_manager(PyObject *, PyObject *);
PyObject *mp_py_own_session(PyObject *, PyObject *);
PyObject *mp_py_attach_to(PyObject *, PyObject *);
PyObject *mp_py_attach_by_descriptors(PyObject *, PyObject *);
PyObject *mp_py_open_descriptors_for_child(PyObject *, PyObject *);
PyObject *mp_py_set_message_timeout(PyObject *, PyObject *);
PyObject *mp_py_handle_alive(PyObject *, PyObject *);
PyObject *mp_py_loads(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);
PyObject *mp_py_rebuild_block(PyObject *, PyObject *);
PyObject *mp_py_rebuild_copy(PyObject *, PyObject *);
PyObject *mp_py_discard(PyObject *, PyObject *);
PyObject *mp_py_discard_unread(PyObject *, PyObject *);
PyObject *mp_py_inject(PyObject *, PyObject *);

PyObject *mp_py_copy_large(PyObject *, PyObject *);
PyObject *mp_py_rebuild_bytes(PyObject *, PyObject *);
PyObject *mp_py_rebuild_bytearray(PyObject *, PyObject *);
PyObject *mp_py_rebuild_str(PyObject *, PyObject *);

PyObject *mp_py_in_message(PyObject *, PyObject *);
PyObject *mp_py_pickled(PyObject *, PyObject *);
PyObject *mp_py_pickled_by_value(PyObject *, PyObject *);
PyObject *mp_py_sent(PyObject *, PyObject *);
PyObject *mp_py_by_value(PyObject *, PyObject *);
PyObject *mp_py_shares_now(PyObject *, PyObject *);
PyObject *mp_py_share(PyObject *, PyObject *);
PyObject *mp_py_copied_bytes(PyObject *, PyObject *);
PyObject *mp_py_message_exhausted(PyObject *, PyObject *);

PyObject *mp_py_setup_channels(PyObject *, PyObject *);
PyObject *mp_py_make_channel(PyObject *, PyObject *);
PyObject *mp_py_open_channel(PyObject *, PyObject *);
PyObject *mp_py_channel_count(PyObject *, PyObject *);
PyObject *mp_py_channels_refused(PyObject *, PyObject *);
PyObject *mp_py_plain_loads(PyObject *, PyObject *);
PyObject *mp_py_plain_pickle(PyObject *, PyObject *);
PyObject *mp_py_plain_data(PyObject *, PyObject *);
PyObject *mp_py_only_atoms(PyObject *, PyObject *);

PyObject *mp_py_beside(PyObject *, PyObject *);
PyObject *mp_py_load_beside(PyObject *, PyObject *);
PyObject *mp_py_setup_reducer_table(PyObject *, PyObject *);

/* arrow_pack.c, arrow_unpack.c */
PyObject *mp_py_pack_arrow(PyObject *, PyObject *);
PyObject *mp_py_unpack_arrow(PyObject *, PyObject *);

PyObject *mp_py_peer(PyObject *, PyObject *);

/* timeline.c */
PyObject *mp_py_timeline_open(PyObject *, PyObject *);
PyObject *mp_py_timeline_close(PyObject *, PyObject *);
PyObject *mp_py_timeline_name(PyObject *, PyObject *);
PyObject *mp_py_timeline_now(PyObject *, PyObject *);
PyObject *mp_py_timeline_blocks(PyObject *, PyObject *);
PyObject *mp_py_timeline_write(PyObject *, PyObject *const *, Py_ssize_t);
/* fork_hooks.c */
PyObject *mp_py_register_at_fork(PyObject *, PyObject *);
/* atoms.c: 1 for a number, a text, bytes or None. */
int mp_is_atom(PyObject *object);
/* 1 for a leaf, or a tuple or list of at most `most` such, nested at most `depth` times. */
int mp_is_made_of(int (*leaf)(PyObject *), PyObject *object, int depth, Py_ssize_t most);
PyObject *mp_py_is_of_atoms(PyObject *, PyObject *);
PyObject *mp_py_make_line(PyObject *, PyObject *);
PyObject *mp_py_open_line(PyObject *, PyObject *);
PyObject *mp_py_open_block(PyObject *, PyObject *);
PyObject *mp_py_wait_any(PyObject *, PyObject *);
PyObject *mp_py_is_small(PyObject *, PyObject *);

PyObject *mp_py_setup_locks(PyObject *, PyObject *);
PyObject *mp_py_create_sync(PyObject *, PyObject *);
PyObject *mp_py_sync_handle(PyObject *, PyObject *);
PyObject *mp_py_condition_notify(PyObject *, PyObject *const *, Py_ssize_t);

#endif
