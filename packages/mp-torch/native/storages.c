/* Storages of torch in blocks: moved there in place, and found by their address.
 *
 * Note [Moving a storage]
 *   torch's share_memory_ moves a storage in place, so that all tensors over it are shared
 *   afterwards, also views that were made before. So it is here: make a storage over a new block,
 *   copy the bytes, and let torch exchange the memory of the two (UntypedStorage._swap_data_ptr_,
 *   since torch 2.12). The storage then keeps the block alive and cannot be resized, as with torch.
 *   Memory that torch has shared itself, before the installation or from a process without it, has
 *   users elsewhere; it is not moved, and torch sends it.
 *
 *   Two threads that send one tensor would move it twice, and the first receiver would keep memory
 *   that nobody else has. So a thread looks at the address, copies and exchanges without giving up
 *   the GIL in between. A large copy does give it up, and would read memory that another thread has
 *   freed; so all large storages are moved under a lock. No Python code is executed under it. As
 *   with torch, no thread may write to a tensor, or resize it, while another one moves it: the
 *   write may be lost, or go to memory that has been freed.
 *
 *   If a process forks while a thread moves a storage, the child's copy of the storage is still
 *   private, and the child gets a new lock. If the process is killed there, the block is freed like
 *   all its blocks.
 *
 * Note [The memory before]
 *   `tensor.numpy()` and DLPack hand out the address of a tensor's memory, and a storage does not
 *   know who has it. They hold a tensor over the storage, or the tensor itself. So the memory of
 *   before a move is freed at once if nothing but the tensor and its storage's Python object refers
 *   to them; otherwise it stays as long as the storage. Such an array then shows the tensor as it
 *   was when it was moved.
 *
 * Note [One storage for one address]
 *   A storage that arrives twice, or comes back to the process that sent it, is one storage object
 *   for torch. `known` maps the address of a storage to torch's weak reference. A storage keeps its
 *   block, so the address of a live one cannot be reused.
 *
 *   A weak reference is a bare pointer. It may be freed as soon as it is not in `known`, so it is
 *   used at once after it was found there: torch's functions for it execute no Python code and keep
 *   the GIL. */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "native.h"

static struct {
    const dl_exchange *exchange;
    PyObject *storage_of;                          /* a method of tensors */
    PyObject *nbytes, *address, *swap, *is_shared; /* of storages */
    PyObject *weak_ref, *free_weak_ref, *expired, *from_weak_ref;
    PyObject *identity; /* the name of the attribute whose value a weak reference has */
    PyObject *users_of_storage, *users_of_tensor; /* functions that count them */
    PyObject *adopt; /* adopt(tensor, storage): make it a tensor over that storage */
} of;

/* 1 after setup_storages(), otherwise 0 with an exception. */
static int is_set_up(void)
{
    if (of.adopt == NULL)
        PyErr_SetString(PyExc_RuntimeError, "mp_torch needs torch 2.12 or newer");
    return of.adopt != NULL;
}

static PyObject *call(PyObject *function, PyObject *argument)
{
    return PyObject_CallFunctionObjArgs(function, argument, NULL);
}

PyObject *mp_storage_of(PyObject *tensor)
{
    return call(of.storage_of, tensor);
}

int mp_storage_has(PyObject *storage, int64_t nbytes)
{
    PyObject *size = call(of.nbytes, storage);
    int same = size != NULL && PyLong_AsLongLong(size) == nbytes;

    Py_XDECREF(size);
    return same;
}

/* 1 if it begins at the address; 0, perhaps with an exception. */
static int is_at(PyObject *storage, const void *address)
{
    PyObject *at = call(of.address, storage);
    int same = at != NULL && PyLong_AsVoidPtr(at) == address;

    Py_XDECREF(at);
    return same;
}

/* ---- one storage for one address ---- */

static PyObject *known; /* {address: weak reference} */
static Py_ssize_t limit = 128;

/* Take over the weak reference. */
static void drop(PyObject *reference)
{
    PyObject *done = call(of.free_weak_ref, reference);

    Py_XDECREF(done);
    Py_DECREF(reference);
}

static void forget_expired(void)
{
    PyObject *keys = PyDict_Keys(known);

    for (Py_ssize_t i = 0; keys != NULL && i < PyList_Size(keys); i++) {
        PyObject *key = PyList_GetItem(keys, i);
        PyObject *reference = PyDict_GetItemWithError(known, key);
        PyObject *gone = reference ? call(of.expired, Py_NewRef(reference)) : NULL;
        if (gone == Py_True && PyDict_DelItem(known, key) == 0)
            drop(Py_NewRef(reference));
        Py_XDECREF(reference);
        Py_XDECREF(gone);
    }
    Py_XDECREF(keys);
    limit = 2 * PyDict_Size(known) > 128 ? 2 * PyDict_Size(known) : 128;
}

static int is_known(PyObject *key, PyObject *storage)
{
    PyObject *reference = PyDict_GetItemWithError(known, key);
    void *found = reference ? PyLong_AsVoidPtr(reference) : NULL;
    PyObject *identity = found ? PyObject_GetAttr(storage, of.identity) : NULL;
    int same = identity != NULL && PyLong_AsVoidPtr(identity) == found;

    Py_XDECREF(identity);
    return same;
}

/* Let later messages find the storage at the address: 0, or -1 with an exception. */
static int remember(PyObject *storage, const void *address)
{
    PyObject *key = PyLong_FromVoidPtr((void *)address);

    if (key != NULL && !is_known(key, storage) && !PyErr_Occurred()) {
        PyObject *reference = call(of.weak_ref, storage);
        PyObject *before = reference ? Py_XNewRef(PyDict_GetItemWithError(known, key)) : NULL;
        if (reference != NULL && PyDict_SetItem(known, key, reference) == 0)
            Py_DECREF(reference);
        else if (reference != NULL)
            drop(reference);
        if (before != NULL && !PyErr_Occurred())
            drop(before);
        else
            Py_XDECREF(before);
        if (PyDict_Size(known) > limit)
            forget_expired();
    }
    Py_XDECREF(key);
    return PyErr_Occurred() ? -1 : 0;
}

/* The storage of these bytes, if one is known and alive; otherwise NULL, perhaps with an exception.
 */
static PyObject *find(const void *address, int64_t nbytes)
{
    PyObject *key = PyLong_FromVoidPtr((void *)address);
    PyObject *reference = key ? Py_XNewRef(PyDict_GetItemWithError(known, key)) : NULL;
    PyObject *storage = reference ? call(of.from_weak_ref, reference) : NULL;

    Py_XDECREF(reference);
    Py_XDECREF(key);
    if (storage == NULL ||
        (storage != Py_None && mp_storage_has(storage, nbytes) && is_at(storage, address)))
        return storage;
    Py_DECREF(storage);
    return NULL;
}

/* ---- moving ---- */

static pthread_mutex_t moving = PTHREAD_MUTEX_INITIALIZER;

static void renew_lock(void)
{
    moving = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

/* 1 when this thread has the lock. While the interpreter ends, no other thread gets the GIL any
 * more, and so none of them gives the lock back. */
static int lock(void)
{
    if (pthread_mutex_trylock(&moving) == 0)
        return 1;
    if (!Py_IsInitialized())
        return 0;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&moving);
    Py_END_ALLOW_THREADS
    return 1;
}

static long count(PyObject *function, PyObject *argument)
{
    PyObject *number = argument ? call(function, argument) : NULL;
    long n = number ? PyLong_AsLong(number) : -1;

    Py_XDECREF(number);
    return n;
}

/* 1 if somebody may have the address of the memory, see Note [The memory before]; -1 with an
 * exception. The tensor may be NULL: then it is unknown who has tensors over the storage. */
static int is_viewed(PyObject *storage, PyObject *tensor)
{
    enum { THE_TWO = 2 }; /* the tensor, and the Python object of its storage */
    PyObject *identity = PyObject_GetAttr(storage, of.identity);
    long users = count(of.users_of_storage, identity);

    Py_XDECREF(identity);
    if (users < 0)
        return -1;
    if (tensor == NULL || users > THE_TWO)
        return users >= THE_TWO;
    users = count(of.users_of_tensor, tensor);
    return users < 0 ? -1 : users > 1;
}

/* Copy the bytes of a storage to `to`, and exchange its memory with that of `other`, unless it has
 * moved meanwhile. 1 if they are exchanged, 0 if not, -1 with an exception. */
static int copy_and_exchange(PyObject *storage, const void *from, void *to, uint64_t nbytes,
                             PyObject *other)
{
    int is_large = nbytes >= MP_RELEASE_GIL_BYTES, locked = is_large && lock();
    PyObject *done = NULL;

    if (is_at(storage, from) && mp_storage_has(storage, (int64_t)nbytes)) {
        if (is_large) {
            Py_BEGIN_ALLOW_THREADS
            memcpy(to, from, nbytes);
            Py_END_ALLOW_THREADS
        } else {
            memcpy(to, from, nbytes);
        }
        /* Meanwhile another thread may have resized it; the caller finds no block and sends it the
         * other way. An exception would be made, and garbage collected, under the lock. */
        if (!is_large || (is_at(storage, from) && mp_storage_has(storage, (int64_t)nbytes)))
            done = PyObject_CallFunctionObjArgs(of.swap, storage, other, NULL);
    }
    if (locked)
        pthread_mutex_unlock(&moving);
    if (done != NULL)
        mp_core.count_copied(nbytes);
    Py_XDECREF(done);
    return PyErr_Occurred() ? -1 : done != NULL;
}

/* Allocate a block, and release the GIL if that takes time. 0 or -errno. */
static int allocate(uint64_t nbytes, mpshm_block *block)
{
    int strategy = *mp_core.strategy, rc = -EAGAIN;

    if (nbytes < MP_RELEASE_GIL_BYTES)
        rc = mp_core.block_allocate(strategy, nbytes, MPSHM_NOWAIT, block);
    if (rc == -EAGAIN) {
        Py_BEGIN_ALLOW_THREADS
        rc = mp_core.block_allocate(strategy, nbytes, 0, block);
        Py_END_ALLOW_THREADS
    }
    return rc;
}

enum { THEIRS = 1 };

/* Move a storage, that of the tensor if this is not NULL, from private memory into a block. 0, also
 * if another thread moved it meanwhile; THEIRS for memory that torch shares; -errno; or -1 with an
 * exception. */
static int move(PyObject *storage, PyObject *of_tensor, const void *from, int64_t nbytes)
{
    mpshm_block block;
    dl_memory *memory;
    PyObject *answer = call(of.is_shared, storage);
    int theirs = answer == NULL ? -1 : PyObject_IsTrue(answer);

    Py_XDECREF(answer);
    if (theirs != 0)
        return theirs < 0 ? -1 : THEIRS;
    int viewed = is_viewed(storage, of_tensor);
    if (viewed < 0)
        return -1;
    int rc = allocate((uint64_t)nbytes, &block);
    if (rc < 0)
        return rc;
    void *to = block.data;
    PyObject *tensor =
        mp_dl_tensor_over(of.exchange, &block, (dl_record){DL_UNSIGNED, 8, 1, 0}, &nbytes, &memory);
    PyObject *other = tensor ? mp_storage_of(tensor) : NULL;
    rc = other ? copy_and_exchange(storage, from, to, (uint64_t)nbytes, other) : -1;
    if (rc == 1 && viewed)
        mp_dl_keep(of.exchange, memory, tensor);
    Py_XDECREF(other); /* and with it the memory of before, unless it is kept */
    Py_XDECREF(tensor);
    return rc < 0 ? rc : 0;
}

/* Retain the block of which the tensor is all, and describe it: 1, or 0. `rc` is -ENOENT for one
 * in no block. */
static int block_of(PyObject *tensor, dl_shape *shape, mpshm_block *block, int *rc)
{
    dl_tensor t;

    *rc = -EINVAL;
    if (of.exchange->from_object(tensor, &t) < 0 || mp_dl_shape_of(&t, shape) < 0 ||
        (*rc = mp_core.block_find(shape->data, block)) < 0)
        return 0;
    if (block->data == shape->data && (int64_t)block->nbytes == shape->nbytes)
        return 1;
    mp_core.block_release(block);
    return 0;
}

int mp_block_of_tensor(PyObject *tensor, dl_shape *shape, mpshm_block *block)
{
    PyObject *storage = mp_storage_of(tensor);
    int rc = 0, found = storage ? block_of(tensor, shape, block, &rc) : 0;

    if (!found && rc == -ENOENT && move(storage, tensor, shape->data, shape->nbytes) == 0)
        found = block_of(tensor, shape, block, &rc);
    if (found && remember(storage, block->data) < 0) {
        mp_core.block_release(block);
        found = 0;
    }
    Py_XDECREF(storage);
    return PyErr_Occurred() ? -1 : found;
}

/* ---- arriving ---- */

/* Give a tensor the storage that is known for its memory, or let later messages find its own. */
static int has_arrived(PyObject *tensor, const void *address, int64_t nbytes)
{
    PyObject *storage = mp_storage_of(tensor), *other = storage ? find(address, nbytes) : NULL;

    if (other != NULL) {
        PyObject *done = PyObject_CallFunctionObjArgs(of.adopt, tensor, other, NULL);
        Py_XDECREF(done);
        Py_DECREF(other);
    } else if (!PyErr_Occurred()) {
        remember(storage, address);
    }
    Py_XDECREF(storage);
    return PyErr_Occurred() ? -1 : 0;
}

PyObject *mp_tensor_arrived(const char *handle, dl_record record, const int64_t *dims)
{
    mpshm_block block;

    if (!is_set_up())
        return NULL;
    int rc = mp_core.receive(handle, MPSHM_HANDLE_SIZE, &block);
    if (rc < 0) {
        PyObject *bytes = PyBytes_FromStringAndSize(handle, MPSHM_HANDLE_SIZE);
        PyObject *none = bytes ? mp_core.refuse(bytes, rc) : NULL;
        Py_XDECREF(bytes);
        return none;
    }
    const void *address = block.data;
    int64_t nbytes = (int64_t)block.nbytes;
    PyObject *tensor = mp_dl_tensor_over(of.exchange, &block, record, dims, NULL);
    if (tensor != NULL && has_arrived(tensor, address, nbytes) < 0)
        Py_CLEAR(tensor);
    return tensor;
}

/* ---- functions for Python ---- */

/* move_storage(storage, its tensor or None) -> 0, 1 or -errno, as move() */
PyObject *mp_py_move_storage(PyObject *module, PyObject *args)
{
    PyObject *storage, *tensor;

    if (!PyArg_UnpackTuple(args, "move_storage", 2, 2, &storage, &tensor))
        return NULL;
    PyObject *at = is_set_up() ? call(of.address, storage) : NULL;
    PyObject *size = at ? call(of.nbytes, storage) : NULL;
    const void *from = size ? PyLong_AsVoidPtr(at) : NULL;
    int64_t nbytes = size ? PyLong_AsLongLong(size) : 0;
    int rc = PyErr_Occurred() ? -1
             : nbytes == 0    ? THEIRS
                              : move(storage, tensor == Py_None ? NULL : tensor, from, nbytes);

    Py_XDECREF(at);
    Py_XDECREF(size);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(rc);
}

/* remember_storage(storage, address) */
PyObject *mp_py_remember_storage(PyObject *module, PyObject *args)
{
    PyObject *storage;
    unsigned long long address;

    if (!PyArg_ParseTuple(args, "OK:remember_storage", &storage, &address) || !is_set_up() ||
        remember(storage, (void *)(uintptr_t)address) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* find_storage(address, nbytes) -> the storage, or None */
PyObject *mp_py_find_storage(PyObject *module, PyObject *args)
{
    unsigned long long address;
    long long nbytes;

    if (!PyArg_ParseTuple(args, "KL:find_storage", &address, &nbytes) || !is_set_up())
        return NULL;
    PyObject *storage = find((void *)(uintptr_t)address, nbytes);
    return storage != NULL || PyErr_Occurred() ? storage : Py_NewRef(Py_None);
}

static int take_attribute(PyObject **to, PyObject *type, const char *name)
{
    PyObject *before = *to;

    *to = PyObject_GetAttrString(type, name);
    Py_XDECREF(before);
    return *to != NULL ? 0 : -1;
}

/* setup_storages(exchange, type of tensors, type of storages, is_shared, adopt, a function that
 * counts the users of a storage) */
PyObject *mp_py_setup_storages(PyObject *module, PyObject *args)
{
    PyObject *capsule, *tensor, *storage, *is_shared, *adopt, *users;

    if (!PyArg_ParseTuple(args, "OOOOOO:setup_storages", &capsule, &tensor, &storage, &is_shared,
                          &adopt, &users))
        return NULL;
    if (known == NULL) {
        known = PyDict_New();
        of.identity = PyUnicode_InternFromString("_cdata");
        pthread_atfork(NULL, NULL, renew_lock);
    }
    of.exchange = mp_dl_exchange(capsule);
    if (of.exchange == NULL || known == NULL || of.identity == NULL ||
        take_attribute(&of.storage_of, tensor, "untyped_storage") < 0 ||
        take_attribute(&of.users_of_tensor, tensor, "_use_count") < 0 ||
        take_attribute(&of.nbytes, storage, "nbytes") < 0 ||
        take_attribute(&of.address, storage, "data_ptr") < 0 ||
        take_attribute(&of.swap, storage, "_swap_data_ptr_") < 0 ||
        take_attribute(&of.weak_ref, storage, "_weak_ref") < 0 ||
        take_attribute(&of.free_weak_ref, storage, "_free_weak_ref") < 0 ||
        take_attribute(&of.expired, storage, "_expired") < 0 ||
        take_attribute(&of.from_weak_ref, storage, "_new_with_weak_ptr") < 0)
        return NULL;
    of.is_shared = Py_NewRef(is_shared); /* kept for the process's lifetime, as all */
    of.adopt = Py_NewRef(adopt);
    of.users_of_storage = Py_NewRef(users);
    Py_RETURN_NONE;
}
