/* Rebuild the arrays of a table from its bytes (table.h). */
#include <string.h>

#include "table.h"

typedef struct {
    const unsigned char *at, *end;
    mp_layout layout;
    int64_t dims[NPY_MAXDIMS];
    int nd;            /* of the last array, -1 before the first */
    PyObject *pack;    /* the Block of the pack, or a bytearray with its bytes */
    const char *bytes; /* in the pack: of the next array, and the end */
    const char *bytes_end;
} reader;

static int take(reader *from, void *to, size_t nbytes)
{
    if ((size_t)(from->end - from->at) < nbytes)
        return -1;
    memcpy(to, from->at, nbytes);
    from->at += nbytes;
    return 0;
}

static PyObject *take_handle(reader *from)
{
    unsigned char before[2], handle[MPSHM_HANDLE_SIZE];

    if (take(from, before, sizeof(before)) < 0 || memcmp(before, MP_HANDLE_OPCODE, 2) != 0 ||
        take(from, handle, sizeof(handle)) < 0)
        return NULL;
    return PyBytes_FromStringAndSize((const char *)handle, sizeof(handle));
}

/* Receive a pack, or copy its bytes if this process cannot share its memory. -1 with an exception.
 */
static int open_pack(reader *from, PyObject *handle)
{
    int rc;
    PyObject *pack = mp_core.receive_block(handle, &rc);
    char *bytes = NULL;
    Py_ssize_t nbytes = 0;

    if (pack != NULL) {
        bytes = ((mp_buffer *)pack)->block.data;
        nbytes = (Py_ssize_t)((mp_buffer *)pack)->block.nbytes;
    } else if (rc < 0) {
        nbytes = mp_core.size_of_copy(handle, rc);
        pack = nbytes < 0 ? NULL : PyByteArray_FromStringAndSize(NULL, nbytes);
        bytes = pack == NULL ? NULL : PyByteArray_AsString(pack);
        if (pack != NULL && mp_core.read_copy(handle, rc, bytes, (uint64_t)nbytes) < 0)
            Py_CLEAR(pack);
        if (pack == NULL)
            mp_core.refuse(handle, rc);
    }
    if (pack == NULL)
        return -1;
    Py_XDECREF(from->pack);
    from->pack = pack;
    from->bytes = bytes;
    from->bytes_end = bytes + nbytes;
    return 0;
}

static PyObject *copied(const mp_layout *layout, const void *bytes)
{
    PyObject *a = mp_array_over(layout, NULL);

    if (a != NULL)
        memcpy(PyArray_DATA((PyArrayObject *)a), bytes, (size_t)layout->nbytes);
    return a;
}

static PyObject *in_block(const mp_layout *layout, PyObject *handle)
{
    int rc;
    PyObject *block = mp_core.receive_block(handle, &rc);

    if (block == NULL)
        return rc < 0 ? mp_core.refuse(handle, rc) : NULL;
    return mp_array_over_block(block, layout);
}

/* The next array; NULL without an exception if its record is damaged. */
static PyObject *next_array(reader *from, PyObject *list, Py_ssize_t position)
{
    record r;
    PyObject *handle = NULL, *a = NULL;

    if (take(from, &r, sizeof(r)) < 0 || (r.same_shape ? from->nd != r.nd : r.nd > NPY_MAXDIMS))
        return NULL;
    if (!r.same_shape) {
        if (take(from, from->dims, r.nd * sizeof(int64_t)) < 0)
            return NULL;
        from->nd = r.nd;
    }
    if (r.place == AS_BEFORE) {
        uint32_t first;
        if (take(from, &first, sizeof(first)) < 0 || first >= position)
            return NULL;
        return Py_NewRef(PyList_GetItem(list, first));
    }
    if (mp_layout_of(r.ch, r.nd, from->dims, &from->layout) < 0)
        return NULL;
    size_t nbytes = (size_t)from->layout.nbytes;
    if (r.place == IN_TABLE) {
        if ((size_t)(from->end - from->at) < nbytes)
            return NULL;
        a = copied(&from->layout, from->at);
        from->at += nbytes;
        return a;
    }
    if (r.place == FIRST || r.place == IN_BLOCK)
        if ((handle = take_handle(from)) == NULL)
            return NULL;
    if (r.place == IN_BLOCK) {
        a = in_block(&from->layout, handle);
    } else if ((r.place == IN_PACK && from->pack != NULL) ||
               (r.place == FIRST && open_pack(from, handle) == 0)) {
        if ((size_t)(from->bytes_end - from->bytes) >= nbytes) {
            a = copied(&from->layout, from->bytes);
            from->bytes += nbytes;
            mp_core.count_copied(nbytes);
        }
    }
    Py_XDECREF(handle);
    return a;
}

/* rebuild_table(bytes) -> list of arrays */
PyObject *mp_py_rebuild_table(PyObject *module, PyObject *bytes)
{
    reader from = {.nd = -1};
    uint32_t count = 0;
    char *data;
    Py_ssize_t nbytes;
    (void)module;

    if (PyBytes_AsStringAndSize(bytes, &data, &nbytes) < 0)
        return NULL;
    from.at = (unsigned char *)data;
    from.end = from.at + nbytes;
    if (take(&from, &count, sizeof(count)) < 0 ||
        count > (size_t)(from.end - from.at) / sizeof(record))
        return PyErr_Format(PyExc_ValueError,
                            "the message of arrays is damaged: its table has %zd "
                            "bytes",
                            nbytes);
    PyObject *list = PyList_New(count);
    for (uint32_t i = 0; list != NULL && i < count; i++) {
        PyObject *a = next_array(&from, list, i);
        if (a == NULL) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_ValueError, "the message of arrays is damaged: array %u of %u",
                             (unsigned)i, (unsigned)count);
            Py_CLEAR(list);
        } else {
            PyList_SetItem(list, i, a);
        }
    }
    Py_XDECREF(from.pack);
    return list;
}
