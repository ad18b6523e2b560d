/* Messages, written and read with and without a pickler. */
#ifndef MP_MESSAGES_H
#define MP_MESSAGES_H
#include "memory/memory.h"

/* ---- pickling.c ---- */

/* Return an attribute of a module, for the lifetime of the process; NULL with an exception. */
PyObject *mp_imported(const char *module_name, const char *name);
/* Make the text, once: 0, or -1 with an exception. */
int mp_intern(PyObject **name, const char *text);
/* ForkingPickler and pickle.loads, and the names of the functions of the first. There after a call
 * of the last, which returns 0, or -1 with an exception. */
extern PyObject *mp_forking_pickler, *mp_plain_loads, *mp_dumps_name, *mp_loads_name;
int mp_set_up_pickling(void);

/* ---- codecs.c ---- */

void mp_register_codec(const mp_codec *codec);
/* Return the codec for the type of the object, or NULL; and the next one for the same type. */
const mp_codec *mp_codec_of(PyObject *object);
const mp_codec *mp_codec_after(const mp_codec *codec);
/* Return the function that makes an atom of the object, of which its type makes the object; or
 * NULL. */
PyObject *(*mp_constructor_of(PyObject *object))(PyObject *);
void mp_register_constructor(PyTypeObject *type, PyObject *(*args_of)(PyObject *object));
/* Return the reducer that ForkingPickler has for the type, or else copyreg: borrowed, or NULL,
 * perhaps with an exception. */
PyObject *mp_reducer_of(PyTypeObject *type);
/* Return 1 if ForkingPickler has the reducer for which the codec stands, otherwise 0. */
int mp_codec_is_current(const mp_codec *codec);
/* Let each codec's objects be reduced by another function in a table {type: reducer}, where its
 * reducer is the one for which the codec stands. 0, or -1 with an exception. */
int mp_replace_reducers(PyObject *reducers, PyObject *function);
/* Read an object that a codec has written: NULL, perhaps with an exception, if there is none. */
PyObject *mp_read_by_codec(mp_reader *from);

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

/* ---- object_table.c ---- */

/* Add the type ObjectTable to the module. */
int mp_add_object_table(PyObject *module);

/* ---- reducer_table.c ---- */

/* Add the type ReducerTable to the module. */
int mp_add_reducer_table(PyObject *module);
/* Return what reducers.py knows of a class without a reducer; NULL, perhaps with an exception, for
 * another one. */
PyObject *mp_without_reducer(PyObject *kind);

/* ---- pickle_writer.c, pickle_reader.c ---- */

/* Add the types PickleWriter and PickleReader to the module. */
int mp_add_pickle_writer(PyObject *module);
int mp_add_pickle_reader(PyObject *module);

/* ---- functions of the module _block ---- */

/* atoms.c */
PyObject *mp_py_is_of_atoms(PyObject *, PyObject *);
PyObject *mp_py_is_small(PyObject *, PyObject *);
/* encode.c */
PyObject *mp_py_plain_pickle(PyObject *, PyObject *);
PyObject *mp_py_plain_data(PyObject *, PyObject *);
PyObject *mp_py_only_atoms(PyObject *, PyObject *);
/* decode.c */
PyObject *mp_py_loads(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);
PyObject *mp_py_plain_loads(PyObject *, PyObject *);
/* large_bytes.c */
PyObject *mp_py_copy_large(PyObject *, PyObject *);
PyObject *mp_py_rebuild_bytes(PyObject *, PyObject *);
PyObject *mp_py_rebuild_bytearray(PyObject *, PyObject *);
PyObject *mp_py_rebuild_str(PyObject *, PyObject *);
/* look.c */
PyObject *mp_py_dict_of(PyObject *, PyObject *);
PyObject *mp_py_look(PyObject *, PyObject *);
PyObject *mp_py_see(PyObject *, PyObject *);
/* object_table.c */
PyObject *mp_py_out_of_band(PyObject *, PyObject *);
PyObject *mp_py_load_out_of_band(PyObject *, PyObject *);
/* reducer_table.c */
PyObject *mp_py_setup_reducer_table(PyObject *, PyObject *);
/* arrow_pack.c */
PyObject *mp_py_pack_arrow(PyObject *, PyObject *);
/* arrow_unpack.c */
PyObject *mp_py_unpack_arrow(PyObject *, PyObject *);

#endif
