"""The substitute for the compiled module where libshm does not run: torch's tensors travel by value."""

from __future__ import annotations

import errno
from typing import Any, NoReturn

from mp_core.system.errors import ReceiveError

__all__ = [
    "find_storage",
    "move_storage",
    "receive_tensor",
    "remember_storage",
    "setup_storages",
    "setup_tensors",
]


def setup_storages(*settings: Any) -> None:
    """Do nothing: no storage is moved."""


def move_storage(storage: Any, tensor: Any) -> int:
    """Return -ENOSYS: there is no shared memory."""
    return -errno.ENOSYS


def remember_storage(storage: Any, address: int) -> None:
    """Do nothing: no storage is shared."""


def find_storage(address: int, nbytes: int) -> None:
    """Return None: no storage is shared."""


def setup_tensors(*settings: Any) -> None:
    """Do nothing: pickle writes each tensor."""


def receive_tensor(handle: bytes, layout: bytes) -> NoReturn:
    """Raise a `ReceiveError`: the message is of a process that has libshm."""
    raise ReceiveError("the tensor of this message is in shared memory, which this process does not have")
