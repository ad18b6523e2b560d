"""The substitutes, without libshm, for the functions that handle many objects of a message at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from mp_core.errors import ReceiveError

__all__ = [
    "beside",
    "pack_arrow",
    "setup_beside",
    "unpack_arrow",
]


def setup_beside(loads: Callable[..., Any], function: Any) -> None:
    """Do nothing: no message has tables here."""


def beside(number: int) -> NoReturn:
    """Raise a ValueError: no message has tables here."""
    raise ValueError(f"the message is damaged: it has no object number {number}")


def pack_arrow(stream: Any, least: int) -> None:
    """Return None: the table travels by its own pickle."""


def unpack_arrow(layout: bytes, memory: Any) -> NoReturn:
    """Raise a `ReceiveError`: the message is of a process that has libshm."""
    raise ReceiveError("the table of this message needs libshm, which this process does not have")
