"""The table of the tensors of one message, which travels beside its pickle (mp_core._pickling, Note [Tables]).

Note [Tensors in a table]
-------------------------
A message with many tensors costs mostly calls of torch. So from the 17th on, a tensor that is contiguous, all of its
storage, and needs no gradient is described by its dtype, its shape and the handle of its block alone:

    rebuild_tensors(handles, each preceded by its opcode, dtype or dtypes, shape or shapes)

All other tensors are pickled as in tensor.py. Each storage still has a block of its own: one that is dropped gives its
memory back, and no tensor keeps the memory of others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mp_core._native import beside, find, rebuild_block, reduce_block
from mp_core._pickling import MANY, TABLES
from mp_core.block import Block
from mp_torch import data_loader
from mp_torch.storage import is_known, place_of, remember
from mp_torch.tensor import rebuild_whole, reduce_tensor

__all__ = ["TensorTable", "rebuild_tensors"]

_strided = torch.strided
_tensor = torch.Tensor
_frombuffer = torch.frombuffer
_find = find
#: pickle's opcode for short bytes and the length of a handle: the blocks of a message that fails are found by it.
_OPCODE, _STEP = b"C\x38", 58


def _block_of(tensor: Any) -> Block | None:
    """Return the block of a tensor for a table, after moving its storage there; None if it has to be pickled."""
    if (
        type(tensor) is not _tensor
        or tensor.requires_grad
        or not tensor.is_cpu
        or tensor.layout is not _strided
        or tensor.is_nested
        or tensor.is_quantized
        or tensor.is_neg()
        or tensor.is_conj()
        or not tensor.is_contiguous()
    ):
        return None
    storage = tensor.untyped_storage()
    nbytes = storage.nbytes()
    if not nbytes or tensor.nbytes != nbytes:
        return None
    address = storage.data_ptr()
    block = _find(Block, address)
    if type(block) is not Block:
        place = place_of(storage)  # it moves the storage, or leaves it to torch
        return place[0] if place is not None else None
    if block._address != address or block.nbytes != nbytes:
        return None
    remember(storage, address)
    return block


class TensorTable:
    """The table of one message."""

    __slots__ = ("_alike", "_blocks", "_dtypes", "_left", "_number", "_shapes", "count")

    def __init__(self, number: int) -> None:
        self._number, self._left, self.count, self._alike = number, 0, 0, True
        self._blocks: list[Block] = []
        self._dtypes: list[Any] = []
        self._shapes: list[Any] = []

    def reduce(self, tensor: Any) -> Any:
        """Reduce a tensor to its number in the table, if it can be there."""
        if self._left < MANY:
            self._left += 1
            return reduce_tensor(tensor)
        try:
            block = _block_of(tensor)
        except (MemoryError, OSError):
            block = None
        if block is None:
            return reduce_tensor(tensor)
        self._add(block, tensor)
        return beside, ((self.count - 1) * TABLES + self._number,)

    def take_list(self, tensors: list[Any]) -> bool:
        """Become that list; False if one of its objects is no tensor for the table."""
        if type(tensors[0]) is not _tensor:
            return False
        tensors = list(tensors)
        if len(set(map(id, tensors))) != len(tensors):
            return False
        try:
            blocks: list[Any] = list(map(_block_of, tensors))
        except (MemoryError, OSError):
            return False
        if None in blocks:
            return False
        self._blocks, self.count = blocks, len(blocks)
        self._dtypes = [tensor.dtype for tensor in tensors]
        self._shapes = [tensor.shape for tensor in tensors]
        dtype, shape = self._dtypes[0], self._shapes[0]
        self._alike = all(each is dtype for each in self._dtypes) and all(each == shape for each in self._shapes)
        return True

    def _add(self, block: Any, tensor: Any) -> None:
        dtype, shape = tensor.dtype, tensor.shape
        if self.count and (dtype is not self._dtypes[-1] or shape != self._shapes[-1]):
            self._alike = False
        self._blocks.append(block)
        self._dtypes.append(dtype)
        self._shapes.append(shape)
        self.count += 1

    def __reduce__(self) -> tuple[Callable[..., Any], Any]:
        handles = b"".join([_OPCODE + reduce_block(block)[1][0] for block in self._blocks])
        if self._alike:
            return rebuild_tensors, (handles, self._dtypes[0], tuple(self._shapes[0]))
        return rebuild_tensors, (handles, self._dtypes, [tuple(shape) for shape in self._shapes])


def rebuild_tensors(handles: bytes, dtypes: Any, shapes: Any) -> list[Any]:
    """Rebuild the tensors of a table. A handle with less memory than its shape needs is a `ValueError`."""
    data_loader.install()
    count = len(handles) // _STEP
    if isinstance(dtypes, torch.dtype):
        dtypes = [dtypes] * count
    if isinstance(shapes, tuple):
        shapes = [shapes] * count
    if len(handles) != _STEP * count or not len(dtypes) == len(shapes) == count:
        raise ValueError(
            f"the message of tensors is damaged: {len(dtypes)} dtypes and {len(shapes)} shapes for {count}"
        )
    tensors = []
    for k, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True)):
        block = rebuild_block(handles[_STEP * k + 2 : _STEP * (k + 1)])
        address = block._address
        if is_known(address):
            tensors.append(rebuild_whole(block, dtype, shape))
            continue
        tensor = _frombuffer(block, dtype=dtype)
        remember(tensor.untyped_storage(), address)
        # A shape that needs another number of elements is a RuntimeError of torch.
        tensors.append(tensor if tensor.shape == shape else tensor.view(shape))
    return tensors


rebuild_tensors.__module__ = "mp_torch"
