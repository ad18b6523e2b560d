"""The reducers of `torch.Tensor` and `Parameter`: how a tensor is pickled for a message, and rebuilt from it.

Note [How a tensor is sent]
---------------------------
    not on the CPU, not strided, nested               torch's reducer; it sends storages, which come to storage.py
    quantized                                         by torch's pickle, whose storage comes to storage.py
    plain numbers viewed as quantized ones            torch's reducer: nothing else can rebuild that
    no leaf, and requires a gradient                  torch's reducer, which raises torch's error
    the message goes by value                         by pickle, as torch does it without multiprocessing
    no bytes                                          its description alone
    in memory that torch has shared                   torch's reducer
    any other                                         the block of its storage, which is moved there first, in place

Most tensors are the whole of their storage, contiguous leaves: C writes and reads these (`small_message.py`).
"""

from __future__ import annotations

import pickle
from typing import Any

import torch

from mp_core.memory.block import Block
from mp_core.sharing.backend import by_value
from mp_core.system.errors import warn_sent_by_value
from mp_torch.storage import place_of, rebuild_storage

_strided = torch.strided
#: Dtypes of quantized tensors. A plain tensor may be viewed as one, and only torch can rebuild that.
_QUANTIZED = {getattr(torch, name, None) for name in ("qint8", "quint8", "qint32", "quint4x2", "quint2x4")}


def reduce_tensor(tensor: Any) -> Any:
    """Reduce a tensor; see Note [How a tensor is sent]."""
    requires_grad = tensor.requires_grad
    if not tensor.is_cpu or tensor.layout is not _strided or tensor.is_nested or (requires_grad and not tensor.is_leaf):
        return torch.multiprocessing.reductions.reduce_tensor(tensor)
    has_quantized_dtype = tensor.dtype in _QUANTIZED
    if by_value() or (has_quantized_dtype and tensor.is_quantized):
        return tensor.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
    if has_quantized_dtype:
        return torch.multiprocessing.reductions.reduce_tensor(tensor)
    if requires_grad and tensor._backward_hooks:
        torch.utils.hooks.warn_if_has_hooks(tensor)
    storage = tensor.untyped_storage()
    try:
        place = place_of(storage, tensor)
    except (MemoryError, OSError) as error:
        warn_sent_by_value("a tensor", storage.nbytes(), error)
        return tensor.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
    if place is None and storage.nbytes():
        return torch.multiprocessing.reductions.reduce_tensor(tensor)
    parameter = type(tensor) is not torch.Tensor
    flipped = tensor.is_conj(), tensor.is_neg()
    shape = tuple(tensor.shape)
    if place is not None and not (parameter or requires_grad or any(flipped)) and tensor.is_contiguous():
        block, offset, nbytes = place
        if offset == 0 and nbytes == block.nbytes == tensor.numel() * tensor.element_size():
            return rebuild_whole, (block, tensor.dtype, shape)
    return rebuild_tensor, (
        place,
        tensor.dtype,
        tensor.storage_offset(),
        shape,
        tensor.stride(),
        requires_grad,
        parameter,
        *flipped,
    )


def rebuild_whole(block: Block, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Rebuild a contiguous tensor that is all of its storage, and all of *block*."""
    storage = rebuild_storage(block, 0, block.nbytes)
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape)  # whatever the default device is


def rebuild_tensor(
    place: tuple[Block, int, int] | None,
    dtype: Any,
    start: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
    parameter: bool,
    conj: bool,
    neg: bool,
) -> Any:
    """Rebuild a tensor over a block. A handle that reaches beyond it is a `ValueError` or a `RuntimeError`."""
    storage = torch.UntypedStorage(0, device="cpu") if place is None else rebuild_storage(*place)
    # torch checks bounds only for storage that cannot grow; memory of a block cannot.
    tensor: Any = torch.empty(0, dtype=dtype, device="cpu").set_(storage, start, shape, strides)
    if conj:
        tensor = tensor.conj()
    if neg:
        tensor = torch._neg_view(tensor)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


reduce_tensor.finds_default = True  # type: ignore[attr-defined]  # torch's, in torch's module
rebuild_tensor.__module__ = rebuild_whole.__module__ = "mp_torch"
