"""Processes: a pid with its start time, so that a reused pid is another process."""

from __future__ import annotations

import os
from typing import NamedTuple

__all__ = ["Process", "me"]


class Process(NamedTuple):
    """A process. A forked child is another one, with another nonce."""

    pid: int
    started: int
    """Clock ticks after boot, from /proc; 0 if that cannot be read."""
    nonce: bytes

    @property
    def alive(self) -> bool:
        """Whether the process is still running. A zombie is not."""
        now = _started(self.pid)
        if now is not None:
            return now == self.started
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        # It exists, but /proc hides it (hidepid), so only the pid can be compared.
        return not os.path.exists(f"/proc/{self.pid}/stat")


def _started(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return -1 if fields[0] in b"ZX" else int(fields[19])


_me: Process | None = None


def me() -> Process:
    """Return this process."""
    global _me
    if _me is None:
        _me = Process(os.getpid(), _started(os.getpid()) or 0, os.urandom(8))
    return _me


def _forget() -> None:
    global _me
    _me = None


os.register_at_fork(after_in_child=_forget)
