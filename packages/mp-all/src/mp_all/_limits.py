"""Limits of this machine or container, each with its use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from mp_core.system.control_groups import OWN, ROOT, control_groups, limit_of
from mp_core.system.kernel_files import lines_of_kernel_file, read_kernel_file
from mp_core.system.settings import runtime_folder, runtime_root

OVERCOMMIT = {"0": "heuristic", "1": "always", "2": "strict: file_descriptor reserves too"}


def size(nbytes: float) -> str:
    """Return *nbytes* with a unit, for people.

    >>> size(3 * 2**20)
    '3.0 MiB'
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def cgroup_limits(root: str | Path = ROOT, own: str | Path = OWN) -> Iterator[str]:
    """Yield the limits of this process's control groups, the nearest first, each with its use."""
    for controller, found in control_groups(root, own):
        folder = Path(found)
        if controller == "":
            yield from version_2(folder)
        elif controller == "memory":
            yield from memory_of(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "")


def version_2(folder: Path) -> Iterator[str]:
    yield from memory_of(folder, "memory.max", "memory.current", "")
    yield from memory_of(folder, "memory.high", "memory.current", "; above it the kernel slows this process down")
    quota, _, period = read_kernel_file(folder / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        yield f"{int(quota) / int(period):g} processors"
    tasks = limit_of(folder, "pids.max")
    if tasks is not None:
        yield f"{read_kernel_file(folder / 'pids.current')} of {tasks} processes and threads"


def memory_of(folder: Path, limit: str, use: str, note: str) -> Iterator[str]:
    most, used = limit_of(folder, limit), read_kernel_file(folder / use)
    if most is not None:
        yield f"memory {size(int(used)) if used.isdigit() else '?'} used of {size(most)}{note}"


def limits() -> Iterator[tuple[str, str]]:
    """Yield pairs of a limit's name and its text."""
    import resource  # not on Windows

    soft, hard = (unlimited(n) for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    yield "descriptors", f"{len(os.listdir('/proc/self/fd'))} open, limit {soft} (ulimit -n; can be raised to {hard})"
    yield "/dev/shm", f"{free_of(Path('/dev/shm'))} (limits file_system only)"
    folder = Path(runtime_folder())
    moved = "MPSHM_RUNTIME_DIR" if runtime_root() else "the default; MPSHM_RUNTIME_DIR moves it"
    yield "runtime folder", f"{folder} ({moved}), {free_of(folder.parent)}"
    fields = dict(line.split(":", 1) for line in lines_of_kernel_file(Path("/proc/meminfo")) if ":" in line)
    free, all_of_it = (int(fields.get(name, "0 kB").split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    yield "memory", f"{size(free)} free of {size(all_of_it)}"
    yield "container", ", ".join(cgroup_limits()) or "no limits of control groups"
    yield "processors", f"{len(os.sched_getaffinity(0))} for this process of {os.cpu_count()}"
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    yield "address space", "unlimited" if space == resource.RLIM_INFINITY else f"{size(space)} (ulimit -v)"
    yield "vm.max_map_count", read_kernel_file(Path("/proc/sys/vm/max_map_count")) or "unknown"
    overcommit = read_kernel_file(Path("/proc/sys/vm/overcommit_memory"))
    yield "vm.overcommit_memory", f"{overcommit} ({OVERCOMMIT.get(overcommit, 'unknown')})"


def unlimited(number: int) -> str:
    import resource

    return "unlimited" if number == resource.RLIM_INFINITY else str(number)


def free_of(folder: Path) -> str:
    try:
        disk = shutil.disk_usage(folder)
    except OSError as error:
        return f"unusable: {error.strerror}"
    return f"{size(disk.free)} free of {size(disk.total)}"
