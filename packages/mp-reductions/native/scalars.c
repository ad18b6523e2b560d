/* NumPy's scalars: written as a call of their type with a Python number, without a pickler; dates
 * and durations with their unit. */
#include <math.h>
#include <stdio.h>

#include "native.h"
#include <numpy/arrayscalars.h>

/* A tuple of the number, of which the type makes the same scalar. */
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
    PyObject *args = number != NULL ? PyTuple_Pack(1, number) : NULL;
    Py_XDECREF(number);
    return args;
}

/* A tuple of the count of units since 1970, or in the duration, and the unit: (5, "25s"). */
static PyObject *count_and_unit_of(PyObject *scalar)
{
    static const char *const units[] = {[NPY_FR_Y] = "Y",   [NPY_FR_M] = "M",   [NPY_FR_W] = "W",
                                        [NPY_FR_D] = "D",   [NPY_FR_h] = "h",   [NPY_FR_m] = "m",
                                        [NPY_FR_s] = "s",   [NPY_FR_ms] = "ms", [NPY_FR_us] = "us",
                                        [NPY_FR_ns] = "ns", [NPY_FR_ps] = "ps", [NPY_FR_fs] = "fs",
                                        [NPY_FR_as] = "as"};
    const PyDatetimeScalarObject *of = (PyDatetimeScalarObject *)scalar; /* as the other type */
    size_t base = (size_t)of->obmeta.base;
    char unit[32];

    if (base >= sizeof(units) / sizeof(units[0]) || units[base] == NULL || of->obmeta.num < 1)
        return NULL; /* without a unit */
    if (of->obmeta.num == 1)
        snprintf(unit, sizeof(unit), "%s", units[base]);
    else
        snprintf(unit, sizeof(unit), "%d%s", of->obmeta.num, units[base]);
    return Py_BuildValue("Ls", (long long)of->obval, unit);
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
    mp_core.register_constructor(&PyDatetimeArrType_Type, count_and_unit_of);
    mp_core.register_constructor(&PyTimedeltaArrType_Type, count_and_unit_of);
}
