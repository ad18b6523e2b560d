"""The substitutes, without the engine, for the functions that handle many objects of a message at once."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, NoReturn

from mp_core.errors import ReceiveError

__all__ = [
    "beside",
    "copies_of",
    "describe_tensors",
    "find_private",
    "handles_at",
    "receive_tensors",
    "setup_beside",
    "setup_tensors",
]


def setup_beside(loads: Callable[..., Any], function: Any) -> None:
    """Do nothing: no message has tables here."""


def beside(number: int) -> NoReturn:
    """Raise a ValueError: no message has tables here."""
    raise ValueError(f"the message is damaged: it has no object number {number}")


def describe_tensors(exchange: Any, kind: type, tensors: list[Any]) -> None:
    """Return None: no tensor is described, so that pickle writes each."""


def find_private(addresses: list[int], sizes: list[int]) -> list[int]:
    """Return all positions: no address is in a block."""
    return list(range(len(addresses)))


def copies_of(exchange: Any, addresses: list[int], sizes: list[int]) -> int:
    """Return -ENOSYS: there is no shared memory."""
    return -errno.ENOSYS


def handles_at(addresses: list[int]) -> NoReturn:
    """Raise an `OSError`: without shared memory nothing has a handle."""
    raise OSError(errno.ENOSYS, "no handle without shared memory")


def receive_tensors(exchange: Any, handles: bytes, layout: bytes) -> Any:
    """Return no tensors; handles are of a process that has the engine, and raise a `ReceiveError`."""
    if handles:
        raise ReceiveError("the tensors of this message are in shared memory, which this process does not have")
    return [], []


def setup_tensors(*settings: Any) -> None:
    """Do nothing: pickle writes each tensor."""
