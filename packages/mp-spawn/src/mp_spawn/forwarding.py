"""Signals that come while ranks run: the command forwards them; the API lets ranks deal with them before it dies.

A signal that comes just before the system call which waits for the ranks does not end that wait, and Python's
handlers run after it only, in the order of the signals' numbers and once for several. So the handlers here do
nothing, and each signal is a byte in a wake-up pipe (`signal.set_wakeup_fd`), for which the wait waits as well: they
are dealt with in the order in which they came, each of them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

__all__ = ["ENDING", "Deferral", "Ended", "Forwarding", "WakeUpPipe"]

ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
FORWARDED = (*ENDING, "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGTSTP")
# `timeout` signals its child and then its group, a closing terminal likewise: what ends a process and comes again so
# soon, in seconds, is the same.
REPEAT = 0.5


class WakeUpPipe:
    """
    While this is entered, each of the signals *names* makes the pipe *fd* readable; those that are ignored stay so.

    *for_default* takes only those that have their default action. A forked child, be it a rank, has
    inherited all this, and puts it off.
    """

    def __init__(self, names: tuple[str, ...], for_default: bool = False) -> None:
        self.fd = -1
        self._before: dict[int, Any] = {}
        self._wakeup_before = self._write = -1
        self._signals: set[int] = set()
        for signum in (getattr(signal, name) for name in names if hasattr(signal, name)):
            handler = signal.getsignal(signum)
            # None: a handler that was not installed from Python, which could not be put back.
            if handler is signal.SIG_DFL or not (for_default or handler in (signal.SIG_IGN, None)):
                self._signals.add(signum)

    def __enter__(self) -> Self:
        if not self._signals or threading.current_thread() is not threading.main_thread():
            return self
        self.fd, self._write = os.pipe()
        for end in (self.fd, self._write):
            os.set_blocking(end, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {signum: signal.signal(signum, _do_nothing) for signum in self._signals}
        _entered.add(self)
        return self

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        if self.fd < 0:
            return
        _entered.discard(self)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        for end in (self.fd, self._write):
            os.close(end)
        self.fd = -1

    def read(self) -> list[int]:
        """
        What has come, in order. Somebody else's signals are passed on to whom they would have woken.
        """
        try:
            data = os.read(self.fd, 4096)
        except BlockingIOError:
            return []
        others = bytes(signum for signum in data if signum not in self._signals)
        if others and self._wakeup_before >= 0:
            try:
                os.write(self._wakeup_before, others)
            except OSError:
                pass  # full, or gone: as if it were written to from C
        return [signum for signum in data if signum in self._signals]


_entered: weakref.WeakSet[WakeUpPipe] = weakref.WeakSet()


def _put_off() -> None:
    for pipe in list(_entered):
        WakeUpPipe.__exit__(pipe)


os.register_at_fork(after_in_child=_put_off)


def _do_nothing(signum: int, frame: FrameType | None) -> None: ...


class Repeats:
    """Tells signals that end a process from their echo."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}

    def is_echo(self, signum: int) -> bool:
        """Whether it came a moment ago, too."""
        now = time.monotonic()
        last, self._last[signum] = self._last.get(signum), now
        return last is not None and now - last < REPEAT


class Forwarding(WakeUpPipe):
    """
    While this is entered, signals go to the ranks, by *send*, once that is set; earlier ones wait in the pipe.
    """

    send: Callable[[int], None]

    def __init__(self) -> None:
        super().__init__(FORWARDED)
        self._repeats = Repeats()

    def hear(self) -> None:
        """Forward what has come."""
        for signum in self.read():
            self._forward(signum)

    def _forward(self, signum: int) -> None:
        name = signal.Signals(signum).name
        if name in ENDING and self._repeats.is_echo(signum):
            return
        self.send(signum)
        if name == "SIGTSTP":
            self._stop(signum)

    def _stop(self, signum: int) -> None:
        """
        Stop as if this had not been caught: a shell waits for that.
        """
        signal.signal(signum, signal.SIG_DFL)
        # To this thread, so that it is stopped here and not some instructions later.
        signal.pthread_kill(threading.get_ident(), signum)
        signal.signal(signum, _do_nothing)
        came = self.read()
        # The kernel does not stop a group that nobody could continue.
        for other in came if signal.SIGCONT in came else [signal.SIGCONT, *came]:
            self._forward(other)


class Ended(BaseException):
    """This process is to end by the signal *signum*, when its ranks have ended."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class Deferral(WakeUpPipe):
    """
    While this is entered, a signal that would end this process at once, and its ranks with it, raises `Ended` where it
    is heard instead. Only in the main thread, and only signals that have their default action.
    """

    def __init__(self) -> None:
        # Not SIGINT, which is a KeyboardInterrupt.
        super().__init__(ENDING[1:], for_default=True)
        self._repeats = Repeats()

    def hear(self) -> None:
        """Raise `Ended` for what has come."""
        for signum in self.read():
            if not self._repeats.is_echo(signum):
                raise Ended(signum)

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        came = [error.signum] if isinstance(error, Ended) else self.read() if self.fd >= 0 else []
        super().__exit__()
        if came:
            # As it would have been without all this.
            signal.raise_signal(came[0])
            # Process 1 of a container is not ended by it.
            sys.exit(128 + came[0])
