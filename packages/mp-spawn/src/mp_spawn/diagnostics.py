"""Why a rank ended, beyond its exit status: its Python stacks, and kills by the kernel's out-of-memory killer.

`faulthandler` writes the stacks from C, in the signal's own context: also when the rank is deep in C code and never
releases the interpreter, where a Python thread would wait for ever. They go to a memory file, which the launcher
reads: a full pipe would block the crash. Slow ranks are asked for theirs by a signal: `dump_traceback_later` would
need the timeout, which `join()` knows and the rank does not. The signal is a real-time one, because programs use
SIGUSR1 and SIGUSR2 themselves.

The out-of-memory killer counts its kills for each control group. cgroup v2 has `oom_kill` in memory.events, and counts
a kill in the group of the killed process and in all groups above; v1 has it in memory.oom_control, and counts it in the
group of the process only. The counters are read before a rank starts and after it has died by SIGKILL, from its own
group outwards.
"""

from __future__ import annotations

import os
import signal
import time

from mp_spawn.payload import InheritedFd, memory_file

__all__ = ["DUMP", "Stacks", "oom_kills", "oom_kills_since", "write_stacks_to"]

#: The signal that asks a rank for its stacks; 0 on systems without real-time signals.
DUMP: int = int(getattr(signal, "SIGRTMAX", 3)) - 3
# At most so much is read, in bytes.
LONGEST = 1 << 20


class Stacks:
    """The stacks that one rank has written, in the launcher."""

    def __init__(self) -> None:
        self.fd = memory_file()
        self._process = os.getpid()

    def text(self) -> str:
        """Return everything written so far."""
        return os.pread(self.fd, LONGEST, 0).decode(errors="replace") if self.fd >= 0 else ""

    def wait(self, pid: int, seconds: float) -> str:
        """Return the answer of the rank *pid*, which was asked; empty if there is none within *seconds*."""
        deadline = time.monotonic() + seconds
        # The kernel blocks the signal in the thread that writes, until it has written all.
        while not (text := self.text()) or _is_writing(pid):
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
        return text

    def close(self) -> None:
        """Close the file. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # A forked rank has closed the number itself, and may use it for another file.
        if os.getpid() == self._process:
            self.close()


def _is_writing(pid: int) -> bool:
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/status") as file:
                blocked = next(line for line in file if line.startswith("SigBlk:"))
            if int(blocked.split()[1], 16) >> (DUMP - 1) & 1:
                return True
    except (OSError, StopIteration):
        pass  # it has ended
    return False


def write_stacks_to(inherited: InheritedFd) -> None:
    """
    Have crashes of this rank write their stacks there, unless the program has enabled faulthandler; also on request.
    """
    import faulthandler
    import fcntl

    try:
        # A high number: a program that closes all descriptors does not get it again for a file of its own.
        fd = fcntl.fcntl(inherited.fd, fcntl.F_DUPFD_CLOEXEC, 500)
        os.close(inherited.fd)
    except OSError:
        fd = inherited.fd
    if not faulthandler.is_enabled():
        faulthandler.enable(fd)
    if DUMP:
        faulthandler.register(DUMP, fd)


def oom_kills(proc: str = "/proc/self") -> dict[str, int]:
    """
    Count the kills in this process's control group and in those above it, by the folder of each, the own one first.

    >>> all(isinstance(count, int) for count in oom_kills().values())
    True
    """
    found: dict[str, int] = {}
    for mount, path, name in _groups(proc):
        while True:
            count = _field(os.path.join(mount + path, name), "oom_kill")
            if count is not None:
                found[(mount + path).rstrip("/")] = count
            if path in ("", "/"):
                break
            path = os.path.dirname(path)
    return found


def oom_kills_since(before: dict[str, int], proc: str = "/proc/self") -> str:
    """
    Describe the kills since *before*; empty if there are none, or if they cannot be counted.
    """
    for place, (folder, count) in enumerate(oom_kills(proc).items()):
        kills = count - before.get(folder, count)
        if kills > 0:
            # The groups above also count kills outside this group.
            sure = "sent by" if place == 0 else "perhaps by"
            limit = _limit(folder)
            text = f"{sure} the out-of-memory killer: {kills} killed in {folder}"
            return text + (f", whose limit is {limit / (1 << 20):.0f} MiB" if limit else "")
    return ""


def _groups(proc: str) -> list[tuple[str, str, str]]:
    """
    Find the counters: the mount point, the path of the process's group below it, and the file.
    """
    try:
        with open(f"{proc}/cgroup") as file:
            paths = {fields[1]: fields[2] for line in file if len(fields := line.rstrip("\n").split(":", 2)) == 3}
        with open(f"{proc}/mountinfo") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return []
    found = []
    for fields in mounts:
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
    return found


def _field(path: str, name: str) -> int | None:
    try:
        with open(path) as file:
            return next((int(line.split()[1]) for line in file if line.split()[:1] == [name]), None)
    except (OSError, ValueError, IndexError):
        return None


def _limit(folder: str) -> int:
    """
    Return the limit of a group in bytes; 0 if it has none.
    """
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            with open(os.path.join(folder, name)) as file:
                limit = int(file.read())
        except (OSError, ValueError):
            continue
        return limit if limit < 1 << 60 else 0
    return 0
