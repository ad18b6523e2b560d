"""The kernel's out-of-memory counters, and the private memory of this process."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["OomCounter", "private_bytes"]

_PAGE = os.sysconf("SC_PAGE_SIZE")


class OomCounter:
    """
    Tells whether the kernel has killed a process for lack of memory since the last call.

    The count is that of this process's control group. Without a group it is that of the machine, so that the killed
    process may be an unrelated one.
    """

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> None:
        self._files = [*_group_files(root, own), Path("/proc/vmstat")]
        self._count = self._read()

    def _read(self) -> int:
        for file in self._files:
            try:
                found = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
            except OSError:
                continue
            if found:
                return int(found[1])
        return 0

    def increased(self) -> bool:
        """Tell whether the count is higher than at the last call."""
        before, self._count = self._count, self._read()
        return self._count > before


def _group_files(root: Path, own: Path) -> list[Path]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    files = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            # In a container the path may be that of the host; the container's own group is then the root.
            files += [root / path.lstrip("/") / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            files += [root / "memory" / path.lstrip("/") / "memory.oom_control", root / "memory" / "memory.oom_control"]
    return files


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
