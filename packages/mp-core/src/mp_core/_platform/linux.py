"""Linux without the engine, for tests and to try a program as it runs on macOS and Windows."""

from __future__ import annotations

from pathlib import Path

from mp_core._platform.posix import peer

__all__ = ["NAME", "get_thread_name", "peer", "set_thread_name"]

NAME = "Linux"
_OWN = Path("/proc/thread-self/comm")


def set_thread_name(name: bytes) -> None:
    """Name the calling thread; the kernel keeps 15 bytes."""
    _OWN.write_bytes(name)


def get_thread_name() -> bytes:
    """Return the kernel's name of the calling thread."""
    return _OWN.read_bytes().removesuffix(b"\n")
