"""Kills by the kernel's out-of-memory killer: whether one has killed a process of this program.

The out-of-memory killer counts its kills for each control group. cgroup v2 has `oom_kill` in memory.events, and counts
a kill in the group of the killed process and in all groups above; v1 has it in memory.oom_control, and counts it in the
group of the process only. The counters are read before a child starts and after it has died by SIGKILL, from its own
group outwards.
"""

from __future__ import annotations

import os

from mp_core.system.control_groups import limit_of
from mp_core.system.kernel_files import lines_of_kernel_file, read_kernel_file

# The counters of a process in these groups: to read all mounts takes longer than to start a thread.
_known: dict[tuple[str, str], list[tuple[str, str, str]]] = {}


def oom_kills(proc: str = "/proc/self", above: bool = True) -> dict[str, int]:
    """
    Count the kills in this process's control group and in those *above* it, by the folder of each, the own one first.

    >>> all(isinstance(count, int) for count in oom_kills().values())
    True
    """
    found: dict[str, int] = {}
    for mount, path, name in _groups(proc):
        while True:
            count = _kills(os.path.join(mount + path, name))
            if count is not None:
                found[(mount + path).rstrip("/")] = count
            if path in ("", "/") or (found and not above):
                break
            path = os.path.dirname(path)
    return found


def oom_kills_since(before: dict[str, int], proc: str = "/proc/self") -> str:
    """Describe the kills since *before*; empty if there are none, or if they cannot be counted."""
    for place, (folder, count) in enumerate(oom_kills(proc).items()):
        kills = count - before.get(folder, count)
        if kills > 0:
            # The groups above also count kills outside this group.
            sure = "sent by" if place == 0 else "perhaps by"
            limit = limit_of(folder, "memory.max", "memory.limit_in_bytes")
            text = f"{sure} the out-of-memory killer: {kills} killed in {folder}"
            return text + (f", whose limit is {limit / (1 << 20):.0f} MiB" if limit else "")
    return ""


def own_kills_between(before: dict[str, int], now: dict[str, int]) -> int:
    """
    Return how many kills the process's own group counts in *now* and not in *before*.

    The groups above also count kills outside this group.

    >>> own_kills_between({"/job": 1, "": 7}, {"/job": 3, "": 12})
    2
    """
    return next((count - before.get(folder, count) for folder, count in now.items()), 0)


def _groups(proc: str) -> list[tuple[str, str, str]]:
    """Find the counters: the mount point, the path of the process's group below it, and the file."""
    groups = read_kernel_file(f"{proc}/cgroup")
    if (proc, groups) in _known:
        return _known[proc, groups]
    mounts = lines_of_kernel_file(f"{proc}/mountinfo")
    if not groups or not mounts:
        return []  # perhaps for want of a descriptor: the next call may find them
    paths = {fields[1]: fields[2] for line in groups.split("\n") if len(fields := line.split(":", 2)) == 3}
    found = []
    for fields in (line.split(" ") for line in mounts):
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        if kind == "cgroup" and "memory" in options:
            path = next((path for names, path in paths.items() if "memory" in names.split(",")), None)
            name = "memory.oom_control"
        elif kind == "cgroup2":
            path, name = paths.get(""), "memory.events"
        else:
            continue
        if path is None:
            continue
        root, mount = fields[3], fields[4]
        # A container may see a part of the hierarchy, with that part's root as its mount point.
        if root != "/" and (path + "/").startswith(root + "/"):
            path = path[len(root) :]
        if not os.path.isdir(mount + path):
            path = "/"
        found.append((mount, path, name))
    _known.clear()  # it has moved to another group
    _known[proc, groups] = found
    return found


def _kills(path: str) -> int | None:
    counters = dict(line.split(" ", 1) for line in lines_of_kernel_file(path) if " " in line)
    return int(counters["oom_kill"]) if "oom_kill" in counters else None
