/* Shared by the C files of the module mp_reductions._native. */
#ifndef MP_REDUCTIONS_NATIVE_H
#define MP_REDUCTIONS_NATIVE_H
#include "mp_core.h"

/* module.c loads NumPy's C API for all files. */
#define PY_ARRAY_UNIQUE_SYMBOL mp_reductions_numpy_api
#ifndef MP_LOADS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

/* mp-core's table, copied when the module is imported: a call through it is one indirect call. */
extern mp_core_api mp_core;

/* Initialise the fast path, given the module. -1 with an exception on failure. */
int mp_init_fast_path(PyObject *module);

/* ---- fast_path.c ---- */

/* The array that a message describes. */
typedef struct {
    PyObject *dtype;
    Py_ssize_t nbytes;
    int nd;
    npy_intp dims[NPY_MAXDIMS];
} mp_layout;

/* Return the number of bytes of the array, or -1 if it cannot take the fast path. */
Py_ssize_t mp_fast_nbytes(PyObject *array);

/* Copy the array's bytes into a new block and return a handle of it. On failure returns NULL,
 * without an exception if the slow path may try. */
PyObject *mp_copy_to_block(PyObject *array, size_t nbytes);

/* Fill in the layout of a dtype's character and a shape. -1 if they describe no array. */
int mp_layout_of(unsigned char ch, int nd, const int64_t *dims, mp_layout *out);

/* Make an array over `data`, or with private memory if that is NULL. */
PyObject *mp_array_over(const mp_layout *layout, void *data);

/* Make an array over the whole of a Block; takes over the reference to `memory`. */
PyObject *mp_array_over_block(PyObject *memory, const mp_layout *layout);

size_t mp_inline_limit(void);

/* table.c: add the type Table to the module. -1 with an exception on failure. */
int mp_add_table_type(PyObject *module);
/* fast_path.c: the bytes of an array that a message may carry itself; -1 for another one. */
Py_ssize_t mp_inline_nbytes(PyObject *array);

/* whole_message.c: given rebuild_from_bytes. -1 with an exception on failure. */
int mp_init_whole_message(PyObject *rebuild);
/* Return the message of such an array, or NULL without an exception for another one. */
PyObject *mp_pickle_whole(PyObject *array);
/* Return the array of such a message, or NULL without an exception for another one. */
PyObject *mp_unpickle_whole(const char *data, Py_ssize_t nbytes);

/* fork_private.c: return 1 if a heap block contains pointers to Python objects, so that a forked
 * child needs a private copy of it. */
int mp_holds_objects(const void *data, uint64_t nbytes);

/* The methods of the module, each in the file named above it. */

/* fast_path.c */
PyObject *mp_py_setup(PyObject *, PyObject *);
PyObject *mp_py_set_inline_limit(PyObject *, PyObject *);
PyObject *mp_py_get_inline_limit(PyObject *, PyObject *);
PyObject *mp_py_has_room(PyObject *, PyObject *);
PyObject *mp_py_reduce_array(PyObject *, PyObject *);
PyObject *mp_py_rebuild_from_bytes(PyObject *, PyObject *);
PyObject *mp_py_rebuild_from_block(PyObject *, PyObject *);

/* read_table.c, table.c */
PyObject *mp_py_rebuild_table(PyObject *, PyObject *);
PyObject *mp_py_setup_table(PyObject *, PyObject *);

/* allocator.c */
PyObject *mp_py_get_handler(PyObject *, PyObject *);
PyObject *mp_py_set_handler(PyObject *, PyObject *);
PyObject *mp_py_shared_handler(PyObject *, PyObject *);
PyObject *mp_py_replace_default_handler(PyObject *, PyObject *);
PyObject *mp_py_block_at(PyObject *, PyObject *);

/* swap_memory.c */
PyObject *mp_py_swap_memory(PyObject *, PyObject *);

#endif
