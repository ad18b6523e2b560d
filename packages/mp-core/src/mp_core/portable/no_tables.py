"""The substitutes, without libshm, for what handles many objects of a message at once."""

from __future__ import annotations

from typing import Any, NoReturn

from mp_core.errors import ReceiveError

__all__ = [
    "ObjectTable",
    "beside",
    "pack_arrow",
    "unpack_arrow",
]


class ObjectTable:
    """A table that no object goes into: all are left to pickle."""

    def __init__(self, reducers: dict[type, Any]) -> None:
        pass

    def written(self) -> None:
        """Return None: there are no objects."""


def beside(number: int) -> NoReturn:
    """Raise a ValueError: no message has objects beside its pickle here."""
    raise ValueError(f"the message is damaged: it has no object number {number}")


def pack_arrow(stream: Any, least: int) -> None:
    """Return None: the table travels by its own pickle."""


def unpack_arrow(layout: bytes, memory: Any) -> NoReturn:
    """Raise a `ReceiveError`: the message is of a process that has libshm."""
    raise ReceiveError("the table of this message needs libshm, which this process does not have")
