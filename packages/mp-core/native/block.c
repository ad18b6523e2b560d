/* The Python type under mp_core.Block: an object that owns one segment and offers its bytes.
 *
 * Why this is not cffi: until 3.12 only a C type can offer the buffer protocol, and an ndarray over
 * a Block keeps exactly this object alive. It lives in the same shared library as the cffi binding,
 * as a second module, so that both use one copy of libshm. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "mpshm.h"

typedef struct {
    PyObject_HEAD
    mpshm_segment *segment;
} Buffer;

/* Buffer(address): takes over the mpshm_segment at `address`, and closes it when it goes. */
static PyObject *buffer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *number;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    (void)kwargs;

    if (!PyArg_ParseTuple(args, "O!:Buffer", &PyLong_Type, &number))
        return NULL;
    void *address = PyLong_AsVoidPtr(number);
    if (address == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "Buffer: the address of a segment, not 0");
        return NULL;
    }
    Buffer *self = (Buffer *)alloc(type, 0);
    if (self != NULL)
        self->segment = address;
    return (PyObject *)self;
}

static void buffer_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    mpshm_segment_close(((Buffer *)op)->segment);
    release(op);
    Py_DECREF(type);
}

static int buffer_get(PyObject *op, Py_buffer *view, int flags)
{
    Buffer *self = (Buffer *)op;
    return PyBuffer_FillInfo(view, op, mpshm_segment_data(self->segment),
                             (Py_ssize_t)mpshm_segment_nbytes(self->segment), 0, flags);
}

static PyObject *buffer_nbytes(PyObject *op, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLongLong(mpshm_segment_nbytes(((Buffer *)op)->segment));
}

static PyGetSetDef buffer_getset[] = {
    {"nbytes", buffer_nbytes, NULL, "Usable bytes.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot buffer_slots[] = {
    {Py_tp_doc, "The memory of one segment, through the buffer protocol."},
    {Py_tp_new, buffer_new},
    {Py_tp_dealloc, buffer_dealloc},
    {Py_tp_getset, buffer_getset},
    {Py_bf_getbuffer, buffer_get},
    {0, NULL},
};

static PyType_Spec buffer_spec = {
    .name = "mp_core._block.Buffer",
    .basicsize = sizeof(Buffer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = buffer_slots,
};

static int block_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &buffer_spec, NULL);
    int rc = type == NULL ? -1 : PyModule_AddObjectRef(module, "Buffer", type);
    Py_XDECREF(type);
    return rc;
}

static PyModuleDef_Slot block_slots[] = {{Py_mod_exec, block_exec}, {0, NULL}};

static struct PyModuleDef block_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_block",
    .m_doc = "The C type under mp_core.Block.",
    .m_slots = block_slots,
};

PyMODINIT_FUNC PyInit__block(void)
{
    return PyModuleDef_Init(&block_module);
}
