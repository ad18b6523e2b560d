/* Shared by the C files of the module mp_torch._native. */
#ifndef MP_TORCH_NATIVE_H
#define MP_TORCH_NATIVE_H
#include "dlpack.h"

/* core.c: mp-core's table, copied when the module is imported. */
extern mp_core_api mp_core;
int mp_load_core(void);

/* ---- storages.c ---- */

/* The storage of a tensor, NULL with an exception. */
PyObject *mp_storage_of(PyObject *tensor);
/* 1 if the storage has that many bytes; 0, perhaps with an exception. */
int mp_storage_has(PyObject *storage, int64_t nbytes);
/* Retain the block that is all of the tensor's storage, which is moved there unless it is in one,
 * and describe the tensor. 1; 0 if it is not all of its storage or this cannot be moved; -1 with an
 * exception. */
int mp_block_of_tensor(PyObject *tensor, dl_shape *shape, mpshm_block *block);
/* Make the tensor of a handle that has arrived. NULL with an exception. */
PyObject *mp_tensor_arrived(const char *handle, dl_record record, const int64_t *dims);

/* ---- functions of the module, each in the file named above it ---- */

/* storages.c */
PyObject *mp_py_setup_storages(PyObject *, PyObject *);
PyObject *mp_py_move_storage(PyObject *, PyObject *);
PyObject *mp_py_remember_storage(PyObject *, PyObject *);
PyObject *mp_py_find_storage(PyObject *, PyObject *);

/* tensor_codec.c */
PyObject *mp_py_setup_tensors(PyObject *, PyObject *);
PyObject *mp_py_receive_tensor(PyObject *, PyObject *);

#endif
