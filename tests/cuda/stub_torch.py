"""Tensors of the real torch in memory of the stub driver: it is memory of the host, where torch's CPU tensors can be.

The adapter is told that such a tensor is on a device. So all of it runs here but the few lines that ask CUDA.
"""

from __future__ import annotations

import ctypes
from typing import Any

import mp_cuda
from mp_cuda.arrays.array import DeviceArray
from mp_cuda.driver import cuda_driver
from mp_cuda.libraries.adapters import torch as adapter


def is_on_stub(tensor: Any) -> bool:
    if tensor.requires_grad and not tensor.is_leaf:
        return False
    attribute = cuda_driver.bindings().CUpointer_attribute(7)
    try:
        with cuda_driver.guard(0):
            return bool(cuda_driver.call("cuPointerGetAttribute", attribute, tensor.untyped_storage().data_ptr()))
    except mp_cuda.DriverError:
        return False


def bytes_over(array: DeviceArray) -> Any:
    import torch

    memory = type("Memory", (ctypes.c_ubyte * array.nbytes,), {}).from_address(array.ptr)
    memory.array = array
    return torch.frombuffer(memory, dtype=torch.uint8)


def register() -> None:
    import torch

    adapter.handles = is_on_stub
    adapter._bytes_over = bytes_over
    adapter._index = lambda tensor: 0
    adapter._device = lambda index: torch.device("cpu")
    adapter._stream = lambda device: None
    mp_cuda.register("torch")


def on_device(tensor: Any) -> Any:
    """Copy a tensor into memory of the stub."""
    import torch

    storage = tensor.untyped_storage()
    array = mp_cuda.empty(storage.nbytes(), "uint8")
    bytes_ = bytes_over(array)
    bytes_.untyped_storage().copy_(storage)
    return torch.empty(0, dtype=tensor.dtype).set_(
        bytes_.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )
