"""Storages of torch in blocks: moved there in place, recognised, and rebuilt over a block that was received.

They are moved and found in C (`native/storages.c`, Notes [Moving a storage] and [One storage for one address]).
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from mp_core.memory.block import Block, allocate, block_at, error_of
from mp_core.sharing.backend import by_value
from mp_core.system.errors import warn_sent_by_value
from mp_torch import _functions

#: A block, and the first byte and the number of bytes of a storage in it.
Place = tuple[Block, int, int]

_uint8 = torch.uint8
_frombuffer = torch.frombuffer
#: torch's C functions for DLPack, since torch 2.10.
EXCHANGE: Any = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
_count_users: Any = getattr(torch._C, "_storage_Use_Count", None)


def can_move() -> bool:
    """Return whether this torch can exchange the memory of two storages, and make a tensor over memory from C."""
    can_swap = EXCHANGE is not None and hasattr(torch.UntypedStorage, "_swap_data_ptr_")
    return can_swap and _count_users is not None and hasattr(torch.Tensor, "_use_count")


def rebuild_storage(block: Block, offset: int, nbytes: int) -> Any:
    """Return the storage over these bytes of *block*; reaching beyond them is a `ValueError`."""
    address = block.address + offset
    storage = _functions.find_storage(address, nbytes)
    if storage is not None:
        return storage
    if offset < 0 or nbytes <= 0 or offset + nbytes > block.nbytes:
        raise ValueError(f"the handle of a storage is damaged: {nbytes} bytes at {offset} of {block.nbytes}")
    storage = _frombuffer(block, dtype=_uint8, count=nbytes, offset=offset).untyped_storage()
    _functions.remember_storage(storage, address)
    return storage


rebuild_storage.__module__ = "mp_torch"  # messages name it


# ---- moving ----------------------------------------------------------------------------------------------------------


def place_of(storage: Any, tensor: Any = None) -> Place | None:
    """
    Return the place of a storage on the CPU, after moving it into a block; None if torch has to send it.

    If its tensor is known, the memory of before need not be kept for others (`native/storages.c`, Note [The memory
    before]). It raises the errors of `Block`.
    """
    nbytes = storage.nbytes()
    block = block_at(storage.data_ptr())
    if block is None:
        moved = _functions.move_storage(storage, tensor)
        if moved < 0:
            raise error_of(-moved, nbytes)
        block = block_at(storage.data_ptr())
        if block is None:
            return None  # it is empty, or torch shares it
    address = storage.data_ptr()
    offset = address - block.address
    if offset + nbytes > block.nbytes:
        return None
    _functions.remember_storage(storage, address)
    return block, offset, nbytes


def reduce_storage(storage: Any) -> Any:
    if storage.device.type == "cpu":
        if by_value() or not storage.nbytes():
            return _by_value(storage)
        try:
            place = place_of(storage)
        except (MemoryError, OSError) as error:
            warn_sent_by_value("a tensor", storage.nbytes(), error)
            return _by_value(storage)
        if place is not None:
            return rebuild_storage, place
    return torch.multiprocessing.reductions.reduce_storage(storage)


def _by_value(storage: Any) -> Any:
    """Reduce a storage to its bytes; a receiver without this package can load them. torch's own pickle cannot."""
    rebuild = functools.partial(torch.UntypedStorage.from_buffer, dtype=_uint8)
    nbytes = storage.nbytes()
    if not nbytes:
        return torch.UntypedStorage, (0,)
    return rebuild, (ctypes.string_at(storage.data_ptr(), nbytes),)


# ---- methods of torch.UntypedStorage ---------------------------------------------------------------------------------


def shared_by_torch(storage: Any) -> bool:
    shared: bool = _torchs["is_shared"](storage)
    return shared


def _is_shared(storage: Any) -> bool:
    """Return whether the storage is in shared memory, of torch or of mp_torch."""
    return shared_by_torch(storage) or (
        storage.device.type == "cpu" and bool(storage.nbytes()) and block_at(storage.data_ptr()) is not None
    )


def _share_memory_(storage: Any, *args: Any, **kwargs: Any) -> Any:
    """Move the storage into shared memory, in place; do nothing if it is there, or on a device."""
    if storage.device.type == "cpu":
        if storage.nbytes():
            place_of(storage)
        return storage
    return _torchs["share_memory_"](storage, *args, **kwargs)


def _new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
    """
    Make a storage in shared memory; its content is undefined.

    DataLoader workers collate into it, so the block that a consumer has dropped is used again, with its pages warm.
    """
    if torch.device(device).type != "cpu":
        return _torchs["_new_shared"](cls, size, device=device)
    if not size:
        return cls(0)
    try:
        return rebuild_storage(allocate(size, zeroed=False), 0, size)
    except (MemoryError, OSError) as error:
        warn_sent_by_value("a tensor", size, error)
        return cls(size)


def _share_tensors_memory_(tensor: Any) -> Any:
    """Move the tensor's storage into shared memory, in place; do nothing if it is there, or on a device."""
    if not tensor.is_cpu or tensor.layout is not torch.strided or torch.overrides.has_torch_function_unary(tensor):
        return _torchs["tensor.share_memory_"](tensor)
    storage = tensor.untyped_storage()
    if storage.nbytes():
        place_of(storage, tensor)
    return tensor


_torchs: dict[str, Any] = {}


def install() -> None:
    """Replace the methods of torch that make, move or recognise shared memory."""
    kind: Any = torch.UntypedStorage
    if _torchs:
        return
    _torchs.update(is_shared=kind.is_shared, share_memory_=kind.share_memory_, _new_shared=kind._new_shared.__func__)
    _torchs["tensor.share_memory_"] = torch.Tensor.share_memory_
    torch.Tensor.share_memory_ = _share_tensors_memory_
    kind.is_shared = _is_shared
    kind.share_memory_ = _share_memory_
    kind._new_shared = classmethod(_new_shared)


def _adopt(tensor: Any, storage: Any) -> None:
    """Give a tensor that has arrived the storage that this process has for the same memory."""
    tensor.set_(storage, 0, tensor.shape)


if can_move():  # here, because a process that has not called install() also receives tensors
    _functions.setup_storages(
        EXCHANGE, torch.Tensor, torch.UntypedStorage, torch.UntypedStorage.is_shared, _adopt, _count_users
    )
