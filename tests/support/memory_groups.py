"""A control group with a limit of memory, in which a program is killed when it needs more."""

from __future__ import annotations

import time
from pathlib import Path


def remove_group(group: Path) -> None:
    """Remove the group once its last process has ended: helpers of multiprocessing end shortly after the program."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
