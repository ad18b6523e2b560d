"""Windows. Its libraries are called through ctypes, so that no compiler is needed to install."""

from __future__ import annotations

import ctypes
import socket
from typing import Any

__all__ = ["NAME", "get_thread_name", "peer", "set_thread_name"]

NAME = "Windows"


def _kernel32() -> Any:
    library = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    library.GetCurrentThread.restype = ctypes.c_void_p
    return library


def set_thread_name(name: bytes) -> None:
    """Name the calling thread; Windows 10 keeps it."""
    library = _kernel32()
    text = ctypes.c_wchar_p(name.decode(errors="replace"))
    _check(library.SetThreadDescription(ctypes.c_void_p(library.GetCurrentThread()), text), "set_thread_name")


def get_thread_name() -> bytes:
    """Return the name of the calling thread."""
    library = _kernel32()
    text = ctypes.c_wchar_p()
    thread = ctypes.c_void_p(library.GetCurrentThread())
    _check(library.GetThreadDescription(thread, ctypes.byref(text)), "get_thread_name")
    try:
        return (text.value or "").encode()
    finally:
        library.LocalFree(text)


def _check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(f"{what} failed with {result & 0xFFFFFFFF:#x}")


def peer(fd: int) -> tuple[int, int]:
    """Return the address family of a `Connection`: a socket of a network. A pipe is of another class on Windows."""
    return socket.AF_INET, 0
