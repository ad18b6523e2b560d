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

/* core.c: mp-core's table, copied when the module is imported: a call through it is one indirect
 * call. */
extern mp_core_api mp_core;
int mp_load_core(void);

/* Raise the error of a message: NULL. */
#define MP_DAMAGED(...)                                                                            \
    PyErr_Format(PyExc_ValueError, "the message of an array is damaged: " __VA_ARGS__)

/* ---- dtypes.c ---- */

enum { MP_DTYPE_NAME = 24 }; /* the most bytes of a name */

/* A dtype and its name in messages, for the process's lifetime. */
typedef struct {
    PyObject *descr, *name;
    const char *text; /* of the name */
    size_t length, itemsize;
} mp_dtype;

enum { MP_DTYPE_CHARS = 128 };
extern mp_dtype mp_dtype_of_char[MP_DTYPE_CHARS];
const mp_dtype *mp_other_dtype(const PyArrayObject *a);
const mp_dtype *mp_dtype_of_text(const char *text, size_t length);

/* Return the dtype of an array, NULL for one without a name, perhaps with an exception. Calls
 * Python code for a dtype that it sees for the first time. */
static inline const mp_dtype *mp_dtype_of(const PyArrayObject *a)
{
    const PyArray_Descr *descr = PyArray_DESCR((PyArrayObject *)a);
    unsigned char c = (unsigned char)descr->type;

    if (c < MP_DTYPE_CHARS && mp_dtype_of_char[c].descr == (const PyObject *)descr)
        return &mp_dtype_of_char[c];
    return mp_other_dtype(a);
}

/* Return the dtype of a name; NULL, perhaps with an exception, if no dtype has it. */
static inline const mp_dtype *mp_dtype_named(const char *text, size_t length)
{
    unsigned char c = length == 1 ? (unsigned char)*text : MP_DTYPE_CHARS;

    if (length != 1)
        return mp_dtype_of_text(text, length);
    return c < MP_DTYPE_CHARS && mp_dtype_of_char[c].descr != NULL ? &mp_dtype_of_char[c] : NULL;
}

/* Set {character: dtype}, name_of and from_name of array.py. -1 with an exception. */
int mp_setup_dtypes(PyObject *dtypes, PyObject *names, PyObject *reads);

/* The name that NumPy expects of the capsule of a memory handler. */
#define MP_HANDLER_CAPSULE "mem_handler"

/* ---- fast_path.c ---- */

/* Return a tuple of numbers. */
PyObject *mp_tuple_of(const npy_intp *numbers, int n);

/* Initialise it, given the module. -1 with an exception on failure. */
int mp_init_fast_path(PyObject *module);
/* The same with ({char: dtype}, name_of, from_name, reduce_ndarray, on_large_copy, large_nbytes),
 * which are kept for the process's lifetime. */
int mp_setup_fast_path(PyObject *args);

/* The array that a message describes. */
typedef struct {
    const mp_dtype *dtype;
    Py_ssize_t nbytes;
    int nd;
    npy_intp dims[NPY_MAXDIMS];
} mp_layout;

/* Return the number of bytes of the array, and its dtype; or -1, perhaps with an exception, if it
 * cannot take the fast path. */
Py_ssize_t mp_fast_nbytes(PyObject *array, const mp_dtype **dtype);

/* Find the memory of an array: 1 for the block that it is in, and for private memory; 0 for memory
 * of an unknown object, and for a block of Python objects. */
int mp_memory_of(PyArrayObject *array, mp_place *place);

/* Find where the bytes of an array are that can take the fast path: 1 for a place that
 * mp_core.release_place gives back, and for private memory; 0 for the slow path: a part of a block,
 * or memory of an unknown object. The keeper of a place is the Block that is the base of the array.
 */
int mp_place_of(PyObject *array, Py_ssize_t nbytes, mp_place *place);

/* Copy the array's bytes into a new block and return a handle of it. On failure, and if another
 * thread changes the array, returns NULL, without an exception if the slow path may try. */
PyObject *mp_copy_to_block(PyObject *array, size_t nbytes, const mp_dtype *dtype);

/* Fill in the layout of a dtype, which may be NULL, and a shape. -1 if they describe no array. */
int mp_layout_of(const mp_dtype *dtype, int nd, const int64_t *dims, mp_layout *out);

/* Make an array over `data`, or with private memory if that is NULL. */
PyObject *mp_array_over(const mp_layout *layout, void *data);

/* Make an array with private memory, a copy of the bytes. */
PyObject *mp_array_of(const mp_layout *layout, const void *bytes);

/* The same of bytes in a pack; `offset` may be damaged. NULL with an exception. */
PyObject *mp_array_of_pack(const mp_layout *layout, const char *pack, uint64_t nbytes,
                           uint64_t offset);

/* Receive the block of a handle (bytes) and make an array over it, or over a private copy. */
PyObject *mp_receive_array(PyObject *handle, const mp_layout *layout);

/* Make an array over the whole of a Block; takes over the reference to `memory`. */
PyObject *mp_array_over_block(PyObject *memory, const mp_layout *layout);

/* Check a dtype's name and a shape. -1 with an exception if they describe no array. */
int mp_check_layout(PyObject *name, PyObject *shape, mp_layout *out);

/* ---- views.c ---- */

/* Find where an array of whatever layout is: 1 for a part of a block, and for private memory; 0 for
 * the slow path; -1 with an exception. */
int mp_view_of(PyObject *array, const mp_dtype **dtype, mp_place *place);

/* Make an array over a part of a Block. NULL with an exception if it leads out of the block. */
PyObject *mp_array_over_part(PyObject *memory, const mp_layout *layout, int64_t offset,
                             const npy_intp *strides, int writeable);

enum { MP_DIMS = 64 }; /* NumPy 2 has more dimensions than its headers for 1.25 say */

/* The bytes of a private array without those in its gaps, and the layout of the array in them. */
typedef struct {
    const char *from; /* the first of them, in the array's memory */
    size_t nbytes, itemsize;
    int64_t offset; /* of the first element */
    npy_intp strides[MP_DIMS];
    int has_gaps, count; /* of an array with gaps: the axes to walk, the longest stride first */
    npy_intp lengths[MP_DIMS], steps[MP_DIMS];
} mp_own_bytes;

/* 1, or 0 for an array without elements. Copying them does not look at the array again. */
int mp_own_bytes_of(PyArrayObject *a, size_t itemsize, mp_own_bytes *own);
void mp_copy_own_bytes(const mp_own_bytes *own, char *to);
/* Make a private array of a copy. NULL with an exception if it leads out of the bytes. */
PyObject *mp_array_of_own_bytes(const char *bytes, size_t nbytes, const mp_layout *layout,
                                int64_t offset, const npy_intp *strides, int writeable);

/* held_memory.c: call `copy`, which reads `nbytes` bytes of the array; without the GIL if they are
 * many and the array's memory can be held in its place. */
void mp_copy_held(PyArrayObject *array, size_t nbytes, void (*copy)(void *), void *what);
/* 1 for a view that held_view() has made of an array with memory of its own. */
int mp_is_held_view(PyArrayObject *view);

/* inline_limit.c: the bytes that a message may carry itself. */
size_t mp_inline_limit(void);

/* array_codec.c: initialise it, given the module. -1 with an exception on failure. */
int mp_init_array_codec(PyObject *module);
/* Let mp_core write arrays in small messages, as long as they have this reducer. */
void mp_register_array_codec(PyObject *reducer);

/* scalars.c */

void mp_register_scalars(void);

/* fork_private.c: return 1 if a heap block contains pointers to Python objects, so that a forked
 * child needs a private copy of it. */
int mp_holds_objects(const void *data, uint64_t nbytes);

/* The methods of the module, each in the file named above it. */

/* inline_limit.c */
PyObject *mp_py_set_inline_limit(PyObject *, PyObject *);
PyObject *mp_py_get_inline_limit(PyObject *, PyObject *);
PyObject *mp_py_has_room(PyObject *, PyObject *);

/* fast_path.c */
PyObject *mp_py_reduce_array(PyObject *, PyObject *);
PyObject *mp_py_rebuild_from_bytes(PyObject *, PyObject *);
PyObject *mp_py_rebuild_from_block(PyObject *, PyObject *);
PyObject *mp_py_rebuild_from_pack(PyObject *, PyObject *);

/* views.c */
PyObject *mp_py_rebuild_view(PyObject *, PyObject *);
PyObject *mp_py_rebuild_strided(PyObject *, PyObject *);
PyObject *mp_py_own_nbytes(PyObject *, PyObject *);
PyObject *mp_py_copy_own_bytes(PyObject *, PyObject *);

/* allocator.c */
PyObject *mp_py_get_handler(PyObject *, PyObject *);
PyObject *mp_py_set_handler(PyObject *, PyObject *);
PyObject *mp_py_shared_handler(PyObject *, PyObject *);
PyObject *mp_py_replace_default_handler(PyObject *, PyObject *);
PyObject *mp_py_block_at(PyObject *, PyObject *);

/* held_memory.c */
PyObject *mp_py_held_view(PyObject *, PyObject *);

/* swap_memory.c */
PyObject *mp_py_swap_memory(PyObject *, PyObject *);

#endif
