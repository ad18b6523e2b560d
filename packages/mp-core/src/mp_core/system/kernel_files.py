"""Files of the kernel, as in /proc: names in them, of processes, mounts and files, may have any bytes."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    Path = str | os.PathLike[str]


def read_kernel_file(path: Path) -> str:
    """Return the content of a small file; "" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read()).strip("\n")
    except OSError:
        return ""


def lines_of_kernel_file(path: Path) -> list[str]:
    """Return the lines of a small file. `str.splitlines` would also end one at a control character of a name."""
    text = read_kernel_file(path)
    return text.split("\n") if text else []


def status_of(pid: int | str) -> list[str]:
    """Return the state of a process, its parent, its group and so on, from behind its name; nothing if it has gone."""
    return read_kernel_file(f"/proc/{pid}/stat").rpartition(")")[2].split()


def has_signal(pid: int | str, number: int, *sets: str) -> bool | None:
    """
    Tell whether one of these sets of signals of a process has the signal *number*; None if the process has ended.

    The sets are those of its status file: SigPnd, ShdPnd (pending), SigBlk, SigIgn and SigCgt (has a handler). A set
    that a sandbox leaves out is empty.

    >>> import os, signal
    >>> has_signal(os.getpid(), signal.SIGKILL, "SigBlk", "SigIgn", "SigCgt")
    False
    """
    found = signals_of(pid, *sets)
    return None if found is None else number in found


def signals_of(pid: int | str, *sets: str) -> set[int] | None:
    """Return the signals in any of these sets of a process, as `has_signal` names them."""
    fields = dict(line.split(":\t", 1) for line in lines_of_kernel_file(f"/proc/{pid}/status") if ":\t" in line)
    if fields.get("State", "Z")[0] in "ZX":
        return None
    bits = [int(fields.get(name, "0"), 16) for name in sets]
    return {number for number in range(1, 65) if any(each >> (number - 1) & 1 for each in bits)}
