"""Linux without the engine, for tests and to try a program as it runs on macOS and Windows."""

from __future__ import annotations

from mp_core.machine.posix import peer

__all__ = ["NAME", "get_thread_name", "peer", "set_thread_name"]

NAME = "Linux"
_OWN = "/proc/thread-self/comm"


def set_thread_name(name: bytes) -> None:
    """Name the calling thread; the kernel keeps 15 bytes."""
    with open(_OWN, "wb", buffering=0) as file:
        file.write(name + b"\0")  # or an empty name would write nothing


def get_thread_name() -> bytes:
    """Return the kernel's name of the calling thread."""
    with open(_OWN, "rb") as file:
        return file.read().removesuffix(b"\n")
