"""The private memory of this process."""

from __future__ import annotations

import os

__all__ = ["private_bytes"]

_PAGE = os.sysconf("SC_PAGE_SIZE")


def private_bytes() -> int:
    """
    Return how many bytes of memory are resident and not shared with other processes.
    """
    try:
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE
