"""What this machine, or this container, allows: each limit beside what is used of it."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

__all__ = ["cgroup_limits", "limits", "runtime_folder", "size"]

OVERCOMMIT = {"0": "heuristic", "1": "always", "2": "strict: file_descriptor reserves too"}


def size(nbytes: float) -> str:
    """*nbytes* as people write it.

    >>> size(3 * 2**20)
    '3.0 MiB'
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def runtime_folder() -> Path:
    """Where this user's sockets and control files are, if there are any."""
    return Path(os.environ.get("MPSHM_RUNTIME_DIR") or "/tmp") / f"mpshm-{os.geteuid()}"


def cgroup_limits(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[str]:
    """
    The limits of the control groups (version 2) that this process is in, the nearest first, each with what is used.
    """
    text = read(own)
    path = next((line[3:] for line in text.splitlines() if line.startswith("0::")), None)
    if path is None:
        return
    group = root / path.lstrip("/")
    for folder in [group, *group.parents]:
        if folder != root and root not in folder.parents:
            return
        most = read(folder / "memory.max")
        if most.isdigit():
            used = read(folder / "memory.current")
            yield f"memory {size(int(used)) if used.isdigit() else '?'} used of {size(int(most))}"
        quota, _, period = read(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            yield f"{int(quota) / int(period):g} processors"
        tasks = read(folder / "pids.max")
        if tasks.isdigit():
            yield f"{read(folder / 'pids.current')} of {tasks} processes and threads"


def limits() -> Iterator[tuple[str, str]]:
    """Pairs of a word and what there is to say about it."""
    soft, hard = (unlimited(n) for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    yield "descriptors", f"{len(os.listdir('/proc/self/fd'))} open, limit {soft} (ulimit -n; can be raised to {hard})"
    yield "/dev/shm", f"{free_of(Path('/dev/shm'))} (limits file_system only)"
    folder = runtime_folder()
    moved = "MPSHM_RUNTIME_DIR" if os.environ.get("MPSHM_RUNTIME_DIR") else "the default; MPSHM_RUNTIME_DIR moves it"
    yield "runtime folder", f"{folder} ({moved}), {free_of(folder.parent)}"
    fields = dict(line.split(":", 1) for line in read(Path("/proc/meminfo")).splitlines() if ":" in line)
    free, all_of_it = (int(fields.get(name, "0 kB").split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    yield "memory", f"{size(free)} free of {size(all_of_it)}"
    yield "container", ", ".join(cgroup_limits()) or "no limit of a control group"
    yield "processors", f"{len(os.sched_getaffinity(0))} for this process of {os.cpu_count()}"
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    yield "address space", "unlimited" if space == resource.RLIM_INFINITY else f"{size(space)} (ulimit -v)"
    yield "vm.max_map_count", read(Path("/proc/sys/vm/max_map_count")) or "unknown"
    overcommit = read(Path("/proc/sys/vm/overcommit_memory"))
    yield "vm.overcommit_memory", f"{overcommit} ({OVERCOMMIT.get(overcommit, 'unknown')})"


def unlimited(number: int) -> str:
    return "unlimited" if number == resource.RLIM_INFINITY else str(number)


def free_of(folder: Path) -> str:
    try:
        disk = shutil.disk_usage(folder)
    except OSError as error:
        return f"cannot be used: {error.strerror}"
    return f"{size(disk.free)} free of {size(disk.total)}"


def read(path: Path) -> str:
    """The content of a small file of the kernel's, "" if it cannot be had."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
