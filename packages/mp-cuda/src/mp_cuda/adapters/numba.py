"""Arrays of numba: `numba.cuda.to_device` and its like."""

from __future__ import annotations

import sys
from typing import Any

from mp_cuda.array import DeviceArray

__all__ = ["rebuild", "types", "view"]


def types() -> tuple[type, ...]:
    return (sys.modules["numba.cuda.cudadrv.devicearray"].DeviceNDArray,)


def view(obj: Any) -> DeviceArray:
    from mp_cuda.interface import by_interface

    return by_interface(obj)


class _Unbound:
    """The array without a stream: with one, numba binds the new array to it, and its copies no longer wait."""

    def __init__(self, array: DeviceArray) -> None:
        self._array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._array.__cuda_array_interface__ | {"stream": None}


def rebuild(array: DeviceArray) -> Any:
    from numba import cuda

    as_cuda_array: Any = cuda.as_cuda_array  # numba has few types
    return as_cuda_array(_Unbound(array), sync=False)
