"""Capabilities of the machine that a test needs."""

from __future__ import annotations

import ctypes
import platform

__all__ = ["has_robust_futexes", "is_emulated"]

GET_ROBUST_LIST = {"x86_64": 274, "aarch64": 100}


def has_robust_futexes() -> bool:
    """Return whether the kernel takes locks from killed processes; under qemu-user it does not know them."""
    number = GET_ROBUST_LIST.get(platform.machine())
    head, size = ctypes.c_void_p(), ctypes.c_size_t()
    libc = ctypes.CDLL(None)
    return number is None or libc.syscall(number, 0, ctypes.byref(head), ctypes.byref(size)) == 0


def is_emulated() -> bool:
    """Return whether programs run in qemu-user or the like, ten times as slow; what it lacks tells."""
    return not has_robust_futexes()
