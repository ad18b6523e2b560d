/* NumPy's scalars: written as a call of their type with a Python number, without a pickler. */
#include <math.h>

#include "native.h"

/* The number, of which the type makes the same scalar. */
static PyObject *number_of(PyObject *scalar)
{
    static PyObject *item;

    if (item == NULL && (item = PyUnicode_InternFromString("item")) == NULL)
        return NULL;
    PyObject *number = PyObject_CallMethodObjArgs(scalar, item, NULL);
    /* A NaN of fewer bits may change when it becomes a double. */
    if (number != NULL && PyFloat_CheckExact(number) && Py_TYPE(scalar) != &PyDoubleArrType_Type &&
        isnan(PyFloat_AsDouble(number)))
        Py_CLEAR(number);
    return number;
}

void mp_register_scalars(void)
{
    PyTypeObject *const types[] = {
        &PyBoolArrType_Type,     &PyByteArrType_Type,      &PyUByteArrType_Type,
        &PyShortArrType_Type,    &PyUShortArrType_Type,    &PyIntArrType_Type,
        &PyUIntArrType_Type,     &PyLongArrType_Type,      &PyULongArrType_Type,
        &PyLongLongArrType_Type, &PyULongLongArrType_Type, &PyHalfArrType_Type,
        &PyFloatArrType_Type,    &PyDoubleArrType_Type,
    };

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        mp_core.register_constructor(types[i], number_of);
}
