/* The session of this process, for the modules of Python that a start imports. They call these, and
 * not cffi: its module and the types of the library take half a megabyte and a millisecond of each
 * child. The calls may wait for the process lock or for a file, so they leave the GIL. */
#include "system/system.h"

/* version() -> the version of the compiled library */
PyObject *mp_py_version(PyObject *module, PyObject *unused)
{
    return PyUnicode_FromString(mpshm_version());
}

/* set_manager(path of shm-manager as bytes) -> 0 or -errno */
PyObject *mp_py_set_manager(PyObject *module, PyObject *path)
{
    const char *text = PyBytes_AsString(path);

    return text == NULL ? NULL : PyLong_FromLong(mpshm_set_manager(text));
}

/* own_session() -> the id of this process's own session, after attaching to it. If that fails,
 * processes still start and send messages; sharing memory reports the error. */
PyObject *mp_py_own_session(PyObject *module, PyObject *unused)
{
    unsigned char id[MPSHM_ID_SIZE];

    Py_BEGIN_ALLOW_THREADS
    mpshm_attach();
    mpshm_own_session(id);
    Py_END_ALLOW_THREADS
    return PyBytes_FromStringAndSize((char *)id, sizeof(id));
}

/* The id in a bytes object; NULL with an exception if it has another size. */
static const unsigned char *id_in(PyObject *session)
{
    char *bytes;
    Py_ssize_t n;

    if (PyBytes_AsStringAndSize(session, &bytes, &n) < 0)
        return NULL;
    if (n != MPSHM_ID_SIZE)
        return PyErr_Format(PyExc_ValueError, "the id of a session has %d bytes, not %zd",
                            MPSHM_ID_SIZE, n),
               NULL;
    return (const unsigned char *)bytes;
}

/* attach_to(id): attach this child to its parent's session */
PyObject *mp_py_attach_to(PyObject *module, PyObject *session)
{
    const unsigned char *id = id_in(session);

    if (id == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    mpshm_set_own_session(id);
    mpshm_attach();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* attach_by_descriptors(id, control, manager): the same by the two descriptors of
 * open_descriptors_for_child(), -1 where one is unavailable; the library takes them over */
PyObject *mp_py_attach_by_descriptors(PyObject *module, PyObject *args)
{
    PyObject *session;
    int fds[2];

    if (!PyArg_ParseTuple(args, "Oii:attach_by_descriptors", &session, &fds[0], &fds[1]))
        return NULL;
    const unsigned char *id = id_in(session);
    if (id == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    mpshm_attach_by_descriptors(id, fds);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* open_descriptors_for_child() -> two descriptors for attach_by_descriptors(): the control file,
 * and a connection to the manager; -1 where one is unavailable */
PyObject *mp_py_open_descriptors_for_child(PyObject *module, PyObject *unused)
{
    int fds[2] = {-1, -1};

    Py_BEGIN_ALLOW_THREADS
    mpshm_open_descriptors_for_child(fds);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("ii", fds[0], fds[1]);
}

/* set_message_timeout(nanoseconds): messages of this process expire after that time; 0: never */
PyObject *mp_py_set_message_timeout(PyObject *module, PyObject *timeout)
{
    unsigned long long ns = PyLong_AsUnsignedLongLong(timeout);

    if (PyErr_Occurred())
        return NULL;
    mpshm_set_message_timeout(ns);
    Py_RETURN_NONE;
}

/* handle_alive(handle) -> whether its block lives, as far as is known without waiting */
PyObject *mp_py_handle_alive(PyObject *module, PyObject *handle)
{
    char *bytes;
    Py_ssize_t n;

    if (PyBytes_AsStringAndSize(handle, &bytes, &n) < 0)
        return NULL;
    return PyBool_FromLong(mpshm_handle_alive((unsigned char *)bytes, (size_t)n));
}
