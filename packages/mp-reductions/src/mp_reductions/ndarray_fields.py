"""The fields of an ndarray object that this package reads and writes; their places are part of NumPy's ABI.

    PyObject_HEAD   data   nd   dimensions   strides   base   descr   flags   weakreflist   _buffer_info   mem_handler

Each field takes a pointer's width, with padding behind the ints `nd` and `flags`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

__all__ = ["DATA_OFFSET", "begins_as_expected", "swap_memory"]

_WORD = ctypes.sizeof(ctypes.c_void_p)
DATA_OFFSET: int = object.__basicsize__
_DIMENSIONS, _STRIDES, _BASE = (DATA_OFFSET + place * _WORD for place in (2, 3, 4))
_FLAGS, _HANDLER = (DATA_OFFSET + place * _WORD for place in (6, 9))


def _field(a: np.ndarray[Any, Any], offset: int) -> Any:
    kind: Any = ctypes.c_int if offset == _FLAGS else ctypes.c_size_t
    return kind.from_address(id(a) + offset)


def _address(a: np.ndarray[Any, Any]) -> int:
    address: int = a.__array_interface__["data"][0]
    return address


def begins_as_expected(a: np.ndarray[Any, Any]) -> bool:
    """Return whether the data pointer of *a* has its known place."""
    return bool(_field(a, DATA_OFFSET).value == _address(a))


def swap_memory(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
    """
    Exchange the memory of two arrays of the same shape and dtype, and with it their strides and flags.

    NumPy has no call for this (2.x removed the setter of ``ndarray.data``). Both arrays stay whole: each keeps a
    pointer together with its owner, so the array that has the old memory in the end frees it. The fields are compared
    with what Python says about the arrays before they change.
    """
    for array in (a, b):
        owner = 0 if array.base is None else id(array.base)
        fields = tuple(_field(array, offset).value for offset in (DATA_OFFSET, _BASE, _FLAGS))
        if fields != (_address(array), owner, array.flags.num) or a.shape != b.shape:
            raise NotImplementedError(
                f"share_memory_ does not know the layout of arrays of NumPy {np.__version__}; use share_memory for a "
                "copy"
            )
    # Dimensions and strides are one allocation, so both move.
    for offset in (DATA_OFFSET, _DIMENSIONS, _STRIDES, _BASE, _HANDLER, _FLAGS):
        x, y = _field(a, offset), _field(b, offset)
        x.value, y.value = y.value, x.value
