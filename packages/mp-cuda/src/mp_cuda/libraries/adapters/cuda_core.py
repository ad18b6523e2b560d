"""cuda.core: its buffers, which are device memory without shape or type."""

from __future__ import annotations

import sys
from typing import Any

from mp_cuda.arrays.array import DeviceArray
from mp_cuda.arrays.dtype import dtype_of
from mp_cuda.errors import NotShareableError


def types() -> tuple[type, ...]:
    return (sys.modules["cuda.core"].Buffer,)


def view(obj: Any) -> DeviceArray:
    if not obj.is_device_accessible or obj.is_host_accessible:
        raise NotShareableError(
            "the buffer is not device memory (perhaps pinned or managed): copy it to a device, or send a NumPy array"
        )
    return DeviceArray(int(obj.handle), (int(obj.size),), dtype_of("|u1"), int(obj.device_id), owner=obj)


def rebuild(array: DeviceArray, extra: bytes) -> Any:
    from cuda.core import Buffer

    return Buffer.from_handle(array.ptr, array.nbytes, owner=array)
