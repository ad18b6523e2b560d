"""The table of the tensors of one message, which travels beside its pickle (mp_core._pickling, Note [Tables]).

Note [Tensors in a table]
-------------------------
A message with many tensors costs mostly calls of torch. So from the 17th on, tensors go into a table, and those that
are contiguous, all of their storage, and need no gradient are described by layout and handle alone:

    rebuild_tensors(handles, layouts, [(position, another tensor)])

They are collected while the message is pickled, and handled together at its end: moved, described, and later made again
by a few calls for all of them. DLPack's exchange reads and makes tensors (mp-core's native/dlpack.c); what it does not
know of them is asked by `map` over methods of torch, which needs no bytecode. If one does not fit, each is asked, and
those that do not fit are pickled as in tensor.py.

Each storage still has a block of its own: one that is dropped gives its memory back, and no tensor keeps the memory of
others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mp_core._native import beside, describe_tensors, handles_at, receive_tensors
from mp_core._pickling import TABLES
from mp_torch import data_loader
from mp_torch.storage import move_all, remember_all
from mp_torch.tensor import reduce_tensor

__all__ = ["EXCHANGE", "TensorTable", "rebuild_tensors"]

#: torch's functions for DLPack, since torch 2.10.
EXCHANGE: Any = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
#: The dtypes that DLPack keeps. It takes others for one of these: torch.uint4 for torch.uint8.
DTYPES = frozenset(
    getattr(torch, name)
    for name in (
        *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    )
)
_COMPLEX = frozenset({torch.complex64, torch.complex128})
#: The tensors of a message that are left to pickle, before the table is used.
FEW = 16

_strided = torch.strided
_tensor: Any = torch.Tensor
_storage: Any = torch.UntypedStorage
_dtype, _requires_grad = _tensor.dtype.__get__, _tensor.requires_grad.__get__


def _describe(tensors: list[Any]) -> tuple[bytes, list[int], list[int], list[Any]] | None:
    """Return layout, addresses, sizes and storages; None if one of the tensors does not fit."""
    described = describe_tensors(EXCHANGE, _tensor, tensors)
    if described is None:
        return None
    layout, addresses, sizes = described
    dtypes = set(map(_dtype, tensors))
    if (
        not dtypes <= DTYPES
        or any(map(_requires_grad, tensors))
        or any(map(_tensor.is_neg, tensors))
        or (dtypes & _COMPLEX and any(map(_tensor.is_conj, tensors)))
    ):
        return None
    storages = list(map(_tensor.untyped_storage, tensors))
    if list(map(_storage.nbytes, storages)) != sizes or list(map(_storage.data_ptr, storages)) != addresses:
        return None
    return layout, addresses, sizes, storages


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
        if set(map(type, tensors)) != {_tensor} or len(set(map(id, tensors))) != len(tensors):
            return False
        self._tensors = tensors
        return True

    def __reduce__(self) -> tuple[Callable[..., Any], Any]:
        tensors, others = self._tensors, []
        packed = _packed(tensors)
        if packed is None:
            fits = [_describe([tensor]) is not None for tensor in tensors]
            packed = _packed([tensor for tensor, fit in zip(tensors, fits, strict=True) if fit])
            if packed is None:
                packed, fits = (b"", b""), [False] * len(tensors)
            others = [(k, tensor) for k, tensor in enumerate(tensors) if not fits[k]]
        return rebuild_tensors, (*packed, others)


def _packed(tensors: list[Any]) -> tuple[bytes, bytes] | None:
    """Move the storages; return handles and layout. None if a tensor does not fit, or memory ran out."""
    if not tensors:
        return b"", b""
    described = _describe(tensors)
    if described is None:
        return None
    layout, addresses, sizes, storages = described
    if not move_all(storages, addresses, sizes, EXCHANGE):
        return None
    remember_all(storages, addresses)
    return handles_at(addresses), layout


def rebuild_tensors(handles: bytes, layout: bytes, others: list[tuple[int, Any]]) -> list[Any]:
    """Rebuild the tensors of a table. A handle with other memory than its shape needs is a `ValueError`."""
    data_loader.install()
    tensors: list[Any]
    tensors, addresses = receive_tensors(EXCHANGE, handles, layout)
    for k, storage in remember_all(list(map(_tensor.untyped_storage, tensors)), addresses):
        tensors[k].set_(storage, 0, tensors[k].shape)
    for k, tensor in others:
        tensors.insert(k, tensor)
    return tensors


rebuild_tensors.__module__ = "mp_torch"
