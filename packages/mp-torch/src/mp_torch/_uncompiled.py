"""The substitute for the compiled module where libshm does not run: torch's tensors travel by value."""

from __future__ import annotations

import errno
from typing import Any

from mp_core.errors import ReceiveError

__all__ = [
    "find_storage",
    "move_storage",
    "pack_tensors",
    "receive_tensors",
    "remember_storage",
    "setup_storages",
    "setup_tensors",
]


def setup_storages(*settings: Any) -> None:
    """Do nothing: no storage is moved."""


def move_storage(storage: Any) -> int:
    """Return -ENOSYS: there is no shared memory."""
    return -errno.ENOSYS


def remember_storage(storage: Any, address: int) -> None:
    """Do nothing: no storage is shared."""


def find_storage(address: int, nbytes: int) -> None:
    """Return None: no storage is shared."""


def setup_tensors(*settings: Any) -> None:
    """Do nothing: pickle writes each tensor."""


def pack_tensors(tensors: list[Any]) -> tuple[bytes, bytes, list[int]]:
    """Return the positions of all: pickle writes each tensor."""
    return b"", b"", list(range(len(tensors)))


def receive_tensors(handles: bytes, layouts: bytes) -> list[Any]:
    """Return no tensors; handles are of a process that has libshm, and raise a `ReceiveError`."""
    if handles:
        raise ReceiveError("the tensors of this message are in shared memory, which this process does not have")
    return []
