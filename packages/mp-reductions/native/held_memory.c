/* Held memory: an array's memory stays where it is while it is copied without the GIL.
 *
 * Note [Held memory]
 *   A copy of megabytes runs without the GIL, so another thread may resize the array meanwhile
 *   (`refcheck=False`), give it another state, or move it to shared memory. NumPy frees and moves
 *   an array's own memory through the array's memory handler (NEP 49), so the array gets another
 *   one for the time of the copy:
 *
 *       this thread                         another thread
 *       exchange the handler                   .
 *       without the GIL: copy               a.resize() -> our realloc: wait for the copy,
 *            .                                 .          with the GIL
 *       the copy has ended ---------------> the handler that was there before: realloc
 *       wait for the GIL                    the memory moves
 *       the former handler, unless the         .
 *       array has yet another one              .
 *
 *   The copy needs no GIL to end, so the wait is as long as a memcpy. Two threads may copy one
 *   array: the handlers lie over each other, and one whose copy has ended is passed over. A forked
 *   child has no thread that copies, so there a handler waits for nobody.
 *
 *   Memory that is not the array's own belongs to its base, which is held by a reference.
 *
 *   A view that Python code makes now and that is copied later, as of an array of a subclass, has a
 *   weak reference to the array instead (held_view): NumPy resizes no array that has one. */
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>

#include "native.h"

typedef struct {
    PyDataMem_Handler handler; /* what NumPy sees */
    PyObject *before;          /* the capsule of the array's handler */
    pthread_mutex_t copying;
    pid_t pid;
    int has_ended; /* read and written with the GIL */
} hold;

static const PyDataMemAllocator *below(hold *h)
{
    return &((PyDataMem_Handler *)PyCapsule_GetPointer(h->before, MP_HANDLER_CAPSULE))->allocator;
}

static const PyDataMemAllocator *below_after_copy(hold *h)
{
    if (h->pid == getpid()) {
        pthread_mutex_lock(&h->copying);
        pthread_mutex_unlock(&h->copying);
    }
    return below(h);
}

static void *held_malloc(void *ctx, size_t size)
{
    const PyDataMemAllocator *to = below(ctx);

    return to->malloc(to->ctx, size);
}

static void *held_calloc(void *ctx, size_t count, size_t size)
{
    const PyDataMemAllocator *to = below(ctx);

    return to->calloc(to->ctx, count, size);
}

static void *held_realloc(void *ctx, void *at, size_t size)
{
    const PyDataMemAllocator *to = below_after_copy(ctx);

    return to->realloc(to->ctx, at, size);
}

static void held_free(void *ctx, void *at, size_t size)
{
    const PyDataMemAllocator *to = below_after_copy(ctx);

    to->free(to->ctx, at, size);
}

static void forget(PyObject *capsule)
{
    hold *h = PyCapsule_GetPointer(capsule, MP_HANDLER_CAPSULE);

    Py_DECREF(h->before);
    pthread_mutex_destroy(&h->copying);
    PyMem_Free(h);
}

/* The handler under those whose copies have ended. Borrowed. */
static PyObject *without_ended(PyObject *capsule)
{
    for (;;) {
        PyDataMem_Handler *handler = PyCapsule_GetPointer(capsule, MP_HANDLER_CAPSULE);
        if (handler == NULL || handler->allocator.free != held_free ||
            !((hold *)handler)->has_ended)
            return capsule;
        capsule = ((hold *)handler)->before;
    }
}

/* A capsule with a new hold over the handler `before`; NULL without memory. */
static PyObject *make_hold(PyObject *before)
{
    hold *h = PyMem_Calloc(1, sizeof(*h));
    PyObject *capsule = h ? PyCapsule_New(h, MP_HANDLER_CAPSULE, NULL) : NULL;

    if (capsule == NULL || pthread_mutex_init(&h->copying, NULL) != 0) {
        Py_XDECREF(capsule);
        PyMem_Free(h);
        PyErr_Clear();
        return NULL;
    }
    h->handler =
        (PyDataMem_Handler){"mp_held", 1, {h, held_malloc, held_calloc, held_realloc, held_free}};
    h->before = Py_NewRef(before);
    h->pid = getpid();
    PyCapsule_SetDestructor(capsule, forget);
    return capsule;
}

/* The array whose own memory this is: the last one of the views. */
static PyArrayObject *owner_of(PyArrayObject *a)
{
    for (PyObject *base; (base = PyArray_BASE(a)) != NULL && PyArray_Check(base);)
        a = (PyArrayObject *)base;
    return a;
}

void mp_copy_held(PyArrayObject *a, size_t nbytes, void (*copy)(void *), void *what)
{
    PyArrayObject_fields *owner = (PyArrayObject_fields *)owner_of(a);
    int is_own = (owner->flags & NPY_ARRAY_OWNDATA) != 0;
    PyObject *before = is_own ? owner->mem_handler : NULL, *base = owner->base;
    PyObject *capsule = NULL;

    if (nbytes >= MP_RELEASE_GIL_BYTES && before != NULL)
        capsule = make_hold(without_ended(before));
    if (nbytes < MP_RELEASE_GIL_BYTES || (is_own && capsule == NULL)) {
        copy(what);
        return;
    }
    Py_INCREF((PyObject *)owner);
    Py_XINCREF(base);
    if (capsule == NULL) {
        Py_BEGIN_ALLOW_THREADS
        copy(what);
        Py_END_ALLOW_THREADS
    } else {
        hold *h = PyCapsule_GetPointer(capsule, MP_HANDLER_CAPSULE);
        owner->mem_handler = Py_NewRef(capsule);
        Py_DECREF(before);
        pthread_mutex_lock(&h->copying);
        Py_BEGIN_ALLOW_THREADS
        copy(what);
        pthread_mutex_unlock(&h->copying);
        Py_END_ALLOW_THREADS
        h->has_ended = 1;
        if (owner->mem_handler == capsule) {
            owner->mem_handler = Py_NewRef(without_ended(h->before));
            Py_DECREF(capsule);
        }
        Py_DECREF(capsule);
    }
    Py_XDECREF(base);
    Py_DECREF((PyObject *)owner);
}

/* ---- for Python: a view that is copied later ---- */

/* The base of a held view: (the array that owns the memory, a weak reference to it, the array). */
int mp_is_held_view(PyArrayObject *view)
{
    PyObject *base = PyArray_BASE(view);

    return base != NULL && PyTuple_CheckExact(base) && PyTuple_Size(base) == 3 &&
           PyArray_Check(PyTuple_GetItem(base, 0));
}

/* held_view(a) -> a plain view of the array, which NumPy does not resize as long as the view lives:
 * it resizes no array that has a weak reference, and the view has one. Pickle only reads the view,
 * so it is writable, as the fast path wants it, whether the array is or not. */
PyObject *mp_py_held_view(PyObject *module, PyObject *a)
{
    if (!PyArray_Check(a))
        return PyErr_Format(PyExc_TypeError, "held_view takes an array, not %R", Py_TYPE(a));
    PyArrayObject *of = (PyArrayObject *)a, *owner = owner_of(of);
    if (!PyArray_CHKFLAGS(owner, NPY_ARRAY_OWNDATA)) /* it is never resized */
        return PyArray_View(of, NULL, &PyArray_Type);
    PyObject *reference = PyWeakref_NewRef((PyObject *)owner, NULL);
    PyObject *held = reference == NULL ? NULL : Py_BuildValue("(ONO)", owner, reference, a);
    if (held == NULL)
        return NULL;
    /* The array is read here, at one moment. */
    PyObject *view = PyArray_NewFromDescr(
        &PyArray_Type, (PyArray_Descr *)Py_NewRef((PyObject *)PyArray_DESCR(of)), PyArray_NDIM(of),
        PyArray_DIMS(of), PyArray_STRIDES(of), PyArray_DATA(of), NPY_ARRAY_WRITEABLE, NULL);
    if (view == NULL)
        Py_DECREF(held);
    else if (PyArray_SetBaseObject((PyArrayObject *)view, held) < 0)
        Py_CLEAR(view);
    return view;
}
