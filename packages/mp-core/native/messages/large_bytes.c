/* Large bytes: bytes, bytearray and str of 64 KiB and more travel through a block.
 *
 *   sender:    the bytes --copy--> block, with an in-flight reference for one receiver (MPSHM_COPY)
 *   receiver:  block --copy--> an object with memory of its own, as each bytes, bytearray, str has
 *
 * In a small message (encode.c) their pickle is a call:
 *
 *     mp_core._block, rebuild_bytes or _bytearray or _str, STACK_GLOBAL | handle | TUPLE1 | REDUCE
 *
 * In all other messages the pickler writes them, and pickle_writer.c puts them into blocks.
 *
 * Note [Objects that another thread may resize]
 *   A standard queue pickles in its feeder thread, so the program may resize a bytearray meanwhile.
 *   A bytearray refuses that while its buffer is exported. Therefore the memory of an object that
 * may change is only read while this thread holds the GIL. If the allocation has to wait without
 * the GIL, the bytes are first copied into private memory. */
#include <errno.h>
#include <string.h>

#include "memory/memory.h"
#include "messages/messages.h"
#include "messages/objects.h"
#include "messages/plan.h"
#include "timeline/timeline.h"

static mp_global of_bytes, of_bytearray, of_str;

/* ---- sending ---- */

static int copy_without_gil(const void *data, size_t nbytes, mpshm_block *block)
{
    int strategy = mp_strategy, rc;

    Py_BEGIN_ALLOW_THREADS
    rc = mpshm_block_allocate(strategy, nbytes, 0, block);
    if (rc == 0)
        mpshm_block_write(block, data, nbytes);
    Py_END_ALLOW_THREADS
    return rc;
}

/* Return -EAGAIN if that would have to wait. */
static int copy_with_gil(const void *data, size_t nbytes, mpshm_block *block)
{
    int rc = mpshm_block_allocate(mp_strategy, nbytes, MPSHM_NOWAIT, block);

    if (rc == 0)
        mpshm_block_write(block, data, nbytes);
    return rc;
}

static int copy_by_way_of_private_memory(const void *data, size_t nbytes, mpshm_block *block)
{
    void *copy = PyMem_Malloc(nbytes);

    if (copy == NULL)
        return -ENOMEM;
    memcpy(copy, data, nbytes);
    int rc = copy_without_gil(copy, nbytes, block);
    PyMem_Free(copy);
    return rc;
}

PyObject *mp_copy_large(const void *data, size_t nbytes, int may_change, int *rc)
{
    mpshm_block block;
    uint64_t began = mp_timeline_begin();

    if (!may_change && nbytes >= MP_RELEASE_GIL_BYTES)
        *rc = copy_without_gil(data, nbytes, &block);
    else if ((*rc = copy_with_gil(data, nbytes, &block)) == -EAGAIN)
        *rc = may_change ? copy_by_way_of_private_memory(data, nbytes, &block)
                         : copy_without_gil(data, nbytes, &block);
    if (*rc < 0)
        return NULL;
    mp_count_copied(nbytes);
    mp_timeline_copied(began, data, block.data, nbytes);
    PyObject *handle = mp_make_handle(&block, MPSHM_COPY);
    mpshm_block_release(&block); /* the in-flight reference keeps it */
    return handle;
}

/* copy_large(object) -> the handle of a copy of its bytes, or -errno */
PyObject *mp_py_copy_large(PyObject *module, PyObject *object)
{
    Py_buffer view;
    int rc = 0;

    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    const void *data = view.buf;
    size_t nbytes = (size_t)view.len;
    PyBuffer_Release(&view); /* see the Note; the caller keeps the object */
    PyObject *handle = mp_copy_large(data, nbytes, 1, &rc);
    return handle == NULL && rc < 0 ? PyLong_FromLong(rc) : handle;
}

/* The bytes of an object that travels through a block; NULL, without an exception, for another. */
static const char *bytes_of(PyObject *object, Py_ssize_t *nbytes, int *may_change)
{
    *may_change = 0;
    if (PyBytes_CheckExact(object) && (*nbytes = PyBytes_Size(object)) >= MP_LARGE)
        return PyBytes_AsString(object);
    if (PyByteArray_CheckExact(object) && (*nbytes = PyByteArray_Size(object)) >= MP_LARGE) {
        *may_change = 1;
        return PyByteArray_AsString(object);
    }
    if (PyUnicode_CheckExact(object) && PyUnicode_GetLength(object) >= MP_LARGE) {
        const char *text = PyUnicode_AsUTF8AndSize(object, nbytes);
        if (text == NULL) /* half of a surrogate pair: the pickler has a way to write it */
            PyErr_Clear();
        return text;
    }
    return NULL;
}

int mp_is_large(PyObject *object)
{
    return (PyBytes_CheckExact(object) && PyBytes_Size(object) >= MP_LARGE) ||
           (PyUnicode_CheckExact(object) && PyUnicode_GetLength(object) >= MP_LARGE) ||
           (PyByteArray_CheckExact(object) && PyByteArray_Size(object) >= MP_LARGE);
}

static int survey_large(mp_entry *entry)
{
    Py_ssize_t nbytes;
    int may_change;

    if (bytes_of(entry->object, &nbytes, &may_change) == NULL)
        return 0;
    entry->nbytes = (size_t)nbytes;
    return 1;
}

static int write_large(const mp_entry *entry, mp_writer *to)
{
    PyObject *object = entry->object;
    Py_ssize_t nbytes;
    int may_change, rc;
    const char *data = bytes_of(object, &nbytes, &may_change);
    PyObject *handle = data ? mp_copy_large(data, (size_t)nbytes, may_change, &rc) : NULL;

    if (handle == NULL)
        return PyErr_Occurred() ? -1 : 0;
    const mp_global *of = PyBytes_CheckExact(object)     ? &of_bytes
                          : PyUnicode_CheckExact(object) ? &of_str
                                                         : &of_bytearray;
    char *at = mp_writer_room(to, of->nbytes + 2 + MPSHM_HANDLE_SIZE + 2);
    if (at != NULL) {
        at = mp_put(at, of->bytes, of->nbytes);
        at = mp_put_sized(at, 'C', PyBytes_AsString(handle), MPSHM_HANDLE_SIZE);
        mp_put(at, "\x85R", 2);
    }
    Py_DECREF(handle);
    return at == NULL ? -1 : 1;
}

const mp_codec mp_large_codec = {.survey = survey_large, .write = write_large};

/* ---- receiving ---- */

/* A function that makes an object of the bytes of a block. The copy of a bytes object that no other
 * code has seen may be written without the GIL; so may that of a bytearray. */
typedef PyObject *(*maker)(const char *data, Py_ssize_t nbytes);

static void copy_out(char *to, const char *data, size_t nbytes)
{
    if (nbytes < MP_RELEASE_GIL_BYTES) {
        memcpy(to, data, nbytes);
    } else {
        Py_BEGIN_ALLOW_THREADS
        memcpy(to, data, nbytes);
        Py_END_ALLOW_THREADS
    }
}

static PyObject *make_bytes(const char *data, Py_ssize_t nbytes)
{
    PyObject *made = PyBytes_FromStringAndSize(NULL, nbytes);

    if (made != NULL)
        copy_out(PyBytes_AsString(made), data, (size_t)nbytes);
    return made;
}

static PyObject *make_bytearray(const char *data, Py_ssize_t nbytes)
{
    PyObject *made = PyByteArray_FromStringAndSize(NULL, nbytes);

    if (made != NULL)
        copy_out(PyByteArray_AsString(made), data, (size_t)nbytes);
    return made;
}

static PyObject *make_str(const char *data, Py_ssize_t nbytes)
{
    return PyUnicode_DecodeUTF8(data, nbytes, NULL);
}

/* The block cannot be shared: take its bytes without it. */
static PyObject *from_copy(PyObject *handle, int rc, maker make)
{
    Py_ssize_t nbytes = mp_size_of_copy(handle, rc);
    PyObject *copy = nbytes < 0 ? NULL : PyBytes_FromStringAndSize(NULL, nbytes), *made = NULL;

    if (copy == NULL || mp_read_copy(handle, rc, PyBytes_AsString(copy), (uint64_t)nbytes) < 0)
        mp_refuse(handle, rc);
    else
        made = make == make_bytes ? Py_NewRef(copy) : make(PyBytes_AsString(copy), nbytes);
    Py_XDECREF(copy);
    return made;
}

static PyObject *rebuild(PyObject *handle, maker make)
{
    char *bytes;
    Py_ssize_t len;
    mpshm_block block;

    if (PyBytes_AsStringAndSize(handle, &bytes, &len) < 0)
        return NULL;
    int rc = mp_receive(bytes, (size_t)len, &block);
    if (rc < 0)
        return from_copy(handle, rc, make);
    uint64_t began = mp_timeline_begin();
    PyObject *made = make(block.data, (Py_ssize_t)block.nbytes);
    mp_timeline_span(began, MP_LEAST_NS, MP_COPY, 0, block.nbytes, 0);
    if (made != NULL)
        mp_count_copied(block.nbytes);
    mpshm_block_release(&block);
    return made;
}

PyObject *mp_py_rebuild_bytes(PyObject *module, PyObject *handle)
{
    return rebuild(handle, make_bytes);
}

PyObject *mp_py_rebuild_bytearray(PyObject *module, PyObject *handle)
{
    return rebuild(handle, make_bytearray);
}

PyObject *mp_py_rebuild_str(PyObject *module, PyObject *handle)
{
    return rebuild(handle, make_str);
}

static PyObject *read_as(mp_reader *from, const mp_global *of, maker make)
{
    mp_reader start = *from;

    if (of->nbytes == 0 || !mp_take_these(from, of->bytes, of->nbytes))
        return NULL;
    const unsigned char *handle = mp_take_handle(from);
    if (handle == NULL || !mp_take_these(from, "\x85R", 2)) {
        *from = start;
        return NULL;
    }
    from->received = 1;
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)handle, MPSHM_HANDLE_SIZE);
    PyObject *made = bytes ? rebuild(bytes, make) : NULL;
    Py_XDECREF(bytes);
    return made;
}

PyObject *mp_read_large(mp_reader *from)
{
    PyObject *made = read_as(from, &of_bytes, make_bytes);

    if (made == NULL && !PyErr_Occurred())
        made = read_as(from, &of_str, make_str);
    if (made == NULL && !PyErr_Occurred())
        made = read_as(from, &of_bytearray, make_bytearray);
    return made;
}

int mp_setup_large_bytes(PyObject *module)
{
    return mp_find_global(&of_bytes, module, "rebuild_bytes") < 0 ||
                   mp_find_global(&of_bytearray, module, "rebuild_bytearray") < 0 ||
                   mp_find_global(&of_str, module, "rebuild_str") < 0
               ? -1
               : 0;
}
