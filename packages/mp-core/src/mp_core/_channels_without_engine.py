"""The substitutes, without the engine, for channels: no connection has a ring, all messages have the usual pickle."""

from __future__ import annotations

import errno
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

__all__ = [
    "Channel",
    "channel_count",
    "channels_refused",
    "make_channel",
    "only_atoms",
    "open_channel",
    "pickled_object",
    "plain_data",
    "plain_loads",
    "plain_pickle",
    "setup_channels",
]


class Channel:
    """The base of a connection with a ring; none can be made."""

    __slots__ = ()


def make_channel(kind: type, duplex: bool, late: bool) -> int:
    """Return the error number of a system without rings."""
    return -errno.ENOSYS


def open_channel(kind: type, fd: int, memory: int, side: int, readable: bool, writable: bool) -> int:
    """Return the error number of a system without rings."""
    return -errno.ENOSYS


def channel_count() -> int:
    """Return 0."""
    return 0


def channels_refused() -> int:
    """Return 0: no ring is made late."""
    return 0


def only_atoms(on: bool) -> None:
    """Do nothing: the standard pickler pickles all objects."""


def pickled_object(obj: object) -> Any:
    """Return the pickle of a message; it has no references."""
    return ForkingPickler.dumps(obj)


def plain_loads(data: bytes) -> Any:
    """Return the object of a message."""
    return ForkingPickler.loads(data)


def plain_data(obj: object) -> None:
    """Return None: the standard pickler pickles all objects."""


def plain_pickle(obj: object) -> None:
    """Return None: the standard pickler pickles all objects."""


def setup_channels(
    dumps: Callable[..., Any],
    protocol: int,
    pickler: type,
    connection: type,
    find_out: Callable[..., Any],
    is_finalizing: Callable[[], bool],
) -> None:
    """Do nothing."""
