/* The object under mp_core's locks and semaphores: see lock.c. */
#ifndef MP_LOCK_H
#define MP_LOCK_H
#include "memory/memory.h"

enum { RECURSIVE = 0, PLAIN = 1 }; /* the numbers of _multiprocessing */

/* The process in which a lock was used last. */
typedef struct {
    unsigned forks;       /* how many lie between it and the first process, */
    unsigned starts;      /* and how many of those were starts by multiprocessing */
    unsigned long thread; /* the one that has forked it */
} mp_lock_origin;

typedef struct {
    PyObject_HEAD
    PyObject *owner; /* the Block, which keeps `block` */
    const mpshm_block *block;
    int kind, is_semaphore;
    long maxvalue;
    long count;
    unsigned long thread;
    int is_borrowed; /* the parent of this process has it */
    mp_lock_origin origin;
} mp_lock;

extern PyObject *mp_lock_type;      /* the class SemLock */
extern mp_lock_origin mp_lock_here; /* of this process */
extern PyObject *mp_on_owner_died;  /* called with 1 for a semaphore: it warns */

/* 1 when the calling thread has it. */
int mp_lock_is_mine(mp_lock *self);
/* In a child of a fork: what the parent has acquired is not the child's. */
void mp_lock_forget_parent(mp_lock *self);

PyObject *mp_lock_acquire(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);
PyObject *mp_lock_release(PyObject *, PyObject *);
PyObject *mp_lock_take_back(PyObject *, PyObject *count);
PyObject *mp_lock_enter(PyObject *, PyObject *);
PyObject *mp_lock_exit(PyObject *, PyObject *const *, Py_ssize_t);

/* ---- lock_type.c, try_lock.c ---- */

/* Add the type SemLock to the module. */
int mp_add_lock_type(PyObject *module);
/* Add the type TryLock to the module. */
int mp_add_try_lock_type(PyObject *module);

/* ---- functions of the module _block ---- */

/* lock_type.c */
PyObject *mp_py_setup_locks(PyObject *, PyObject *);
PyObject *mp_py_create_sync(PyObject *, PyObject *);
PyObject *mp_py_sync_handle(PyObject *, PyObject *);
/* condition.c */
PyObject *mp_py_condition_notify(PyObject *, PyObject *const *, Py_ssize_t);

#endif
