"""The end of a process, or its stop, as others see it."""

from __future__ import annotations

import os
from pathlib import Path


def ended(pid: int) -> bool:
    """
    Return whether the process has ended: it has closed its files and lost its locks, and may still be a zombie.

    Its first thread may be a zombie before the last one has ended, and only with that one go files and locks.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        return state in "ZX" and len(os.listdir(f"/proc/{pid}/task")) == 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def stopped(pid: int) -> bool:
    """Return whether each thread of the process is stopped."""
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(stat.read_text(errors="replace").rpartition(")")[2].split()[0] in "Tt" for stat in threads)
