"""torch: its tensors, only after `register("torch")`, because torch.multiprocessing sends them itself.

Note [Tensors as with torch]
----------------------------
What travels is the storage, as an array of bytes, and a description of the tensor on it. So a tensor arrives as torch's
own reducer sends it: two views of one storage are that again, a Parameter is one, `requires_grad` and the bits for
conjugation and negation are kept, gradients are not sent. What torch refuses or sends in another way (tensors that are
not leaves, sparse, nested or quantized ones) is left to its reducer.

Note [One way for a tensor]
---------------------------
torch's reducer is replaced in two places: in the table of ForkingPickler, where it is that of a type; and in torch's
module, where a reducer for the tensors of the host (mp-torch's) finds it for all others.
"""

from __future__ import annotations

import marshal
import threading
from typing import Any

import torch
from torch.multiprocessing import reductions

from mp_cuda.arrays.array import DeviceArray
from mp_cuda.arrays.dtype import dtype_of
from mp_cuda.arrays.protocols import by_dlpack
from mp_cuda.driver.stream import LEGACY
from mp_cuda.errors import NotShareableError

_BYTE = dtype_of("|u1")
_names: dict[Any, str] = {}
# What torch.cuda.current_stream() asks, without an object for the stream.
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def types() -> tuple[type, ...]:
    return torch.Tensor, torch.nn.Parameter


def default_reducer() -> tuple[Any, str]:
    return reductions, "reduce_tensor"


def handles(obj: Any) -> bool:
    """Return whether *obj* is sent from here: a plain tensor on a CUDA device. All others keep their reducer."""
    return bool(
        obj.is_cuda
        and obj.layout is torch.strided
        and not (obj.is_nested or obj.is_quantized or (obj.requires_grad and not obj.is_leaf))
    )


def view(obj: Any) -> DeviceArray:
    _refuse_without_leaf(obj)
    return by_dlpack(obj.detach())._replace(stream=_stream(_index(obj)))


def taken_apart(obj: Any) -> tuple[DeviceArray, bytes]:
    _refuse_without_leaf(obj)
    if obj.requires_grad and obj._backward_hooks:
        torch.utils.hooks.warn_if_has_hooks(obj)
    storage = obj.untyped_storage()
    device = _index(obj)
    array = DeviceArray(storage.data_ptr(), (storage.nbytes(),), _BYTE, device, owner=storage, stream=_stream(device))
    return array, description(obj, device)


def _refuse_without_leaf(tensor: Any) -> None:
    if tensor.requires_grad and not tensor.is_leaf:
        raise NotShareableError("the tensor is not a leaf, and gradients cannot be sent: send tensor.detach()")


def description(tensor: Any, device: int) -> bytes:
    """Return what there is to a tensor besides its storage."""
    dtype = tensor.dtype
    name = _names.get(dtype)
    if name is None:
        name = _names[dtype] = str(dtype).removeprefix("torch.")
    layout = name, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    is_parameter = type(tensor) is torch.nn.Parameter
    return marshal.dumps((*layout, tensor.requires_grad, is_parameter, tensor.is_conj(), tensor.is_neg(), device))


def owner_type() -> type:
    """Return the type of what exports keep."""
    kind: type = torch.UntypedStorage
    return kind


def in_use(storage: Any) -> bool:
    """Return whether tensors refer to a storage that exports keep; if torch does not tell, its time is limited."""
    count: Any = getattr(torch._C, "_storage_Use_Count", None)
    return count is None or count(storage._cdata) > 1  # one is that of the Python object


def rebuild(array: DeviceArray, extra: bytes) -> Any:
    description = marshal.loads(extra)
    if not array.shape[0]:
        return described(torch.UntypedStorage(0, device=_device(description[-1])), description)
    storage = array._owner if isinstance(array._owner, torch.UntypedStorage) else _storage_over(array)
    # The legacy default stream waits for the sender's work.
    array._make_wait(_stream(array.device) or LEGACY)
    return described(storage, description)


def described(storage: Any, description: tuple[Any, ...]) -> Any:
    """Make the tensor of a description on *storage*."""
    name, offset, shape, strides, requires_grad, is_parameter, conj, neg, _ = description
    tensor: Any = torch.empty(0, dtype=getattr(torch, name), device=storage.device).set_(
        storage, offset, shape, strides
    )
    if conj:
        tensor = tensor.conj()
    if neg:
        tensor = torch._neg_view(tensor)
    if is_parameter:  # one of integers must be told not to require a gradient
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


_storages: dict[tuple[int, int], Any] = {}
_limit = 128
_lock = threading.RLock()


def _storage_over(array: DeviceArray) -> Any:
    """Return the storage on the memory of *array*: the one that is known, while it lives."""
    global _limit
    key = array.ptr, array.shape[0]
    with _lock:
        reference = _storages.get(key)
        storage: Any = None if reference is None else torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
        if storage is None:
            storage = _bytes_over(array).untyped_storage()
            _storages[key] = reductions.StorageWeakRef(storage)
            if len(_storages) > _limit:
                for known in [known for known, reference in _storages.items() if reference.expired()]:
                    del _storages[known]
                _limit = max(128, 2 * len(_storages))
    return storage


class _Bytes:
    """The bytes of an array with the CUDA array interface. torch does not take its stream."""

    def __init__(self, array: DeviceArray) -> None:
        self._array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape, "typestr": "|u1", "data": (array.ptr, False), "version": 3, "strides": None
        }  # fmt: skip


def _bytes_over(array: DeviceArray) -> Any:
    """Return a tensor of bytes on the memory of *array*, which it keeps."""
    try:
        tensor = torch.as_tensor(_Bytes(array), device=_device(array.device))
        if tensor.data_ptr() == array.ptr:
            return tensor
    except (RuntimeError, TypeError):  # without NumPy, torch does not read the interface
        pass
    with torch.cuda.device(array.device):
        return torch.from_dlpack(array)  # slower, and never a copy


def _index(tensor: Any) -> int:
    return int(tensor.device.index)


def _device(index: int) -> Any:
    return torch.device("cuda", index)


def _stream(device: int) -> int | None:
    stream = torch.cuda.current_stream(device).cuda_stream if _raw_stream is None else _raw_stream(device)
    return int(stream) or None
