"""The private memory of a process."""

from __future__ import annotations

import os

_PAGE = os.sysconf("SC_PAGE_SIZE")


def private_bytes(pid: int | str = "self") -> int:
    """
    Return how many bytes of memory of a process are resident and not shared with files or other processes' mappings; 0
    if that is unknown. Pages that a forked process shares with its parent are counted.
    """
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE


def private_bytes_above(limit: int, pid: int) -> int:
    """Return how many bytes of memory only that process has, if they are more than *limit*, else 0."""
    most = private_bytes(pid)
    if most <= limit:
        return 0
    # The exact number takes the kernel a walk through all pages.
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            lines = [line.split() for line in file if line.startswith(b"Private_")]
    except OSError:
        return most
    own = sum(int(line[1]) << 10 for line in lines)
    return own if own > limit else 0
