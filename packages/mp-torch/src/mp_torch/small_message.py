"""Tensors in small messages, which mp-core writes and reads in C (`native/tensor_pickle.c`).

It is for tensors that are all of their storage, contiguous, and need no gradient; all others come to `tensor.py`. C
asks the two functions here, once for each tensor, for what DLPack does not know.
"""

from __future__ import annotations

from typing import Any

import torch

from mp_core._native import receive_tensors, setup_tensors
from mp_torch import data_loader
from mp_torch.storage import is_known, place_of, remember_arrived
from mp_torch.table import DTYPES, EXCHANGE
from mp_torch.tensor import reduce_tensor

__all__ = ["install", "rebuild_one"]

#: Of a handle in a pickle: SHORT_BINBYTES, 56.
OPCODE = b"C8"

_storage_of = torch.Tensor.untyped_storage
_nbytes, _address = torch.UntypedStorage.nbytes, torch.UntypedStorage.data_ptr


def install() -> None:
    """Let mp-core write tensors, if this torch has DLPack's exchange."""
    if EXCHANGE is not None:
        setup_tensors(EXCHANGE, torch.Tensor, reduce_tensor, DTYPES, _ready, _arrived, rebuild_one)


def _ready(tensor: Any, address: int, nbytes: int) -> bool:
    """Move the storage of *tensor* into a block; return False if the tensor is not all of it, or it cannot be moved."""
    its = _storage_of(tensor)
    if _nbytes(its) != nbytes or _address(its) != address:
        return False
    if is_known(its, address):  # then it is in a block
        return True
    try:
        return place_of(its) is not None
    except (MemoryError, OSError):
        return False  # the reducer warns


def _arrived(tensor: Any, address: int) -> None:
    """Give a received tensor the storage that this process has for the same memory, if it has one."""
    data_loader.install()
    other = remember_arrived(_storage_of(tensor), address)
    if other is not None:
        tensor.set_(other, 0, tensor.shape)


def rebuild_one(handle: bytes, layout: bytes) -> Any:
    """
    Rebuild the tensor of a handle. A layout with other bytes than the block has is a `ValueError`.

    C does the same where `install` was called.
    """
    (tensor,), (address,) = receive_tensors(EXCHANGE, OPCODE + handle, layout)
    _arrived(tensor, address)
    return tensor


rebuild_one.__module__ = "mp_torch"
