/* Hooks around a fork: one table for all modules of Python (forks.py).
 *
 * Note [A signal during a fork]
 *   The interpreter looks for signals wherever Python code runs, so also in a hook that is written
 *   in Python; and it prints the exception of a hook and drops it. The exception of a signal
 *   handler would never reach the program, and the rest of the hook would not be done. So:
 *
 *     before   C calls each hook. If a handler has raised in one, the hook is called again: it must
 *              be one that may be called again, as `acquire` of a lock, which has not acquired it
 *              then. The exception is kept. Then all signals are blocked in this thread, and with
 *              that in the child
 *     parent   C gives back the locks: `release` is a function in C, so no handler runs. The mask
 *              is restored, and the exception is raised where the interpreter looks next: in the
 *              caller of fork
 *     child    C calls the hooks of the child, while signals are blocked, and then restores the
 *              mask. The child has one thread, so no signal can arrive elsewhere
 *
 * Note [A hook that comes during a fork]
 *   The interpreter looks each kind of hook up by itself. A module that registers its hooks while
 *   another thread forks, as modules that are imported late do, would have its lock released
 *   without having acquired it. Here the locks that are given back are those that were acquired for
 *   this fork, in reverse order. The hooks of the child are always called: they make things new.
 *
 * libshm has hooks of its own (libshm/src/session/fork.c), which run inside of these. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>

#include "system/system.h"

/* A hook that fails so often fails by itself, and not by a signal handler. */
enum { ATTEMPTS = 100 };

static PyObject *befores;   /* a list of (hook, its release or None) */
static PyObject *in_childs; /* a list of hooks */

/* A fork of this thread that is under way: a signal handler may fork during another one. */
struct under_way {
    struct under_way *outer;
    PyObject *releases; /* a list, or NULL without memory for it */
    sigset_t mask;
};

static _Thread_local struct under_way *innermost;
static PyObject *exception; /* of a handler, to be raised in the main thread */

static void keep_exception(void)
{
    PyObject *value = mp_raised();

    if (exception != NULL && exception != value && PyException_GetContext(value) == NULL)
        PyException_SetContext(value, Py_NewRef(exception)); /* as of an `except` */
    Py_XDECREF(exception);
    exception = value;
}

/* Call a hook until it has returned. */
static int call(PyObject *hook)
{
    for (int i = 0; i < ATTEMPTS; i++) {
        PyObject *result = PyObject_CallNoArgs(hook);
        if (result != NULL) {
            Py_DECREF(result);
            return 1;
        }
        if (i == ATTEMPTS - 1)
            break;
        keep_exception();
    }
    Py_CLEAR(exception);
    PyErr_WriteUnraisable(hook);
    return 0;
}

static PyObject *before(PyObject *module, PyObject *unused)
{
    struct under_way *now = PyMem_Malloc(sizeof(*now));
    sigset_t all;

    if (now == NULL)
        return PyErr_NoMemory();
    now->outer = innermost;
    now->releases = PyList_New(0);
    innermost = now;
    for (Py_ssize_t i = PyList_Size(befores); i-- > 0 && now->releases != NULL;) {
        /* Held: a hook may import a module that registers more. */
        PyObject *pair = Py_NewRef(PyList_GetItem(befores, i));
        PyObject *release = PyTuple_GetItem(pair, 1);
        if (call(PyTuple_GetItem(pair, 0)) && release != Py_None &&
            PyList_Append(now->releases, release) < 0)
            PyErr_WriteUnraisable(release);
        Py_DECREF(pair);
    }
    PyErr_Clear();
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    sigfillset(&all);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_BLOCK, &all, &now->mask);
    Py_RETURN_NONE;
}

static int raise_exception(void *unused)
{
    PyObject *value = exception;

    exception = NULL;
    if (value == NULL)
        return 0;
    PyErr_SetObject((PyObject *)Py_TYPE(value), value);
    Py_DECREF(value);
    return -1;
}

/* End the innermost fork; returns its list of releases. */
static PyObject *leave(sigset_t *mask)
{
    struct under_way *now = innermost;
    PyObject *releases = now->releases;

    *mask = now->mask;
    innermost = now->outer;
    PyMem_Free(now);
    return releases;
}

static PyObject *after_in_parent(PyObject *module, PyObject *unused)
{
    sigset_t mask;

    if (innermost == NULL) /* registered during this fork */
        Py_RETURN_NONE;
    PyObject *releases = leave(&mask);
    for (Py_ssize_t i = releases == NULL ? 0 : PyList_Size(releases); i-- > 0;) {
        PyObject *result = PyObject_CallNoArgs(PyList_GetItem(releases, i));
        if (result == NULL)
            PyErr_WriteUnraisable(PyList_GetItem(releases, i));
        Py_XDECREF(result);
    }
    Py_XDECREF(releases);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    /* An outer fork raises it after that. */
    if (exception != NULL && innermost == NULL)
        Py_AddPendingCall(raise_exception, NULL);
    Py_RETURN_NONE;
}

static PyObject *after_in_child(PyObject *module, PyObject *unused)
{
    sigset_t mask;

    for (Py_ssize_t i = 0; i < PyList_Size(in_childs); i++) {
        PyObject *hook = Py_NewRef(PyList_GetItem(in_childs, i));
        PyObject *result = PyObject_CallNoArgs(hook);
        if (result == NULL)
            PyErr_WriteUnraisable(hook);
        Py_XDECREF(result);
        Py_DECREF(hook);
    }
    Py_CLEAR(exception); /* the parent raises it */
    if (innermost != NULL) {
        Py_XDECREF(leave(&mask));
        pthread_sigmask(SIG_SETMASK, &mask, NULL);
    }
    Py_RETURN_NONE;
}

static PyMethodDef hooks[] = {
    {"before_fork", before, METH_NOARGS, NULL},
    {"after_fork_in_parent", after_in_parent, METH_NOARGS, NULL},
    {"after_fork_in_child", after_in_child, METH_NOARGS, NULL},
};

static int arm(void)
{
    static const char *const kinds[] = {"before", "after_in_parent", "after_in_child"};
    PyObject *os = PyImport_ImportModule("os"), *names = PyDict_New(), *none = PyTuple_New(0);
    PyObject *function = os == NULL ? NULL : PyObject_GetAttrString(os, "register_at_fork");
    PyObject *done = NULL;
    int ok = function != NULL && names != NULL && none != NULL;

    for (int i = 0; ok && i < 3; i++) {
        PyObject *hook = PyCFunction_New(&hooks[i], NULL);
        ok = hook != NULL && PyDict_SetItemString(names, kinds[i], hook) == 0;
        Py_XDECREF(hook);
    }
    if (ok && (befores = PyList_New(0)) != NULL && (in_childs = PyList_New(0)) != NULL)
        done = PyObject_Call(function, none, names);
    Py_XDECREF(os);
    Py_XDECREF(names);
    Py_XDECREF(none);
    Py_XDECREF(function);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* register_at_fork(before, release, after_in_child): add hooks, each a function or None. `release`
 * undoes `before`, and is a function in C. */
PyObject *mp_py_register_at_fork(PyObject *module, PyObject *args)
{
    PyObject *hook, *release, *in_child;

    if (!PyArg_ParseTuple(args, "OOO:register_at_fork", &hook, &release, &in_child) ||
        (befores == NULL && arm() < 0) ||
        (in_child != Py_None && PyList_Append(in_childs, in_child) < 0))
        return NULL;
    PyObject *pair = hook == Py_None ? NULL : PyTuple_Pack(2, hook, release);
    int rc = hook == Py_None ? 0 : pair == NULL ? -1 : PyList_Append(befores, pair);
    Py_XDECREF(pair);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}
