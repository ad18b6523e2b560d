"""The sessions of this user's processes, their managers, and objects that crashes have left behind."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mp_all._limits import size
from mp_core.system.kernel_files import lines_of_kernel_file, read_kernel_file, status_of
from mp_core.system.settings import runtime_folder

SHM = Path("/dev/shm")
STATES = {"T": "stopped", "t": "traced", "D": "waiting for a device", "Z": "dead"}


class Manager(NamedTuple):
    """A running shm-manager of this user."""

    pid: int
    folder: Path
    state: str
    """The problem with its state in a word; empty if there is none."""

    def remedy(self) -> str:
        """Return the problem and the command against it; empty if there is none."""
        stopped = self.state in ("stopped", "traced")
        return f"it is {self.state}" + (f": kill -CONT {self.pid}" if stopped else "") if self.state else ""


class NamedArray(NamedTuple):
    """A named array of this user, and the processes that have it."""

    name: str
    nbytes: int
    pids: list[int]

    def __str__(self) -> str:
        held = f"in processes {' '.join(map(str, self.pids))}" if self.pids else "in no process; shared.unlink frees it"
        return f"named array {self.name!r}: {size(self.nbytes)}, {held}"


class Session(NamedTuple):
    """A session's folder, and whether a process is attached to it."""

    name: str
    manager: Manager | None
    alive: bool


def managers() -> Iterator[Manager]:
    """Yield the managers of this user, in any runtime folder."""
    # A live view calls this each time, and pathlib would take most of that time.
    for pid in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        try:
            with open(f"/proc/{pid}/comm", "rb", buffering=0) as file:
                if file.read(64) != b"shm-manager\n":
                    continue
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            ours = os.stat(f"/proc/{pid}").st_uid == os.geteuid()
        except OSError:
            continue  # it ended meanwhile
        if ours and len(words) > 1 and Path(os.fsdecode(words[0])).name == "shm-manager":
            state = status_of(pid)[:1]
            word = STATES.get(state[0], "") if state else "dead"
            yield Manager(int(pid), Path(os.fsdecode(words[1])), word)


def sessions(folder: Path | None = None) -> list[Session]:
    at = {manager.folder.name: manager for manager in managers()}
    locks = lines_of_kernel_file(Path("/proc/locks"))
    locked = {line.split()[5].rpartition(":")[2] for line in locks if " FLOCK " in line}
    found = []
    for entry in sorted(Path(folder or runtime_folder()).glob("*/control")):
        name = entry.parent.name
        try:
            # Each attached process holds a lock on this file. If /proc shows no locks, a manager means that it is
            # alive.
            alive = str(entry.stat().st_ino) in locked if locks else name in at
        except OSError:
            continue
        found.append(Session(name, at.get(name), alive))
    return found


def leftover_names() -> list[str]:
    """
    Return the names of our objects in /dev/shm that no manager of this user has: a crash of all processes left them.
    """
    names = {path.name for path in SHM.glob("mpshm-*") if re.fullmatch(r"mpshm-[0-9a-f]{32}", path.name) and own(path)}
    if names:
        for manager in managers():
            for link in Path(f"/proc/{manager.pid}/fd").glob("*"):
                try:
                    names.discard(Path(os.readlink(link)).name)
                except OSError:
                    pass
    return sorted(names)


def named_arrays() -> list[NamedArray]:
    """Return the named arrays of this user, with the pids of the processes that map them."""
    prefix = f"mp_all.{os.geteuid()}."
    found = {}
    for path in sorted(SHM.glob(f"{prefix}*")):
        try:
            about = path.stat()
        except OSError:
            continue  # unlinked meanwhile
        if about.st_uid != os.geteuid():
            continue  # anybody may make a file of this name
        found[about.st_dev, about.st_ino] = NamedArray(path.name.removeprefix(prefix), about.st_size, [])
    for pid in filter(str.isdigit, os.listdir("/proc") if found else []):
        for file in _mapped_files(pid) & found.keys():
            found[file].pids.append(int(pid))
    return list(found.values())


def _mapped_files(pid: str) -> set[tuple[int, int]]:
    """Return device and inode of the files that a process maps; the path would be that before the file had its name."""
    fields = (line.split(None, 5) for line in lines_of_kernel_file(f"/proc/{pid}/maps"))
    devices = ((device.partition(":"), int(inode)) for _, _, _, device, inode, *_ in fields if inode != "0")
    return {(os.makedev(int(major, 16), int(minor, 16)), inode) for (major, _, minor), inode in devices}


def own(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False


def command_of(pid: int) -> str:
    """
    Return the command line of a process, cut to the width of a table; for a child of multiprocessing its parent's.

    >>> "python" in command_of(os.getpid())
    True
    """
    command = read_kernel_file(f"/proc/{pid}/cmdline")
    parent = status_of(pid)[1:2]
    is_child = "--multiprocessing-fork" in command or "from multiprocessing." in command
    if parent and parent[0] != "1" and (is_child or command == read_kernel_file(f"/proc/{parent[0]}/cmdline") != ""):
        return f"child of {parent[0]}: {command_of(int(parent[0]))}"[:100]
    program, *words = command.rstrip("\0").split("\0")
    line = " ".join([Path(program).name, *words])
    line = "".join(each if each.isprintable() else "?" for each in line)  # it may have any bytes
    return line if len(line) <= 100 else line[:97] + "..."
