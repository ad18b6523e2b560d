"""In a notebook: what a worker prints appears under the running cell, line by line.

A kernel of Jupyter has two ways to a cell. Its `sys.stdout` sends each piece of text as a message, and a forked child
has a copy of it that belongs to the cell in which it was forked. Its descriptors 1 and 2 are pipes that a thread reads
for the cell that runs now. So a worker writes whole lines to the descriptors.
"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def is_notebook() -> bool:
    """Tell whether this process is a kernel that reads its descriptors 1 and 2."""
    return getattr(sys.stdout, "watch_fd_thread", None) is not None


def print_whole_lines() -> None:
    """Have this worker of a notebook print by its descriptors, a line at a time."""
    for number, name in enumerate(("stdout", "stderr"), 1):
        stream: Any = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)
        else:
            setattr(sys, name, os.fdopen(number, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False))
