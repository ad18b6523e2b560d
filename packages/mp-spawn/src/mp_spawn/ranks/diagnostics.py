"""Why a rank ended, beyond its exit status: its Python stacks.

`faulthandler` writes the stacks from C, in the signal's own context: also when the rank is deep in C code and never
releases the interpreter, where a Python thread would wait for ever. They go to a memory file, which the launcher
reads: a full pipe would block the crash. Slow ranks are asked for theirs by a signal: `dump_traceback_later` would
need the timeout, which `join()` knows and the rank does not. The signal is a real-time one, because programs use
SIGUSR1 and SIGUSR2 themselves.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time

from mp_core.memory.mapped_buffers import memory_file
from mp_core.system.kernel_files import has_signal
from mp_spawn.calls.payload import InheritedFd, OwnedFd

#: The signal that asks a rank for its stacks; 0 on systems without real-time signals.
DUMP: int = int(getattr(signal, "SIGRTMAX", 3)) - 3
# At most so much is read, in bytes.
LONGEST = 1 << 20


class Stacks(OwnedFd):
    """The stacks that one rank has written, in the launcher. A thread may read them while another one closes them."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._begin = 0
        self.fd = memory_file()

    def close(self) -> None:
        with self._lock:
            super().close()

    @classmethod
    def unless_scarce(cls) -> Stacks | None:
        """Return a new file; None if half of the descriptors that this process may have are in use."""
        try:
            made = cls()
        except OSError:
            return None  # there is none left
        if made.fd < resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2:
            return made
        made.close()
        return None

    def skip(self) -> None:
        """Forget what was written so far."""
        with self._lock:
            self._begin = os.fstat(self.fd).st_size if self.fd >= 0 else 0

    def text(self) -> str:
        """Return everything written since then."""
        with self._lock:
            return os.pread(self.fd, LONGEST, self._begin).decode(errors="replace") if self.fd >= 0 else ""

    def wait(self, pid: int, seconds: float, blocking: frozenset[str] = frozenset()) -> str:
        """
        Return the answer of the rank *pid*, which was asked; empty if there is none within *seconds*. The threads
        *blocking* blocked the signal before.
        """
        deadline = time.monotonic() + seconds
        # The kernel blocks the signal in the thread that writes, until it has written all.
        while not self.text() or blocking_threads(pid) - blocking:
            if time.monotonic() > deadline or not answers(pid):
                break  # or it has ended
            time.sleep(0.005)
        return self.text()  # again: of the first look, the rank may have written a part


def blocking_threads(pid: int) -> frozenset[str]:
    """Return the threads of a process that block the signal: libraries start some that do all their life."""
    found = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            if has_signal(f"{pid}/task/{thread}", DUMP, "SigBlk"):
                found.add(thread)
    except OSError:
        pass  # it has ended
    return frozenset(found)


def answers(pid: int) -> bool:
    """Tell whether a process has a handler for the signal: another one, as one that begins, would die of it."""
    return DUMP > 0 and bool(has_signal(pid, DUMP, "SigCgt"))


def write_stacks_to(inherited: InheritedFd) -> None:
    """
    Have crashes of this rank write their stacks there, unless the program has enabled faulthandler; also on request.
    """
    import faulthandler

    inherited.move_up()
    with contextlib.suppress(OSError):  # a sandbox refuses sigaltstack
        if not faulthandler.is_enabled():
            faulthandler.enable(inherited.fd)
        if DUMP:
            # What faulthandler puts back as the interpreter ends: it may be asked until its last instruction.
            signal.signal(DUMP, signal.SIG_IGN)
            faulthandler.register(DUMP, inherited.fd)
