"""The substitutes, without libshm, for what handles many objects of a message at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from mp_core.system.errors import ReceiveError

__all__ = [
    "ObjectTable",
    "ReducerTable",
    "message_exhausted",
    "out_of_band",
    "pack_arrow",
    "setup_reducer_table",
    "unpack_arrow",
]


class ObjectTable:
    """A table that no object goes into: all are left to pickle."""

    def __init__(self, reducers: dict[type, Any]) -> None:
        pass

    def written(self) -> None:
        """Return None: there are no objects."""


_missing: Callable[[Any, type], Any]


class ReducerTable(dict[type, Any]):
    """A table {class: reducer} that finds reducers for further classes."""

    def __missing__(self, kind: type) -> Any:
        return _missing(self, kind)


def setup_reducer_table(without: dict[int, Any], missing: Callable[[Any, type], Any]) -> None:
    """Set the function that finds them."""
    global _missing
    _missing = missing


def message_exhausted() -> None:
    """Do nothing: each array is tried."""


def out_of_band(number: int) -> NoReturn:
    """Raise a ValueError: no message has out-of-band objects here."""
    raise ValueError(f"the message is damaged: it has no object number {number}")


def pack_arrow(stream: Any, least: int) -> None:
    """Return None: the table travels by its own pickle."""


def unpack_arrow(layout: bytes, memory: Any) -> NoReturn:
    """Raise a `ReceiveError`: the message is of a process that has libshm."""
    raise ReceiveError("the table of this message needs libshm, which this process does not have")
