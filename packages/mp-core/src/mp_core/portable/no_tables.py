"""The substitutes, without libshm, for the functions that handle many objects of a message at once."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, NoReturn

from mp_core.errors import ReceiveError

__all__ = [
    "beside",
    "find_storage",
    "move_storage",
    "pack_arrow",
    "pack_tensors",
    "receive_tensors",
    "remember_storage",
    "setup_beside",
    "setup_storages",
    "setup_tensors",
    "unpack_arrow",
]


def setup_beside(loads: Callable[..., Any], function: Any) -> None:
    """Do nothing: no message has tables here."""


def beside(number: int) -> NoReturn:
    """Raise a ValueError: no message has tables here."""
    raise ValueError(f"the message is damaged: it has no object number {number}")


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


def pack_arrow(stream: Any, least: int) -> None:
    """Return None: the table travels by its own pickle."""


def unpack_arrow(layout: bytes, memory: Any) -> NoReturn:
    """Raise a `ReceiveError`: the message is of a process that has libshm."""
    raise ReceiveError("the table of this message needs libshm, which this process does not have")


def pack_tensors(tensors: list[Any]) -> tuple[bytes, bytes, list[int]]:
    """Return the positions of all: pickle writes each tensor."""
    return b"", b"", list(range(len(tensors)))


def receive_tensors(handles: bytes, layout: bytes) -> list[Any]:
    """Return no tensors; handles are of a process that has libshm, and raise a `ReceiveError`."""
    if handles:
        raise ReceiveError("the tensors of this message are in shared memory, which this process does not have")
    return []
