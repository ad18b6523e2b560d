/* Functions, classes and objects of programs, written by their names. */
#ifndef MP_OBJECTS_H
#define MP_OBJECTS_H
#include "mp_core.h"

/* ---- names.c ---- */

int mp_setup_names(PyObject *module);
/* 1 for a function, and for a class that is no metaclass's. */
int mp_has_name(PyObject *object);
/* 1 if the program has not changed how ForkingPickler writes, or reads; -1 with an exception. */
int mp_pickler_is_standard(void);
int mp_unpickler_is_standard(void);
/* Write the name of a function or class: 1; 0 for one that needs a pickler; -1 with an
 * exception. */
int mp_put_name(mp_writer *to, PyObject *thing);
/* The same as bytes, for a function of ours that is written often. 0, or -1 with an exception. */
int mp_make_global(mp_global *to, PyObject *function);
int mp_find_global(mp_global *to, PyObject *module, const char *name);
/* Import the module and return what the name leads to; NULL, perhaps without an exception. */
PyObject *mp_find_name(PyObject *module, PyObject *name);

/* ---- objects.c ---- */

int mp_setup_objects(PyObject *module);
/* How an object is written, see objects.c; -1 with an exception. */
enum { MP_BY_PICKLER, MP_PLAIN, MP_REDUCED };
int mp_way_of(PyObject *object);
/* Return the __dict__ of a plain object; NULL, without an exception for one that needs a
 * pickler. */
PyObject *mp_state_of(PyObject *object);
/* What a pickler writes of an object: a call, and what the result of the call gets, each NULL if it
 * gets none. The lists are as they were at one moment. */
typedef struct {
    PyObject *whole; /* the tuple that holds all but the lists */
    PyObject *function, *args, *state;
    PyObject *items, *pairs; /* for extend(), for obj[key] = value */
    int makes_new;           /* __new__ of the class gets the arguments after the first */
} mp_reduction;
/* 1; 0 for one that needs a pickler; -1 with an exception. mp_end_reduction follows in each
 * case. */
int mp_reduce(PyObject *object, mp_reduction *to);
void mp_end_reduction(mp_reduction *reduction);
/* Make an object of the class; NULL, perhaps without an exception. */
PyObject *mp_new_object(PyObject *kind, PyObject *args);
/* The last class in the message that has no __setstate__; and whether its objects have no
 * __dict__. */
typedef struct {
    PyTypeObject *kind;
    int has_no_dict;
} mp_usual;
/* Give it that state: 1; 0 for a state that an unpickler may know; -1 with an exception. */
int mp_set_state(PyObject *object, PyObject *state, mp_usual *usual);

#endif
