"""Who shares memory now: the trees of this user's processes, their managers, and what crashes have left behind."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mp_all._limits import read, runtime_folder

__all__ = ["Manager", "Tree", "command_of", "leftover_names", "managers", "trees"]

SHM = Path("/dev/shm")
STATES = {"T": "stopped", "t": "traced", "D": "waiting for a device", "Z": "dead"}


class Manager(NamedTuple):
    """A running shm-manager of this user."""

    pid: int
    folder: Path
    state: str
    """A word for what it should not be, else empty."""

    def remedy(self) -> str:
        """What to do about it; empty when it is well."""
        stopped = self.state in ("stopped", "traced")
        return f"it is {self.state}" + (f": kill -CONT {self.pid}" if stopped else "") if self.state else ""


class Tree(NamedTuple):
    """A folder of a tree of processes, and whether anybody is in it."""

    name: str
    manager: Manager | None
    alive: bool


def managers() -> Iterator[Manager]:
    """The managers of this user, whatever runtime folder they serve."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            ours = entry.stat().st_uid == os.geteuid()
        except OSError:
            continue  # it has ended meanwhile
        if ours and len(words) > 1 and Path(os.fsdecode(words[0])).name == "shm-manager":
            state = read(entry / "stat").rpartition(")")[2].split()[:1]
            word = STATES.get(state[0], "") if state else "dead"
            yield Manager(int(entry.name), Path(os.fsdecode(words[1])), word)


def trees(folder: Path | None = None) -> list[Tree]:
    """The trees in the runtime folder."""
    at = {manager.folder.name: manager for manager in managers()}
    locks = read(Path("/proc/locks")).splitlines()
    locked = {line.split()[5].rpartition(":")[2] for line in locks if " FLOCK " in line}
    found = []
    for entry in sorted((folder or runtime_folder()).glob("*/control")):
        name = entry.parent.name
        try:
            # Everybody in a tree holds a lock on this file. Where locks cannot be seen, its manager speaks for them.
            alive = str(entry.stat().st_ino) in locked if locks else name in at
        except OSError:
            continue
        found.append(Tree(name, at.get(name), alive))
    return found


def leftover_names() -> list[str]:
    """
    Objects of ours in /dev/shm that no manager of this user has: a crash of everything has left them.
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


def own(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False


def command_of(pid: int) -> str:
    """
    What was typed to start a process, as far as a line of a table has room.

    >>> "python" in command_of(os.getpid())
    True
    """
    program, *words = read(Path(f"/proc/{pid}/cmdline")).rstrip("\0").split("\0")
    line = " ".join([Path(program).name, *words])
    return line if len(line) <= 100 else line[:97] + "..."
