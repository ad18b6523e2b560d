/* The pickle of a message that is one small array, written without a pickler.
 *
 *   PROTO 4 | module, rebuild_from_bytes, STACK_GLOBAL | bytes | char | shape | TUPLE3 | REDUCE |
 * STOP
 *
 * It is the pickle that the fast path's reduction (fast_path.c) would give, without memo and frame.
 * mp_core asks for it first, for queues and pipes that skip the kernel's pipe. */
#include <string.h>

#include "native.h"

enum { PREFIX = 96, HEAD = 5, TAIL = 16 + 5 * NPY_MAXDIMS };

static char prefix[PREFIX];
static size_t prefix_len;

static char *put(char *at, const void *bytes, size_t n)
{
    memcpy(at, bytes, n);
    return at + n;
}

/* SHORT_BINUNICODE, the length, the text. */
static char *put_text(char *at, const char *text, size_t n)
{
    *at++ = '\x8c';
    *at++ = (char)n;
    return put(at, text, n);
}

/* BININT1, BININT2 or BININT. */
static char *put_number(char *at, npy_intp n)
{
    int nbytes = n < 256 ? 1 : n < 65536 ? 2 : 4;

    *at++ = nbytes == 1 ? 'K' : nbytes == 2 ? 'M' : 'J';
    for (int i = 0; i < nbytes; i++)
        *at++ = (char)(n >> 8 * i);
    return at;
}

static char *put_shape(char *at, const npy_intp *dims, int nd)
{
    static const char *const close[] = {")", "\x85", "\x86", "\x87"}; /* EMPTY_TUPLE, TUPLE1, ... */

    if (nd > 3)
        *at++ = '('; /* MARK */
    for (int i = 0; i < nd; i++)
        at = put_number(at, dims[i]);
    *at++ = nd > 3 ? 't' : close[nd][0];
    return at;
}

PyObject *mp_pickle_whole(PyObject *op)
{
    const PyArrayObject *a = (const PyArrayObject *)op;
    Py_ssize_t nbytes = mp_inline_nbytes(op);
    int nd = PyArray_NDIM(a);

    if (nbytes < 0 || nbytes > INT32_MAX) /* the limit of inline arrays can be set */
        return NULL;
    for (int i = 0; i < nd; i++)
        if (PyArray_DIM(a, i) > INT32_MAX)
            return NULL;
    char tail[TAIL], name = PyArray_DESCR(a)->type;
    char *end = put_text(tail, &name, 1);
    end = put_shape(end, PyArray_DIMS((PyArrayObject *)a), nd);
    end = put(end, "\x87R.", 3);
    size_t tail_len = (size_t)(end - tail);
    PyObject *data =
        PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(prefix_len + HEAD + tail_len) + nbytes);
    if (data == NULL)
        return NULL;
    char *at = put(PyBytes_AsString(data), prefix, prefix_len);
    *at++ = 'B'; /* BINBYTES */
    for (int i = 0; i < 4; i++)
        *at++ = (char)(nbytes >> 8 * i);
    at = put(at, PyArray_DATA((PyArrayObject *)a), (size_t)nbytes);
    put(at, tail, tail_len);
    return data;
}

int mp_init_whole_message(PyObject *rebuild)
{
    PyObject *module = PyObject_GetAttrString(rebuild, "__module__");
    PyObject *name = PyObject_GetAttrString(rebuild, "__qualname__");
    Py_ssize_t n = 0, m = 0;
    const char *text = module != NULL ? PyUnicode_AsUTF8AndSize(module, &n) : NULL;
    const char *word = name != NULL ? PyUnicode_AsUTF8AndSize(name, &m) : NULL;
    int rc = -1;

    if (text != NULL && word != NULL && n + m + 8 <= PREFIX) {
        char *at = put(prefix, "\x80\x04", 2);
        at = put_text(put_text(at, text, (size_t)n), word, (size_t)m);
        *at++ = '\x93'; /* STACK_GLOBAL */
        prefix_len = (size_t)(at - prefix);
        rc = 0;
    }
    Py_XDECREF(module);
    Py_XDECREF(name);
    return rc;
}
