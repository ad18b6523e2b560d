/* A message that is nothing but a list of arrays becomes a table, without a pickle of its own. */
#include <string.h>

#include "table.h"

enum { LARGE_PACK = 1 << 24 }; /* bytes */

/* The first position of each object of a list, by its address. */
typedef struct {
    PyObject **objects;
    uint32_t *positions;
    size_t mask;
} positions;

/* Return the earlier position of `object`, or `at` after entering it. */
static uint32_t first_position(positions *of, PyObject *object, uint32_t at)
{
    size_t k = ((uintptr_t)object >> 4) * 0x9E3779B97F4A7C15u >> 20;

    for (k &= of->mask; of->objects[k] != NULL; k = (k + 1) & of->mask)
        if (of->objects[k] == object)
            return of->positions[k];
    of->objects[k] = object;
    of->positions[k] = at;
    return at;
}

/* Check each array of the list and note its memory: the bytes for packs, or -1 if one has to be
 * pickled. */
static Py_ssize_t survey(PyObject *arrays, Py_ssize_t count, signed char *memory)
{
    Py_ssize_t sum = 0;

    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *array = PyTuple_GetItem(arrays, i);
        Py_ssize_t nbytes = PyArray_CheckExact(array) ? mp_fast_nbytes(array) : -1;
        memory[i] = (signed char)mp_memory_of(array, nbytes);
        if (memory[i] == NOT_FAST || (memory[i] == PRIVATE && nbytes > SMALL) ||
            (memory[i] == PRIVATE && (size_t)nbytes > mp_inline_limit()))
            return -1;
        sum += memory[i] == PRIVATE ? nbytes : 0;
    }
    return sum;
}

static int add_all(Table *self, PyObject *arrays, Py_ssize_t count, const signed char *memory,
                   positions *seen)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *array = PyTuple_GetItem(arrays, i);
        uint32_t first = first_position(seen, array, (uint32_t)i);
        if (first != (uint32_t)i) {
            if (mp_table_put_record(self, AS_BEFORE, (PyArrayObject *)array) < 0 ||
                mp_table_put_bytes(self, &first, sizeof(first)) < 0)
                return -1;
            continue;
        }
        Py_ssize_t nbytes = mp_fast_nbytes(array);
        int added = nbytes < 0 ? 0 : mp_table_add(self, array, (enum memory)memory[i], nbytes);
        if (added == 0) /* by another thread */
            PyErr_SetString(PyExc_RuntimeError, "an array was changed while it was sent");
        if (added <= 0)
            return -1;
    }
    return 1;
}

/* take_list(list) -> True if the table now is that list; False, and nothing has changed, if one of
 * its objects is no array for the table. */
PyObject *mp_table_take_list(PyObject *op, PyObject *list)
{
    Table *self = (Table *)op;
    Py_ssize_t count = PyList_CheckExact(list) ? PyList_Size(list) : 0, size = 64;
    int taken = 0;

    if (count <= FEW || count > UINT32_MAX / 4 || !PyArray_CheckExact(PyList_GetItem(list, 0)) ||
        !PyArray_CheckExact(PyList_GetItem(list, count - 1)))
        Py_RETURN_FALSE;
    while (size < 2 * count)
        size *= 2;
    PyObject *arrays = PyList_AsTuple(list);
    signed char *memory = PyMem_Malloc((size_t)count);
    positions seen = {PyMem_Calloc((size_t)size, sizeof(PyObject *)),
                      PyMem_Malloc((size_t)size * sizeof(uint32_t)), (size_t)size - 1};
    if (arrays != NULL && PyTuple_Size(arrays) == count && memory != NULL && seen.objects != NULL &&
        seen.positions != NULL) {
        Py_ssize_t packed = survey(arrays, count, memory);
        if (packed >= 0) {
            self->pack_nbytes = (size_t)(packed < LARGE_PACK ? packed : LARGE_PACK);
            taken = add_all(self, arrays, count, memory, &seen);
        }
    } else if (!PyErr_Occurred()) {
        PyErr_NoMemory();
        taken = -1;
    }
    PyMem_Free(seen.objects);
    PyMem_Free(seen.positions);
    PyMem_Free(memory);
    Py_XDECREF(arrays);
    return taken < 0 ? NULL : PyBool_FromLong(taken);
}
