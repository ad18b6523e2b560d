"""The control groups of this process, and the processors that they and its affinity grant it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from mp_core.system.kernel_files import lines_of_kernel_file, read_kernel_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    Path = str | os.PathLike[str]

ROOT, OWN = "/sys/fs/cgroup", "/proc/self/cgroup"
NO_LIMIT = 1 << 60  # version 1 writes "none" as a number larger than any memory


def control_groups(root: Path = ROOT, own: Path = OWN) -> Iterator[tuple[str, str]]:
    """
    Yield a controller and a folder for each control group of this process, the nearest first. Version 1 has a hierarchy
    for each controller, in a folder of its own; version 2 has one for all, "", alone or in the folder ``unified``.
    """
    for line in lines_of_kernel_file(own):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mounts = [("", os.fspath(root)), ("", os.path.join(root, "unified"))]
        else:
            mounts = [(controller, os.path.join(root, controller)) for controller in controllers.split(",")]
        for controller, mount in mounts:
            for folder in _levels(mount, path):
                yield controller, folder


def _levels(mount: str, path: str) -> Iterator[str]:
    """Yield the folder of a group and those above it, up to *mount*. A container may have only the latter."""
    parts = [part for part in path.split("/") if part]
    if ".." in parts or not os.path.isdir(os.path.join(mount, *parts)):
        parts = []
    for count in range(len(parts), -1, -1):
        yield os.path.join(mount, *parts[:count])


def limit_of(folder: Path, *names: str) -> int | None:
    """Return the limit in the first of these files of a group that has a number; None if it has none."""
    for name in names:
        text = read_kernel_file(os.path.join(folder, name))
        if text.isdigit():
            return int(text) if int(text) < NO_LIMIT else None
    return None


def memory_left(root: Path = ROOT, own: Path = OWN, meminfo: Path = "/proc/meminfo") -> float:
    """
    Return how many bytes the control groups of this process have left, and swap with them; infinity without a limit.

    Beyond that, the kernel kills a process of the group. Page cache and the like count as left.
    """
    least = math.inf
    for controller, folder in control_groups(root, own):
        limit = limit_of(folder, "memory.max", "memory.limit_in_bytes") if controller in ("", "memory") else None
        if limit is not None:
            least = min(least, max(0, limit - _used(folder)))
    return least + _swap(meminfo)


def _used(folder: Path) -> int:
    """Return the bytes that a group uses, but for what the kernel frees when memory is short."""
    number, prefix = read_kernel_file(os.path.join(folder, "memory.current")), ""
    if not number:  # version 1
        number, prefix = read_kernel_file(os.path.join(folder, "memory.usage_in_bytes")), "total_"
    cache = {f"{prefix}active_file", f"{prefix}inactive_file", "slab_reclaimable"}
    lines = (line.split() for line in lines_of_kernel_file(os.path.join(folder, "memory.stat")))
    return int(number or 0) - sum(int(words[1]) for words in lines if words[0] in cache)


def _swap(meminfo: Path) -> int:
    lines = (line.split() for line in lines_of_kernel_file(meminfo))
    return next((int(words[1]) << 10 for words in lines if words[0] == "SwapFree:"), 0)


def quota(root: Path = ROOT, own: Path = OWN) -> float:
    """Return how many processors' time the control groups grant this process; infinity without a limit."""
    least = math.inf
    for controller, folder in control_groups(root, own):
        if controller == "":
            time, _, period = read_kernel_file(os.path.join(folder, "cpu.max")).partition(" ")
        elif controller == "cpu":
            time, period = (
                read_kernel_file(os.path.join(folder, f"cpu.cfs_{name}_us")) for name in ("quota", "period")
            )
        else:
            continue
        if time.isdigit() and period.isdigit() and int(period) > 0:
            least = min(least, int(time) / int(period))
    return least


def processors() -> float:
    """Return how many processors this process may use at a time."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(count, quota())
