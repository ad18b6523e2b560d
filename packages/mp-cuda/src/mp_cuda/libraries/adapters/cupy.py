"""CuPy: its arrays."""

from __future__ import annotations

import sys
from typing import Any

from mp_cuda.arrays.array import DeviceArray
from mp_cuda.arrays.layout import byte_range
from mp_cuda.arrays.protocols import by_interface


def types() -> tuple[type, ...]:
    return (sys.modules["cupy"].ndarray,)


def view(obj: Any) -> DeviceArray:
    import cupy

    # CuPy may be set not to name a stream in the interface; its work is on this thread's current stream.
    with cupy.cuda.Device(obj.device.id):
        stream = int(cupy.cuda.get_current_stream().ptr) or None
    return by_interface(obj, device=int(obj.device.id), stream=stream)


def rebuild(array: DeviceArray, extra: bytes) -> Any:
    import cupy

    low, high = byte_range(array.shape, array.strides, array.dtype.itemsize)
    with cupy.cuda.Device(array.device):
        array._make_wait(int(cupy.cuda.get_current_stream().ptr) or 1)
        memory = cupy.cuda.UnownedMemory(array.ptr + low, high - low, array, device_id=array.device)
        pointer = cupy.cuda.MemoryPointer(memory, -low)
        return cupy.ndarray(array.shape, array.dtype.typestr, pointer, array.strides)
