/* The C functions that mp-core offers to other compiled packages, as one table in a capsule.
 *
 *   mp_core_api *api = PyCapsule_Import(MP_CORE_API, 0);
 *   if (api == NULL || api->version != MP_CORE_API_VERSION) ...
 *
 * Only mp-core links libshm, so a process has one copy of it. A package that uses the table
 * is compiled with this header and mpshm.h, and links nothing of mp-core. The distributions require
 * each other at one exact version; the version in the table detects two installations that are
 * mixed. Increase it with each change of this struct, of mp_buffer or of mpshm_block. */
#ifndef MP_CORE_H
#define MP_CORE_H
/* What the headers before CPython 3.13 define for PY_SSIZE_T_CLEAN. Later ones do not, and what they
 * call refuses "#" in a format under an older interpreter, where the same wheel has to run. */
#define PY_SSIZE_T_CLEAN
#define PyArg_ParseTuple _PyArg_ParseTuple_SizeT
#define PyArg_ParseTupleAndKeywords _PyArg_ParseTupleAndKeywords_SizeT
#define Py_BuildValue _Py_BuildValue_SizeT
#define PyObject_CallFunction _PyObject_CallFunction_SizeT
#define PyObject_CallMethod _PyObject_CallMethod_SizeT
#include <Python.h>
#include <string.h>

#include "mpshm.h"

/* The headers from CPython 3.12 on count no reference here, since these objects are immortal. They
 * are not in CPython 3.11, where the same wheel has to run. */
#undef Py_RETURN_NONE
#undef Py_RETURN_TRUE
#undef Py_RETURN_FALSE
#define Py_RETURN_NONE return Py_NewRef(Py_None)
#define Py_RETURN_TRUE return Py_NewRef(Py_True)
#define Py_RETURN_FALSE return Py_NewRef(Py_False)

#define MP_CORE_API "mp_core.sharing.backend.c_api"
enum { MP_CORE_API_VERSION = 16 };

/* From this size on, libshm may have to reserve or touch many pages: release the GIL meanwhile. */
enum { MP_RELEASE_GIL_BYTES = 1 << 20 };

/* The base of mp_core.Block: one reference of this process to a block. */
typedef struct {
    PyObject_HEAD
    mpshm_block block;
} mp_buffer;

/* ---- functions, types and exceptions of a module ---- */

/* An entry of a table of functions. */
#define MP_FUNCTION(name, flags, signature, text)                                                  \
    {#name, (PyCFunction)(void (*)(void))name, flags, #name signature "\n--\n\n" text}

/* Add a type with a dotted name: a new reference; NULL with an exception. */
static inline PyObject *mp_add_type(PyObject *module, const char *name, size_t nbytes,
                                    unsigned flags, PyType_Slot *slots)
{
    PyType_Spec spec = {name, (int)nbytes, 0, Py_TPFLAGS_DEFAULT | flags, slots};
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);

    if (type != NULL && PyModule_AddType(module, (PyTypeObject *)type) < 0)
        Py_CLEAR(type);
    return type;
}
enum { MP_ONLY_HERE = Py_TPFLAGS_DISALLOW_INSTANTIATION }; /* only C code makes them */

/* Make an object of a type, of zeros; and free one that is no longer tracked. */
static inline void *mp_new(void *type)
{
    return PyType_GenericAlloc(type, 0);
}

static inline void mp_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);

    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* An exception that is set aside meanwhile, or none. */
typedef struct {
    PyObject *type, *value, *traceback;
} mp_error;

static inline mp_error mp_set_aside(void)
{
    mp_error error;

    PyErr_Fetch(&error.type, &error.value, &error.traceback);
    return error;
}

static inline void mp_put_back(const mp_error *error)
{
    PyErr_Restore(error->type, error->value, error->traceback);
}

/* The exception that was raised: a new reference, with its traceback. */
static inline PyObject *mp_raised(void)
{
    mp_error error = mp_set_aside();

    PyErr_NormalizeException(&error.type, &error.value, &error.traceback);
    if (error.traceback != NULL)
        PyException_SetTraceback(error.value, error.traceback);
    Py_XDECREF(error.type);
    Py_XDECREF(error.traceback);
    return error.value;
}

/* ---- small messages, written and read without a pickler ---- */

enum { MP_FEW = 512 };

/* The bytes of a pickle that is being written: see writer_room. */
typedef struct {
    char *data; /* `few`, or `more` */
    size_t used, room;
    char *more;
    char few[MP_FEW];
} mp_writer;

/* The unread rest of a message, without its STOP. */
typedef struct {
    const unsigned char *at, *end;
    int received; /* set it before a handle is received, and with an exception of Python code that ran:
                   * no unpickler can try again */
    void *memo; /* of the pickle, see decode.c */
} mp_reader;

/* The pickle of a function by its module and name: two times SHORT_BINUNICODE, STACK_GLOBAL. */
typedef struct {
    char bytes[96];
    size_t nbytes, module_nbytes; /* the second is of the first text */
} mp_global;

static inline char *mp_put(char *at, const void *bytes, size_t nbytes)
{
    memcpy(at, bytes, nbytes);
    return at + nbytes;
}

/* An opcode, the length in one byte, the bytes. */
static inline char *mp_put_sized(char *at, char opcode, const void *bytes, size_t nbytes)
{
    *at++ = opcode;
    *at++ = (char)nbytes;
    return mp_put(at, bytes, nbytes);
}

static inline char *mp_put_little_endian(char *at, uint64_t value, int nbytes)
{
    for (int i = 0; i < nbytes; i++)
        *at++ = (char)(value >> 8 * i);
    return at;
}

enum { MP_NUMBER = 10 }; /* the most bytes of one */

/* BININT1, BININT2, BININT, or LONG1 of eight bytes. */
static inline char *mp_put_number(char *at, int64_t value)
{
    if (value < INT32_MIN || value > INT32_MAX) {
        *at++ = '\x8a';
        *at++ = 8;
        return mp_put_little_endian(at, (uint64_t)value, 8);
    }
    int nbytes = value < 0 || value > UINT16_MAX ? 4 : value > UINT8_MAX ? 2 : 1;

    *at++ = nbytes == 1 ? 'K' : nbytes == 2 ? 'M' : 'J';
    return mp_put_little_endian(at, (uint64_t)value, nbytes);
}

enum { MP_MEMO_GET = 5 }; /* the most bytes of one */

/* BINGET or LONG_BINGET of an object by its number in the memo. */
static inline char *mp_put_memo_get(char *at, uint32_t number)
{
    int width = number > UINT8_MAX ? 4 : 1;

    *at++ = width == 4 ? 'j' : 'h';
    return mp_put_little_endian(at, number, width);
}

/* The next bytes, which are then taken; or NULL. */
static inline const unsigned char *mp_take(mp_reader *from, size_t nbytes)
{
    const unsigned char *at = from->at;

    if ((size_t)(from->end - at) < nbytes)
        return NULL;
    from->at += nbytes;
    return at;
}

/* 1 if these bytes come next; otherwise 0, and nothing is taken. */
static inline int mp_take_these(mp_reader *from, const void *bytes, size_t nbytes)
{
    if ((size_t)(from->end - from->at) < nbytes || memcmp(from->at, bytes, nbytes) != 0)
        return 0;
    from->at += nbytes;
    return 1;
}

static inline uint64_t mp_little_endian(const unsigned char *at, int nbytes)
{
    uint64_t value = 0;

    for (int i = 0; i < nbytes; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

/* A number as it is written above: 1, or 0 if there is none, and nothing is taken. */
static inline int mp_take_number(mp_reader *from, int64_t *value)
{
    size_t left = (size_t)(from->end - from->at), head = 1;
    unsigned char opcode = left > 0 ? *from->at : 0;
    int nbytes = opcode == 'K' ? 1 : opcode == 'M' ? 2 : opcode == 'J' ? 4 : 0;

    if (opcode == 0x8a && left > 1 && from->at[1] == 8) {
        nbytes = 8;
        head = 2;
    }
    if (nbytes == 0 || left < head + (size_t)nbytes)
        return 0;
    uint64_t bits = mp_little_endian(from->at + head, nbytes);
    *value = nbytes == 4 ? (int32_t)bits : (int64_t)bits;
    from->at += head + (size_t)nbytes;
    return 1;
}

/* SHORT_BINBYTES and a handle: the handle; NULL if there is none. */
static inline const unsigned char *mp_take_handle(mp_reader *from)
{
    static const unsigned char opcode[2] = {'C', MPSHM_HANDLE_SIZE};
    return mp_take_these(from, opcode, sizeof(opcode)) ? mp_take(from, MPSHM_HANDLE_SIZE) : NULL;
}

/* ---- codecs: the types that other packages write and read in such messages ---- */

/* Where the memory of an object is: in a block, or in private memory if its `data` is NULL. The
 * place has a reference to the block, or to `keeper`, which has one. */
typedef struct {
    mpshm_block block;
    PyObject *keeper;
} mp_place;

/* Small enough to be copied once more: private memory of up to that many bytes may go into a pack.
 */
enum { MP_SMALL = 4096 };

typedef struct mp_codec mp_codec;

/* A block with the bytes of many small objects of a message, see packs.c. */
typedef struct mp_pack {
    struct mp_pack *before;
    size_t nbytes;
    size_t room;     /* that it has from the start, or 0 */
    uint32_t number; /* in the memo of the pickle */
    mpshm_block block;
} mp_pack;

/* What several objects of a pickle share, such as a table of what they need. The first of them
 * writes it, with MEMOIZE, and the others its number in the memo. A codec makes it in a survey,
 * with its two functions set and the rest zero, and mp-core has it from then on.
 *
 *   finish     the pickle is written, and is sent next: 0, or -1 with an exception
 *   drop       free it, after finish or without, and keep an exception that is set */
typedef struct mp_shared mp_shared;
struct mp_shared {
    int (*finish)(mp_shared *self);
    void (*drop)(mp_shared *self);
    mp_shared *before; /* in the same pickle */
    uint32_t number;   /* in the memo */
};

/* An object that a codec writes, as the survey of its message has found it. */
typedef struct {
    PyObject *object; /* held until the message is written or dropped */
    const mp_codec *codec;
    size_t at; /* where its pickle belongs in that of the message */

    /* Set by the codec. */
    size_t nbytes;      /* that will be copied */
    const void *memory; /* NULL, or memory of which no other object of the message may be made */
    mp_place place;     /* given back when the message is written or dropped */
    PyObject *held;     /* NULL, or an object that is held as long */
    mp_shared *shared;  /* NULL, or what the object shares: before, the last one of the pickle */

    mp_pack *pack;   /* for an object in a pack */
    uint32_t offset; /* in the pack */
    uint32_t number; /* of a view's block, in the memo of the pickle */

    /* For the codec: there are many such objects; the message may have views. */
    unsigned may_pack : 1, may_view : 1;
    /* Set by the codec: the message has room for its bytes, which were counted; they go into a
     * pack, see packs.c; it is a part of the block at its place, which several may have. */
    unsigned in_message : 1, in_pack : 1, is_view : 1;
    unsigned is_strided : 1; /* for the codec itself */
    unsigned is_first : 1;   /* of the block, or of those that share something */
    uint64_t own[2];         /* for the codec itself */
} mp_entry;

/* How the objects of one type are written and read.
 *
 *   survey    look at the object, and change nothing: of a message of which one object needs its
 *             reducer, none is written
 *   write     write the pickle of the object, which another thread may have changed meanwhile; its
 *             only memo is that of write_pack, and a handle stands in one piece after
 *             SHORT_BINBYTES and its length
 *   read      make the object
 *
 * survey and write return 1; 0 for an object that needs the reducer; or -1 with an exception. read
 * returns NULL, and has taken nothing, if the next bytes are no pickle of such an object; after it
 * has received a handle, only with an exception. All pickles of the type begin with `prefix`, of
 * which the first byte is SHORT_BINUNICODE. */
struct mp_codec {
    PyTypeObject *type; /* several codecs of a type are asked in turn */
    PyObject *reducer;  /* for which it stands; kept for the process's lifetime */
    const char *prefix;
    size_t prefix_nbytes;
    int (*survey)(mp_entry *entry);
    int (*write)(const mp_entry *entry, mp_writer *to);
    PyObject *(*read)(mp_reader *from);
    int is_out_of_band; /* in a message with a pickler all such objects are out of band, see
                         * object_table.c, and not only if there are many */
};

/* ---- the table ---- */

typedef struct {
    int version;

    /* Set from Python: the sharing strategy for new blocks, and the class mp_core.Block. */
    const int *strategy;
    PyObject *const *block_type;

    /* libshm: see mpshm.h. */
    int (*block_allocate)(int strategy, uint64_t nbytes, int flags, mpshm_block *out);
    void (*block_write)(const mpshm_block *block, const void *from, uint64_t nbytes);
    void (*block_release)(mpshm_block *block);
    int (*heap_allocate)(int strategy, uint64_t nbytes, int flags, void **out);
    int (*heap_free)(void *address);
    int (*heap_resize)(void *address, uint64_t nbytes, uint64_t *before);
    void (*set_fork_private)(int (*decide)(const void *data, uint64_t nbytes));

    /* Retain the block that contains `address`, of which this process has a reference already. 0,
     * or -ENOENT. Releases the GIL if it has to wait. */
    int (*block_find)(const void *address, mpshm_block *block);

    /* Retain the heap block that contains `address`. 0, or -ENOENT. Releases the GIL if it has to
     * wait. */
    int (*heap_block_at)(const void *address, mpshm_block *block);

    /* Make an object of `type` that takes over the reference; on failure the reference is released
     * and NULL returned. */
    PyObject *(*wrap)(PyObject *type, mpshm_block *block);

    /* Return 1 if the message that this thread is pickling goes by value, otherwise 0. */
    int (*goes_by_value)(void);

    /* Return 1 and count `nbytes` if that many more bytes may travel in the message that this
     * thread is pickling, of which `limit` bytes may; otherwise return 0. */
    int (*message_has_room)(size_t nbytes, size_t limit);

    /* Add an in-flight reference to the block, for the message that this thread is pickling, and
     * return its handle as bytes. `flags` is 0 or MPSHM_COPY. */
    PyObject *(*make_handle)(const mpshm_block *block, int flags);

    /* Count bytes copied from private into shared memory; returns the sum for this process. */
    unsigned long long (*count_copied)(unsigned long long nbytes);

    /* Receive the block of a handle, which the caller keeps: 0, or -errno. Then call refuse.
     * Releases the GIL if it has to wait. */
    int (*receive)(const char *handle, size_t nbytes, mpshm_block *block);

    /* Receive the block of a handle (bytes) as an mp_core.Block. NULL on failure: with an exception
     * set, or with -errno in `rc`. In the second case try read_copy, then call refuse. */
    PyObject *(*receive_block)(PyObject *handle, int *rc);

    /* Return the size of the copy that read_copy may take after receive_block failed with `rc`, or
     * -1 if the message was not sent with MPSHM_COPY. */
    Py_ssize_t (*size_of_copy)(PyObject *handle, int rc);

    /* Copy those bytes into private memory instead of sharing them: 0 when `data` has them;
     * otherwise nothing has changed. */
    int (*read_copy)(PyObject *handle, int rc, void *data, uint64_t nbytes);

    /* Raise the error that says why the block cannot be received; returns NULL. */
    PyObject *(*refuse)(PyObject *handle, int rc);

    /* Let a codec write and read the objects of exactly its type in small messages, as long as its
     * reducer is the one that ForkingPickler has for it. It is not asked to write into a message by
     * value. */
    void (*register_codec)(const mp_codec *codec);

    /* Let the objects of exactly that type be written as a call of it with what `args_of` returns:
     * a new tuple of one or two numbers, truth values or texts, or NULL, without an exception for
     * an object that needs a pickler. */
    void (*register_constructor)(PyTypeObject *type, PyObject *(*args_of)(PyObject *object));

    /* Return room for that many more bytes of the message, to be filled at once; NULL with an
     * exception without memory. */
    char *(*writer_room)(mp_writer *to, size_t nbytes);

    /* Allocate a pack, and write it as an argument of the function that makes the first object in
     * it; for all others there is mp_put_memo_get. 1; 0 without memory; -1 with an exception. */
    int (*write_pack)(mp_pack *pack, mp_writer *to);

    /* Read a pack: its bytes, as long as the message is read. NULL, perhaps with an exception, if
     * there is none. */
    const char *(*read_pack)(mp_reader *from, uint64_t *nbytes);

    /* The same for the block of a view, with a handle in flight: write_block for the first view of
     * it, and read_block for all, which returns an mp_core.Block, borrowed. */
    int (*write_block)(const mp_entry *entry, mp_writer *to);
    PyObject *(*read_block)(mp_reader *from);

    /* Give an object the next number in the memo of the pickle that is read, which takes it over:
     * the object, borrowed, or NULL with an exception, also for NULL. And read a number: the
     * object, borrowed, or NULL if there is none. */
    PyObject *(*memo_add)(mp_reader *from, PyObject *object);
    PyObject *(*memo_take)(mp_reader *from);

    /* A lease is a block whose first word names its owner. Write this process's name; 1 while the
     * owner lives, for which the GIL is released if it has to wait; and, if no other process has
     * the lease and no message, take the name out and return 1. */
    void (*lease_sign)(const mpshm_block *block);
    int (*lease_owner_lives)(const mpshm_block *block);
    int (*lease_end)(const mpshm_block *block);
    int (*block_others)(const mpshm_block *block);
    void (*block_revoke)(const mpshm_block *block);

    /* Give a place back, and set it to private memory. */
    void (*release_place)(mp_place *place);

    /* Make the pickle of a function. -1 with an exception. */
    int (*make_global)(mp_global *to, PyObject *function);

    /* The time if a timeline is recorded, otherwise 0; and, with the GIL, the end of a `copy` of
     * `nbytes` into shared memory, `from` private memory, that began then. */
    uint64_t (*copy_begins)(void);
    void (*copy_ends)(uint64_t began, const void *from, const void *copy, uint64_t nbytes);

    /* The same for a message with `nbytes` of device memory, which was written or read. */
    void (*device_memory)(uint64_t began, uint64_t nbytes, int is_sent);
} mp_core_api;

/* Copy the table, for a module of a distribution: -1 with an exception if mp-core has another
 * version of it. */
static inline int mp_copy_table(mp_core_api *to, const char *module, const char *distribution)
{
    const mp_core_api *api = PyCapsule_Import(MP_CORE_API, 0);

    if (api == NULL)
        return -1;
    if (api->version != MP_CORE_API_VERSION) {
        PyErr_Format(PyExc_ImportError,
                     "%s was compiled for version %d of mp_core's C functions and found "
                     "version %d: two installations are mixed; reinstall mp-core and %s",
                     module, (int)MP_CORE_API_VERSION, api->version, distribution);
        return -1;
    }
    *to = *api;
    return 0;
}

#endif
