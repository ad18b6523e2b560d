"""Doubles of libraries that need a GPU, with only the names and protocols that the adapters use."""

from __future__ import annotations

import types
from typing import Any

from mp_cuda.arrays.dtype import dtype_of
from mp_cuda.arrays.layout import row_major


class OnlyDLPack:
    """An array of a library that supports only DLPack."""

    def __init__(self, array: Any, kind: int = 2) -> None:
        self.array, self.kind = array, kind

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, self.array.device

    def __dlpack__(self, **how: Any) -> Any:
        return self.array.__dlpack__(**how)


class Device:
    def __init__(self, number: int) -> None:
        self.id = number

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


class UnownedMemory:
    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    def __init__(self, memory: UnownedMemory, offset: int) -> None:
        self.mem, self.ptr = memory, memory.ptr + offset


class CupyArray:
    def __init__(self, shape: Any, dtype: str, memory: MemoryPointer, strides: Any) -> None:
        self.shape, self.memory, self.dtype = shape, memory, dtype
        self.strides = row_major(shape, dtype_of(dtype).itemsize) if strides is None else strides
        self.device = Device(memory.mem.device_id)
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": dtype, "data": (memory.ptr, False), "version": 3, "strides": strides
        }  # fmt: skip


def cupy() -> types.ModuleType:
    module: Any = types.ModuleType("cupy")
    module.cuda = types.ModuleType("cupy.cuda")
    module.ndarray = CupyArray
    module.cuda.Device, module.cuda.UnownedMemory, module.cuda.MemoryPointer = Device, UnownedMemory, MemoryPointer
    module.cuda.waited = []

    def get_current_stream() -> Any:
        module.cuda.waited.append(1)
        return types.SimpleNamespace(ptr=module.cuda.stream)

    module.cuda.stream = 0
    module.cuda.get_current_stream = get_current_stream
    return module


def parts(name: str, module: Any) -> dict[str, types.ModuleType]:
    """Return the module paths of a double."""
    return {name: module, f"{name}.cuda": module.cuda}
