/* The pickle of a message that is one small array, written and read without a pickler.
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

/* The unread rest of a message. */
struct rest {
    const unsigned char *at;
    size_t nbytes;
};

static const unsigned char *take(struct rest *rest, size_t n)
{
    const unsigned char *at = rest->at;

    if (rest->nbytes < n)
        return NULL;
    rest->at += n;
    rest->nbytes -= n;
    return at;
}

static int take_these(struct rest *rest, const char *bytes, size_t n)
{
    const unsigned char *at = take(rest, n);
    return at != NULL && memcmp(at, bytes, n) == 0;
}

static uint32_t little_endian(const unsigned char *at, int nbytes)
{
    uint32_t n = 0;

    for (int i = 0; i < nbytes; i++)
        n |= (uint32_t)at[i] << 8 * i;
    return n;
}

/* Read a shape as put_shape() writes it: the number of dimensions, or -1. */
static int take_shape(struct rest *rest, int64_t *dims)
{
    static const unsigned char close[] = {')', 0x85, 0x86, 0x87}; /* EMPTY_TUPLE, TUPLE1, ... */
    int nd = 0;
    const unsigned char *at;

    while ((at = take(rest, 1)) != NULL) {
        int nbytes = *at == 'K' ? 1 : *at == 'M' ? 2 : *at == 'J' ? 4 : 0;
        if (nbytes == 0) {
            if (*at == '(' && nd == 0)
                continue;
            return *at == 't' || *at == close[nd <= 3 ? nd : 0] ? nd : -1;
        }
        at = take(rest, (size_t)nbytes);
        if (at == NULL || nd == NPY_MAXDIMS)
            return -1;
        dims[nd++] = little_endian(at, nbytes);
    }
    return -1;
}

PyObject *mp_unpickle_whole(const char *data, Py_ssize_t nbytes)
{
    struct rest rest = {(const unsigned char *)data, (size_t)nbytes};
    const unsigned char *at, *bytes, *name;
    int64_t dims[NPY_MAXDIMS];
    mp_layout layout;

    if (!take_these(&rest, prefix, prefix_len) || (at = take(&rest, HEAD)) == NULL || *at != 'B' ||
        (bytes = take(&rest, little_endian(at + 1, 4))) == NULL ||
        (name = take(&rest, 3)) == NULL || name[0] != 0x8c || name[1] != 1)
        return NULL;
    int nd = take_shape(&rest, dims);
    if (nd < 0 || !take_these(&rest, "\x87R.", 3) || rest.nbytes != 0 ||
        mp_layout_of(name[2], nd, dims, &layout) < 0 || layout.nbytes != name - bytes)
        return NULL; /* the unpickler says what is wrong */
    PyObject *a = mp_array_over(&layout, NULL);
    if (a != NULL)
        memcpy(PyArray_DATA((PyArrayObject *)a), bytes, (size_t)layout.nbytes);
    return a;
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
