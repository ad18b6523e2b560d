"""torch: its tensors, only after `register("torch")`, because torch.multiprocessing sends them itself."""

from __future__ import annotations

import sys
from typing import Any

from mp_cuda import dlpack
from mp_cuda.array import DeviceArray
from mp_cuda.errors import NotShareableError

__all__ = ["handles", "rebuild", "taken_apart", "types", "view"]


def types() -> tuple[type, ...]:
    return (sys.modules["torch"].Tensor,)


def handles(obj: Any) -> bool:
    """Return whether *obj* is on a CUDA device. Tensors of the host keep their reducer."""
    return bool(obj.is_cuda)


def view(obj: Any) -> DeviceArray:
    import torch

    if obj.requires_grad and not obj.is_leaf:
        raise NotShareableError("the tensor is not a leaf, and gradients cannot be sent: send tensor.detach()")
    stream = int(torch.cuda.current_stream(obj.device).cuda_stream) or None
    # -1: do not wait, because the stream is known
    capsule = obj.detach().__dlpack__(stream=-1)
    ptr, shape, strides, dtype, device, readonly, capsule_owner = dlpack.read(capsule)
    owner = (capsule_owner, obj)
    return DeviceArray(ptr, shape, dtype, device, strides=strides, readonly=readonly, owner=owner, stream=stream)


def taken_apart(obj: Any) -> tuple[DeviceArray, None]:
    return view(obj), None


def rebuild(array: DeviceArray, extra: None) -> Any:
    import torch

    with torch.cuda.device(array.device):
        # from_dlpack passes torch's current stream, which the array makes wait for the sender's work.
        return torch.from_dlpack(array)
