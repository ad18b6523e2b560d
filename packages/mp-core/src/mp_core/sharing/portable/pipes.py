"""The substitutes, without libshm, for channels: no connection has a ring."""

from __future__ import annotations

import errno
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pickle import DEFAULT_PROTOCOL, dumps
from typing import Any

__all__ = [
    "Channel",
    "channel_count",
    "channels_refused",
    "make_channel",
    "only_atoms",
    "open_channel",
    "plain_data",
    "plain_loads",
    "plain_pickle",
    "setup_channels",
]

PROTOCOL = max(4, DEFAULT_PROTOCOL)


class Channel:
    """The base of a connection with a ring; none can be made."""

    __slots__ = ()


_refused = 0


def make_channel(kind: type, duplex: bool, lazy: bool) -> int:
    """Return the error number of a system without rings."""
    global _refused
    _refused += 2
    return -errno.ENOSYS


def open_channel(kind: type, fd: int, memory: int, side: int, readable: bool, writable: bool) -> int:
    """Return the error number of a system without rings."""
    return -errno.ENOSYS


def channel_count() -> int:
    """Return 0."""
    return 0


def channels_refused() -> int:
    """Return the number of ends that were to have a ring."""
    return _refused


def only_atoms(on: bool) -> None:
    """Do nothing: the standard pickler pickles all objects."""


def plain_loads(data: bytes) -> Any:
    """Return the object of a message."""
    return ForkingPickler.loads(data)


# A pickler of multiprocessing takes several microseconds to make; these need none, wherever they are sent.
_ATOMS = frozenset({int, float, str, bytes, bool, complex, type(None)})
_LARGEST = 1 << 16
_FEW = 16


def plain_data(obj: Any) -> bytes | None:
    """Return the pickle of a number, a short text or bytes, or of a short list, tuple or dict of these; else None."""
    kind = type(obj)
    if kind in _ATOMS:
        if kind in _SIZED and len(obj) > _LARGEST:
            return None
    elif kind is tuple or kind is list:
        if len(obj) > _FEW or not all(type(each) in _ATOMS for each in obj):
            return None
    elif kind is not dict or len(obj) > _FEW or not _has_atoms(obj):
        return None
    data = dumps(obj, PROTOCOL)
    return data if len(data) <= _LARGEST + 100 else None


_SIZED = (str, bytes)


def _has_atoms(items: dict[Any, Any]) -> bool:
    return all(type(key) in _ATOMS and type(value) in _ATOMS for key, value in items.items())


def plain_pickle(obj: Any) -> bytes | None:
    """Return the same: the standard pickler pickles all objects with memory."""
    return plain_data(obj)


def setup_channels(connection: type, find_out: Callable[..., Any], is_finalizing: Callable[[], bool]) -> None:
    """Do nothing."""
