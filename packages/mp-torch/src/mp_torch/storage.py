"""Storages of torch in blocks: moved there in place, recognised, and rebuilt over a block that was received.

Note [Moving a storage]
-----------------------
torch's `share_memory_` moves a storage in place, so that all tensors over it are shared afterwards, also views that
were made before. We do the same: allocate a block, copy the bytes, and let torch exchange the memory of the two
storages (`UntypedStorage._swap_data_ptr_`, since torch 2.12). The storage then keeps the block alive and cannot be
resized, as with torch. Memory that torch has shared itself, before the installation or from a process without it, has
users elsewhere; it is not moved, and torch sends it.

As with torch, a thread that writes to a tensor while another one moves it may lose the write. Two threads that send
one tensor would move it twice, and the first receiver would keep memory that nobody else has; `_moving` prevents that.
If a process forks while a thread moves a storage, the child's copy of the storage is still private, and the child gets
a new lock. If the process is killed there, the block is freed like all its blocks.

Note [One storage for one address]
----------------------------------
A storage that arrives twice, or comes back to the process that sent it, is one storage object for torch. `_known` maps
the address of a storage to a weak reference. A storage keeps its block, so the address of a live one cannot be reused.
A weak reference is a bare pointer, which must be used and freed under `_registry`.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import os
import threading
from collections.abc import Iterable
from typing import Any

import torch

from mp_core import _native
from mp_core._native import by_value
from mp_core.block import Block, allocate, block_at, copy_in
from mp_core.errors import SharedMemoryWarning, warn_user

__all__ = [
    "Place",
    "can_move",
    "install",
    "is_known",
    "move_all",
    "place_of",
    "rebuild_storage",
    "reduce_storage",
    "remember_all",
    "remember_arrived",
    "shared_by_torch",
    "storage_over",
]

#: A block, and the first byte and the number of bytes of a storage in it.
Place = tuple[Block, int, int]

_uint8 = torch.uint8
_frombuffer = torch.frombuffer
_moving = threading.Lock()
_registry = threading.RLock()  # a finalizer may send a tensor while the thread has it


def _after_fork() -> None:
    global _moving, _registry
    _moving, _registry = threading.Lock(), threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def can_move() -> bool:
    """Return whether this torch can exchange the memory of two storages."""
    return hasattr(torch.UntypedStorage, "_swap_data_ptr_")


# ---- one storage for one address -------------------------------------------------------------------------------------

_known: dict[int, int] = {}
_limit = 128
_storage: Any = torch.UntypedStorage
_cdata = operator.attrgetter("_cdata")


def remember(storage: Any, address: int) -> None:
    """Let later messages find the storage at *address*."""
    with _registry:
        before = _known.get(address)
        if before is not None:
            if before == storage._cdata:
                return
            _storage._free_weak_ref(before)
        _known[address] = storage._weak_ref()
        if len(_known) > _limit:
            _forget_expired()


def remember_all(storages: list[Any], addresses: list[int]) -> Iterable[tuple[int, Any]]:
    """
    Let later messages find the storages, of which each has its address.

    An address of which another storage is known keeps that one; return those with their positions.
    """
    with _registry:
        before = list(map(_known.get, addresses))
        if before == list(map(_cdata, storages)):
            return []
        gone = [reference for reference in before if reference is not None]
        if len(set(addresses)) == len(addresses) and all(map(_storage._expired, gone)):
            # As below, in fewer steps: usually no address is in use.
            for reference in gone:
                _storage._free_weak_ref(reference)
            _known.update(zip(addresses, map(_storage._weak_ref, storages), strict=True))
            others = []
        else:
            others = [
                (k, other)
                for k, (storage, address) in enumerate(zip(storages, addresses, strict=True))
                if (other := _remember_or_find(storage, address)) is not None
            ]
        if len(_known) > _limit:
            _forget_expired()
    return others


def is_known(storage: Any, address: int) -> bool:
    """Return whether later messages find this storage at *address*."""
    known: bool = _known.get(address) == storage._cdata
    return known


def remember_arrived(storage: Any, address: int) -> Any:
    """Return the other storage that is known at *address*, or remember this one and return None."""
    with _registry:
        if address not in _known and len(_known) < _limit:
            _known[address] = storage._weak_ref()
            return None
        return _remember_or_find(storage, address)


def _remember_or_find(storage: Any, address: int) -> Any:
    """Return the other storage that is known at *address*, or remember this one and return None."""
    other = _find(address, storage.nbytes())
    if other is None:
        remember(storage, address)
    return None if other is None or other._cdata == storage._cdata else other


def _forget_expired() -> None:
    global _limit
    for key, reference in list(_known.items()):
        if _storage._expired(reference):
            del _known[key]
            _storage._free_weak_ref(reference)
    _limit = max(128, 2 * len(_known))


def _find(address: int, nbytes: int) -> Any:
    """Return the storage of these bytes if it is known and alive, otherwise None."""
    with _registry:
        known = _known.get(address)
        storage = None if known is None else _storage._new_with_weak_ptr(known)
    if storage is not None and storage.nbytes() == nbytes and storage.data_ptr() == address:
        return storage
    return None


def storage_over(block: Block, offset: int, nbytes: int) -> Any:
    """Return the storage over these bytes of *block*; reaching beyond them is a `ValueError`."""
    address = block._address + offset
    storage = _find(address, nbytes)
    if storage is not None:
        return storage
    if offset < 0 or nbytes <= 0 or offset + nbytes > block.nbytes:
        raise ValueError(f"the handle of a storage is damaged: {nbytes} bytes at {offset} of {block.nbytes}")
    storage = _frombuffer(block, dtype=_uint8, count=nbytes, offset=offset).untyped_storage()
    remember(storage, address)
    return storage


# ---- moving ----------------------------------------------------------------------------------------------------------


def place_of(storage: Any) -> Place | None:
    """
    Return the place of a storage on the CPU, after moving it into a block; None if torch has to send it.

    It raises the errors of `Block`.
    """
    nbytes = storage.nbytes()
    address = storage.data_ptr()
    block = block_at(address)
    if block is None:
        if not nbytes or shared_by_torch(storage):
            return None
        with _moving:
            block = block_at(storage.data_ptr())  # another thread may have moved it meanwhile
            if block is None:
                block = _move(storage, nbytes)
        address = storage.data_ptr()
    offset = address - block._address
    if offset + nbytes > block.nbytes:
        return None
    remember(storage, address)
    return block, offset, nbytes


def _move(storage: Any, nbytes: int) -> Block:
    """Move a storage. torch's own copy would release the GIL in C++ code that a thread must not end in."""
    block = copy_in(storage.data_ptr(), nbytes)
    storage._swap_data_ptr_(_frombuffer(block, dtype=_uint8).untyped_storage())
    return block


def move_all(storages: list[Any], addresses: list[int], sizes: list[int], exchange: Any) -> bool:
    """
    Move the storages that are not in blocks, and replace their addresses in the list.

    It returns False, and has moved none, if one cannot be moved: because torch shares it, it is only a part of a block,
    two of them are over the same memory, or no shared memory is left.
    """
    with _moving:
        if list(map(_storage.data_ptr, storages)) != addresses:
            return False  # another thread has moved one meanwhile
        private = _native.find_private(addresses, sizes)
        if not private:
            return private is not None
        to_move, places = [storages[k] for k in private], [addresses[k] for k in private]
        if len(set(places)) != len(places) or any(map(shared_by_torch, to_move)):
            return False
        tensors = _native.copies_of(exchange, places, [sizes[k] for k in private])
        if isinstance(tensors, int):
            return False
        for storage, tensor in zip(to_move, tensors, strict=True):
            storage._swap_data_ptr_(tensor.untyped_storage())
    for k, storage in zip(private, to_move, strict=True):
        addresses[k] = storage.data_ptr()
    return True


def reduce_storage(storage: Any) -> Any:
    """Reduce a `torch.UntypedStorage`."""
    if storage.device.type == "cpu":
        if by_value() or not storage.nbytes():
            return _by_value(storage)
        try:
            place = place_of(storage)
        except (MemoryError, OSError) as error:
            warn_by_value(storage.nbytes(), error)
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


def rebuild_storage(block: Block, offset: int, nbytes: int) -> Any:
    """Rebuild a storage over *block*."""
    return storage_over(block, offset, nbytes)


rebuild_storage.__module__ = "mp_torch"


def warn_by_value(nbytes: int, error: Exception) -> None:
    """Warn, the first time, that *nbytes* bytes are sent by value because of *error*."""
    warn_user(
        "tensor sent by value",
        f"shared memory ran out, so a tensor of {nbytes} bytes (and maybe others) travels through the pipe, and its "
        f"receiver gets a copy: {error}",
        SharedMemoryWarning,
    )


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
        return storage_over(allocate(size, zeroed=False), 0, size)
    except (MemoryError, OSError) as error:
        warn_by_value(size, error)
        return cls(size)


_torchs: dict[str, Any] = {}


def install() -> None:
    """Replace the methods of `torch.UntypedStorage` that make, move or recognise shared memory."""
    kind: Any = torch.UntypedStorage
    if _torchs:
        return
    _torchs.update(is_shared=kind.is_shared, share_memory_=kind.share_memory_, _new_shared=kind._new_shared.__func__)
    kind.is_shared = _is_shared
    kind.share_memory_ = _share_memory_
    kind._new_shared = classmethod(_new_shared)
