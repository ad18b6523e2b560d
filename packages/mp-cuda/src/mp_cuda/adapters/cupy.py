"""Arrays of CuPy."""

from __future__ import annotations

import sys
from typing import Any

from mp_cuda.array import DeviceArray

__all__ = ["rebuild", "types", "view"]


def types() -> tuple[type, ...]:
    return (sys.modules["cupy"].ndarray,)


def view(obj: Any) -> DeviceArray:
    import cupy

    from mp_cuda.interface import by_interface

    # Work goes to the stream that is current in the thread that asks; the interface may be set not to say it.
    with cupy.cuda.Device(obj.device.id):
        stream = int(cupy.cuda.get_current_stream().ptr) or None
    return by_interface(obj, device=int(obj.device.id), stream=stream)


def rebuild(array: DeviceArray) -> Any:
    import cupy

    from mp_cuda.layout import extent

    low, high = extent(array.shape, array.strides, array.dtype.itemsize)
    with cupy.cuda.Device(array.device):
        array._make_wait(int(cupy.cuda.get_current_stream().ptr) or 1)
        memory = cupy.cuda.UnownedMemory(array.ptr + low, high - low, array, device_id=array.device)
        pointer = cupy.cuda.MemoryPointer(memory, -low)
        return cupy.ndarray(array.shape, array.dtype.typestr, pointer, array.strides)
