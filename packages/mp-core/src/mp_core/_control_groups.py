"""The control groups of this process, and the processors that they and its affinity grant it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["OWN", "ROOT", "control_groups", "processors", "quota", "read"]

ROOT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def control_groups(root: Path = ROOT, own: Path = OWN) -> Iterator[tuple[str, Path]]:
    """
    Yield a controller and a folder for each control group of this process, the nearest first. Version 1 has a hierarchy
    for each controller, in a folder of its own; version 2 has one for all, "", alone or in the folder ``unified``.
    """
    for line in read(own).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mounts = [("", root), ("", root / "unified")]
        else:
            mounts = [(controller, root / controller) for controller in controllers.split(",")]
        for controller, mount in mounts:
            for folder in _levels(mount, path):
                yield controller, folder


def _levels(mount: Path, path: str) -> Iterator[Path]:
    """Yield the folder of a group and those above it, up to *mount*. A container may have only the latter."""
    group = mount / path.lstrip("/")
    if ".." in group.parts or not group.is_dir():
        group = mount
    for folder in [group, *group.parents]:
        if folder != mount and mount not in folder.parents:
            return
        yield folder


def quota(root: Path = ROOT, own: Path = OWN) -> float:
    """
    Return how many processors' time the control groups grant this process; infinity without a limit.
    """
    least = math.inf
    for controller, folder in control_groups(root, own):
        if controller == "":
            time, _, period = read(folder / "cpu.max").partition(" ")
        elif controller == "cpu":
            time, period = read(folder / "cpu.cfs_quota_us"), read(folder / "cpu.cfs_period_us")
        else:
            continue
        if time.isdigit() and period.isdigit() and int(period) > 0:
            least = min(least, int(time) / int(period))
    return least


def processors() -> float:
    """
    Return how many processors this process may use at a time.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(count, quota())


def read(path: Path) -> str:
    """Return the content of a small file of the kernel, "" if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
