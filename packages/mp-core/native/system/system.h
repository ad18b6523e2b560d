/* Forks, the session of this process, and the other end of a socket. */
#ifndef MP_SYSTEM_H
#define MP_SYSTEM_H
#include "mp_core.h"

/* ---- functions of the module _block ---- */

/* fork_hooks.c */
PyObject *mp_py_register_at_fork(PyObject *, PyObject *);
/* session.c */
PyObject *mp_py_version(PyObject *, PyObject *);
PyObject *mp_py_set_manager(PyObject *, PyObject *);
PyObject *mp_py_own_session(PyObject *, PyObject *);
PyObject *mp_py_attach_to(PyObject *, PyObject *);
PyObject *mp_py_attach_by_descriptors(PyObject *, PyObject *);
PyObject *mp_py_open_descriptors_for_child(PyObject *, PyObject *);
PyObject *mp_py_set_message_timeout(PyObject *, PyObject *);
PyObject *mp_py_handle_alive(PyObject *, PyObject *);
/* peer.c */
PyObject *mp_py_peer(PyObject *, PyObject *);

#endif
