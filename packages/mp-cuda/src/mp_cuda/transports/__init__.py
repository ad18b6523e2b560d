"""How another process comes to memory: a module for each way, with `export`, `open` and `close`."""

from __future__ import annotations

import importlib
from typing import Any, Protocol, cast

from mp_cuda.pointer import Extent

__all__ = ["Transport", "of", "suited"]


class Transport(Protocol):
    """What each module here has."""

    def export(self, extent: Extent) -> tuple[bytes, Any]:
        """(handle, what else the receiver needs) of an allocation."""

    def open(self, device: int, handle: bytes, extra: Any) -> tuple[int, Any]:
        """(pointer here, what `close` needs); the context of *device* is current."""

    def skip(self, extra: Any) -> None:
        """What *extra* holds is not needed: the memory is open already."""

    def close(self, ptr: int, state: Any) -> None:
        """Give back what `open` returned; the context is current and the device idle."""


_NAMES = ("handle", "pool")


def of(name: str) -> Transport:
    """The transport that a message names. `ValueError` when there is none of that name."""
    if name not in _NAMES:
        raise ValueError(f"the message of a device array is damaged: no transport is called {name!r}")
    return cast(Transport, importlib.import_module(f"mp_cuda.transports.{name}"))


def suited(extent: Extent) -> str | None:
    """The name of the transport for memory like this; None when there is none."""
    if extent.managed or extent.host:
        return None
    if extent.legacy:
        return "handle"
    return "pool" if extent.pool and extent.pool_exportable else None
