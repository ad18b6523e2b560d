"""Most tensors, which are written and read in C (`native/tensor_codec.c`).

It is for tensors and Parameters that are all of their storage, contiguous, and leaves; all others come to `tensor.py`.
Each storage has a block of its own: one that is dropped gives its memory back, and no tensor keeps the memory of
others.
"""

from __future__ import annotations

from typing import Any

import torch

from mp_torch._functions import receive_tensor, setup_tensors
from mp_torch.storage import EXCHANGE
from mp_torch.tensor import reduce_tensor

#: The dtypes that DLPack keeps. It takes others for one of these: torch.uint4 for torch.uint8.
DTYPES = frozenset(
    getattr(torch, name)
    for name in (
        *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    )
)


def install() -> None:
    """Let C write and read tensors and Parameters."""
    setup_tensors(EXCHANGE, torch.Tensor, reduce_tensor, DTYPES, rebuild_one)


def rebuild_one(handle: bytes, layout: bytes) -> Any:
    """
    Rebuild the tensor of a handle. A layout with other bytes than the block has is a `ValueError`.

    C does the same where `install` was called.
    """
    return receive_tensor(handle, layout)


rebuild_one.__module__ = "mp_torch"
