/* The types of channels and lines, and their functions in the module _block. */
#ifndef MP_CHANNELS_H
#define MP_CHANNELS_H
#include "memory/memory.h"

/* Add the type Channel to the module: 0, or -1 with an exception. */
int mp_add_channel_type(PyObject *module);
/* Add the type TaskRing to the module. */
int mp_add_task_ring_type(PyObject *module);

/* ---- functions of the module _block ---- */

/* channel.c */
PyObject *mp_py_setup_channels(PyObject *, PyObject *);
/* channel_type.c */
PyObject *mp_py_make_channel(PyObject *, PyObject *);
PyObject *mp_py_open_channel(PyObject *, PyObject *);
PyObject *mp_py_channel_count(PyObject *, PyObject *);
/* lazy_ring.c */
PyObject *mp_py_channels_refused(PyObject *, PyObject *);
/* task_ring.c */
PyObject *mp_py_make_task_ring(PyObject *, PyObject *);
PyObject *mp_py_open_task_ring(PyObject *, PyObject *);
PyObject *mp_py_wait_any(PyObject *, PyObject *);

#endif
