"""Transports: the ways to open memory of another process, a module each, with `export`, `open`, `skip` and `close`."""

from __future__ import annotations

import functools
import importlib
from typing import Any, Protocol, cast

from mp_cuda.pointer import AllocationInfo

__all__ = ["NAMES", "Transport", "of", "suited"]


class Transport(Protocol):
    """The functions of each module here."""

    def export(self, allocation: AllocationInfo) -> tuple[bytes, bytes | None]:
        """Return (handle, more data for one receiver) of an allocation."""

    def open(self, device: int, handle: bytes, extra: bytes | None) -> tuple[int, Any]:
        """Return (pointer in this process, state for `close`)."""

    def skip(self, extra: bytes) -> None:
        """Discard *extra*: the memory is already open."""

    def close(self, device: int, memories: list[tuple[int, Any]]) -> tuple[int, ...]:
        """Close what `open` has returned, on an idle device. Return what the driver says of each, 0 if it is closed."""


NAMES = ("handle", "pool")
"""Messages have their positions."""


@functools.cache
def of(name: str) -> Transport:
    """Return the transport that a message names. `ValueError` if there is none of that name."""
    if name not in NAMES:
        raise ValueError(f"the message of a device array is damaged: there is no transport {name!r}")
    return cast(Transport, importlib.import_module(f"mp_cuda.transports.{name}"))


def suited(allocation: AllocationInfo) -> str | None:
    """Return the name of the transport for such memory, or None."""
    if allocation.managed or allocation.host:
        return None
    if allocation.legacy:
        return "handle"
    return "pool" if allocation.pool and allocation.pool_exportable else None
