"""numba: its device arrays, as `numba.cuda.to_device` makes them."""

from __future__ import annotations

import sys
from typing import Any

from mp_cuda.arrays.array import DeviceArray
from mp_cuda.arrays.protocols import by_interface


def types() -> tuple[type, ...]:
    return (sys.modules["numba.cuda.cudadrv.devicearray"].DeviceNDArray,)


def view(obj: Any) -> DeviceArray:
    return by_interface(obj)


class _Unbound:
    """The array without its stream: numba would bind the new array to the stream, and its copies would not wait."""

    def __init__(self, array: DeviceArray) -> None:
        self._array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._array.__cuda_array_interface__ | {"stream": None}


def rebuild(array: DeviceArray, extra: bytes) -> Any:
    from numba import cuda

    as_cuda_array: Any = cuda.as_cuda_array  # numba has few types
    return as_cuda_array(_Unbound(array), sync=False)
