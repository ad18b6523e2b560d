"""The Python stacks of a rank that crashes, or that is too slow, in a memory file that the launcher reads.

`faulthandler` writes them from C, in the signal's own context: also when the rank is deep in C code and never lets go
of the interpreter, where a thread of ours would wait for ever. A file and no pipe, since a pipe that nobody empties
would stop the crash. For slow ranks it is asked by a signal: `dump_traceback_later` would need the timeout, which
`join()` knows and the rank does not. The signal is a real-time one, as programs have uses for SIGUSR1 and SIGUSR2.
"""

from __future__ import annotations

import os
import signal
import time

from mp_spawn.payload import Handed, memory_file

__all__ = ["DUMP", "Stacks", "watch"]

#: Asks a rank for its stacks; 0 where there are no real-time signals.
DUMP: int = int(getattr(signal, "SIGRTMAX", 3)) - 3
# More than this is not read, in bytes.
LONGEST = 1 << 20


class Stacks:
    """The launcher's side: what one rank has written."""

    def __init__(self) -> None:
        self.fd = memory_file()
        self._process = os.getpid()

    def text(self) -> str:
        """All of it so far."""
        return os.pread(self.fd, LONGEST, 0).decode(errors="replace") if self.fd >= 0 else ""

    def wait(self, pid: int, seconds: float) -> str:
        """What the rank *pid* writes when it is asked; empty if it does not answer within *seconds*."""
        deadline = time.monotonic() + seconds
        # The kernel blocks the signal in the thread that writes, until it has written all.
        while not (text := self.text()) or _is_writing(pid):
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
        return text

    def close(self) -> None:
        """Close the file; twice is fine."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # In a forked rank the number is its own to close.
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


def watch(handed: Handed) -> None:
    """
    In a rank: have crashes written there, unless the program has seen to them itself; and the stacks, when asked.
    """
    import faulthandler
    import fcntl

    try:
        # A high number, so that a program that closes all descriptors does not get it for a file of its own.
        fd = fcntl.fcntl(handed.fd, fcntl.F_DUPFD_CLOEXEC, 500)
        os.close(handed.fd)
    except OSError:
        fd = handed.fd
    if not faulthandler.is_enabled():
        faulthandler.enable(fd)
    if DUMP:
        faulthandler.register(DUMP, fd)
