"""The table of the tensors of one message, which travels beside its pickle (mp_core.pickling, Note [Tables]).

Note [Tensors in a table]
-------------------------
A message with many tensors costs mostly calls of torch. So from the 17th on, tensors go into a table, and those that
are contiguous, all of their storage, and need no gradient are described by layout and handle alone:

    rebuild_tensors(handles, layouts, [(position, another tensor)])

They are collected while the message is pickled, and handled together at its end, in C (`native/tensors.c`).
Those that do not fit are pickled as in tensor.py.

Each storage still has a block of its own: one that is dropped gives its memory back, and no tensor keeps the memory of
others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mp_core.native import beside
from mp_core.pickling import TABLES
from mp_torch._functions import pack_tensors, receive_tensors
from mp_torch.tensor import reduce_tensor

__all__ = ["TensorTable", "rebuild_tensors"]

#: The tensors of a message that are left to pickle, before the table is used.
FEW = 16

_strided = torch.strided


class TensorTable:
    """The table of one message."""

    __slots__ = ("_left", "_number", "_tensors")

    def __init__(self, number: int) -> None:
        self._number, self._left = number, 0
        self._tensors: list[Any] = []

    @property
    def count(self) -> int:
        """The number of tensors in it."""
        return len(self._tensors)

    def reduce(self, tensor: Any) -> Any:
        """Reduce a tensor to its number in the table."""
        if self._left < FEW:
            self._left += 1
            return reduce_tensor(tensor)
        if not tensor.is_cpu or tensor.layout is not _strided or tensor.requires_grad or tensor.is_quantized:
            return reduce_tensor(tensor)  # its pickle may contain objects that the message has elsewhere, too
        self._tensors.append(tensor)
        return beside, ((len(self._tensors) - 1) * TABLES + self._number,)

    def take_list(self, tensors: list[Any]) -> bool:
        """Become that list; False if one of its objects is no tensor, or occurs twice."""
        tensors = list(tensors)
        if set(map(type, tensors)) != {torch.Tensor} or len(set(map(id, tensors))) != len(tensors):
            return False
        self._tensors = tensors
        return True

    def __reduce__(self) -> tuple[Callable[..., Any], Any]:
        handles, layout, others = pack_tensors(self._tensors)
        return rebuild_tensors, (handles, layout, [(k, self._tensors[k]) for k in others])


def rebuild_tensors(handles: bytes, layout: bytes, others: list[tuple[int, Any]]) -> list[Any]:
    """Rebuild the tensors of a table. A handle with other memory than its shape needs is a `ValueError`."""
    tensors: list[Any] = receive_tensors(handles, layout)
    for k, tensor in others:
        tensors.insert(k, tensor)
    return tensors


rebuild_tensors.__module__ = "mp_torch"
