"""Make `time.perf_counter` the processor time of a program and all its descendants; Python imports it from PYTHONPATH.

The programs of examples/adoption time a loop with it. On a machine that others use too, processor time says more.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Return *pid* and the processes that descend from it."""
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []  # it has ended, and its parent has its time
    return [pid, *(each for text in lists for child in text.split() for each in descendants(int(child)))]


def used(pid: int) -> float:
    """Return the processor seconds of a process and of those that it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        threads = [int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return 0.0
    waited: float = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    return waited + sum(threads) / 1e9


def processor_time() -> float:
    """Return the processor seconds of this process and its descendants, without ended threads of the descendants."""
    own = time.process_time()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    others = sum(used(pid) for pid in descendants(os.getpid())[1:])
    return own + children.ru_utime + children.ru_stime + others


time.perf_counter = processor_time
