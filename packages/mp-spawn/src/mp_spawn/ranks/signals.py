"""Signals from outside while ranks run: which process blocks, forwards or defers them.

Note [Signals and groups]
-------------------------
A terminal, `timeout` and most schedulers signal a whole process group. Every process of a job gets each signal once:

    process             its group                   signals from outside
    the starter         as it was started           API: its own handlers. Without one, join() gives the ranks time
                                                    before the starter dies. Command: forwards each to the ranks
    zygote, fork        the starter's               all blocked, so that they outlive their ranks and report how those
    server                                          ended; the starter's death ends them
    ranks (API)         the starter's               the program's own dispositions and mask: the kernel delivers
    ranks (command)     one each                    the same: the command delivers
      that reads from   the starter's               the kernel delivers what the group is sent, the command the rest
      the terminal

What a rank of the command has started, and not put into a group of its own, gets from the command what a terminal
sends to a group; under `--no-python`, where the rank may be a shell that passes nothing on, each signal. When the rank
fails, it gets SIGTERM half a second later and, at the end of the time, SIGKILL (`process_group.py`).

Only the mask is changed on the way, never a disposition: a signal that the program ignores (nohup, a job in the
background of a shell) is ignored by its ranks. Each rank restores the mask before any of the user's code runs.

The starter cannot see whether a signal was sent to it alone or to the group. A process in the group that blocks the
signal, the witness, can: there it stays pending, and /proc shows it. It is the zygote or the fork server, and a rank
that it forks after the signal has come has not been sent it: such a rank looks at the witness, and sends it to itself.

Note [Wake-up pipe]
-------------------
A signal just before the system call that waits for the ranks does not interrupt that call, and Python's handlers run
after it only, in the order of the signals' numbers and once for several. So the handlers here do nothing, and each
signal is a byte in a wake-up pipe (`signal.set_wakeup_fd`), on which the call waits as well: every signal is handled,
in the order in which they came.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Self

from mp_core.system.descriptor import hold_both_ends
from mp_core.system.kernel_files import has_signal, signals_of
from mp_core.system.weak_sets import members

# Without those that an instruction of the process itself raises, and the one for its children.
_OWN = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGCHLD", "SIGKILL", "SIGSTOP")
FROM_OUTSIDE = frozenset(signal.valid_signals()) - {getattr(signal, name, None) for name in _OWN}
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# A scheduler may warn by any of them, as by SIGXCPU of a time that is over. Not those of a write that fails, and of a
# process in the background that uses the terminal.
_OF_CALLS = {getattr(signal, name, None) for name in ("SIGPIPE", "SIGXFSZ", "SIGTTIN", "SIGTTOU")}
FORWARDED = (*ENDING, *sorted(FROM_OUTSIDE - _OF_CALLS - {*ENDING}))
# `timeout` signals its child and then its group, and so does a closing terminal: a second ending signal within so many
# seconds counts as the same one.
REPEAT = 0.5
# Seconds from a Ctrl-C, which the terminal also sends to the ranks, to SIGTERM, and from SIGTERM to SIGKILL.
INTERRUPTED = 1.0
TERM_TO_KILL = 5.0
# For ranks that may have handlers for a signal which ends their program, until SIGKILL.
AFTER_A_SIGNAL = 30.0


@contextlib.contextmanager
def blocked(signals: Iterable[int] = FROM_OUTSIDE) -> Iterator[frozenset[int]]:
    """Block *signals* while processes are started, until they can deal with them; yields the mask from before."""
    # The mask is read first, and by the functions in C: a handler that raises in the middle of one of signal's own,
    # which are written in Python, would leave the signals blocked.
    before = _signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        _signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        # As integers, since a rank unpickles them.
        yield frozenset(int(signum) for signum in before)
    finally:
        _signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WakeUpPipe:
    """
    While this is entered, each of the *signals* makes the pipe *fd* readable; ignored signals stay ignored.

    With *for_default*, only signals that have their default action. A forked child, such as a rank, has inherited the
    handlers, and restores the earlier ones. A *frugal* one takes one descriptor. See Note [Wake-up pipe].
    """

    fd = -1

    def __init__(self, signals: tuple[int, ...], for_default: bool = False, frugal: bool = False) -> None:
        self._frugal = frugal
        self._before: dict[int, Any] = {}
        self._wakeup_before: int | None = None
        self._write = -1
        self._signals: set[int] = set()
        for signum in signals:
            handler = signal.getsignal(signum)
            # None: a handler that was not installed from Python, which could not be restored.
            if handler is signal.SIG_DFL or not (for_default or handler in (signal.SIG_IGN, None)):
                self._signals.add(signum)

    def __enter__(self) -> Self:
        if not self._signals or threading.current_thread() is not threading.main_thread():
            return self
        try:
            self.fd, self._write = os.pipe()
            if self._frugal and hold_both_ends(self.fd):
                self._close_write()
            write = self.fd if self._write < 0 else self._write
            for end in {self.fd, write}:
                os.set_blocking(end, False)
            _entered.add(self)
            self._wakeup_before = -1
            self._wakeup_before = _signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            for signum in self._signals:
                self._before[signum] = _signal.getsignal(signum)
                _signal.signal(signum, _do_nothing)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        self._leave()

    def __del__(self) -> None:
        # A handler that raises may do so just before `__exit__` begins, or in its middle.
        if self.fd >= 0 and threading.current_thread() is threading.main_thread():
            self._leave()

    def _leave(self) -> None:
        """Restore the handlers, and close the pipe. Idempotent; after an exception in its middle, call it again."""
        if self.fd < 0:
            return
        try:
            for signum, handler in self._before.items():
                _signal.signal(signum, handler)
        finally:
            if self._wakeup_before is not None:
                _signal.set_wakeup_fd(self._wakeup_before)
            self._close_write()
            read, self.fd = self.fd, -1
            os.close(read)
            _entered.discard(self)

    def _close_write(self) -> None:
        write, self._write = self._write, -1
        if write >= 0:
            os.close(write)

    def read(self) -> list[int]:
        """Return the signals that have come, in order. Other signals are written to the earlier wake-up descriptor."""
        try:
            data = os.read(self.fd, 4096)
        except BlockingIOError:
            return []
        others = bytes(signum for signum in data if signum not in self._signals)
        if others and self._wakeup_before is not None and self._wakeup_before >= 0:
            try:
                os.write(self._wakeup_before, others)
            except OSError:
                pass  # it is full or closed: the C handler also ignores that
        return [signum for signum in data if signum in self._signals]

    def raise_ended(self) -> None:
        """Raise `Ended` for a signal that has come and ends the ranks, as they are being started."""
        if self.fd < 0 or not (came := self.read()):
            return
        for signum in came:
            raise_if_ending(signum)
        os.write(self.fd if self._write < 0 else self._write, bytes(came))  # `handle` handles the others


_entered: weakref.WeakSet[WakeUpPipe] = weakref.WeakSet()


def _restore_handlers() -> None:
    for pipe in members(_entered):
        pipe._leave()


os.register_at_fork(after_in_child=_restore_handlers)


def _do_nothing(signum: int, frame: FrameType | None) -> None: ...


class _Repeats:
    """Recognises the repetition of a signal that ends a process."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}

    def is_repeated(self, signum: int) -> bool:
        """Tell whether the same signal came less than `REPEAT` seconds ago."""
        now = time.monotonic()
        last, self._last[signum] = self._last.get(signum), now
        return last is not None and now - last < REPEAT


class Forwarding(WakeUpPipe):
    """While this is entered, signals wait in the pipe for `handle`, which sends them to the ranks."""

    def __init__(self, frugal: bool = False) -> None:
        super().__init__(FORWARDED, frugal=frugal)
        self._repeats = _Repeats()
        # Until then, a SIGCONT is the one that the ranks have been sent already.
        self._sent_until = 0.0

    def handle(self, forward: Callable[[int], None]) -> None:
        """Call *forward* for each signal that has come."""
        for signum in self.read():
            self._handle(signum, forward)

    def _handle(self, signum: int, forward: Callable[[int], None]) -> None:
        if signum in ENDING and self._repeats.is_repeated(signum):
            return
        if signum in (signal.SIGCONT, signal.SIGTSTP):
            sent_until, self._sent_until = self._sent_until, 0.0
            if signum == signal.SIGCONT and time.monotonic() < sent_until:
                return
        forward(signum)
        if signum == signal.SIGTSTP:
            self._stop(signum, forward)

    def _stop(self, signum: int, forward: Callable[[int], None]) -> None:
        """Stop this process by the signal's default action: a shell waits for that."""
        signal.signal(signum, signal.SIG_DFL)
        # To this thread, so that it is stopped here and not some instructions later.
        signal.pthread_kill(threading.get_ident(), signum)
        signal.signal(signum, _do_nothing)
        came = self.read()
        if signal.SIGCONT not in came:
            # The kernel does not stop an orphaned process group, which no shell could continue. Or another thread of
            # this process, which was stopped as well, has got the SIGCONT, and is about to write it into the pipe.
            forward(signal.SIGCONT)
            self._sent_until = time.monotonic() + REPEAT
        for other in came:
            self._handle(other, forward)


class Ended(BaseException):
    """The signal *signum* is to end this process once its ranks have ended."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def raise_if_ending(signum: int) -> None:
    """Raise `Ended` for a signal that ends a process."""
    if signum in ENDING:
        raise Ended(signum)


class Deferral(WakeUpPipe):
    """
    While this is entered, a signal that would end this process at once, and its ranks with it, makes `handle` raise
    `Ended` instead. Only in the main thread, and only signals that have their default action.
    """

    def __init__(self, frugal: bool = False) -> None:
        # Without SIGINT, which raises KeyboardInterrupt. A frugal one takes no descriptor, and defers nothing.
        super().__init__(() if frugal else ENDING[1:], for_default=True)
        self._repeats = _Repeats()

    def handle(self, forward: Callable[[int], None]) -> None:
        """Raise `Ended` for a signal that has come; *forward* is not called."""
        for signum in self.read():
            if not self._repeats.is_repeated(signum):
                raise Ended(signum)

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        came = [error.signum] if isinstance(error, Ended) else self.read() if self.fd >= 0 else []
        self._leave()
        if came:
            # The end that the signal would have had without the deferral.
            signal.raise_signal(came[0])
            # The signal does not end process 1 of a container.
            sys.exit(128 + came[0])


def group_was_sent(signum: int, pids: list[int], witness: int = 0) -> bool:
    """
    Tell whether the processes *pids*, of this one's group, have been sent the signal that this one has been sent.

    *witness* is a process of the group that blocks it. Without a witness, and if each of *pids* has a handler, the
    answer is unknown; the function then returns True, since no signal is better than two.

    >>> import os
    >>> group_was_sent(signal.SIGTERM, [os.getpid()])
    False
    """
    if not pids or witness:
        return not pids or was_sent(witness, signum)
    return not any(would_have_died(pid, signum) for pid in pids)


def was_sent(pid: int, signum: int) -> bool:
    """
    Tell whether a process that blocks the signal has been sent it. A process that has ended counts as sent.

    >>> import os
    >>> was_sent(os.getpid(), signal.SIGTERM)
    False
    """
    return has_signal(pid, signum, "SigPnd", "ShdPnd") is not False


def sent_to(pid: int) -> frozenset[int]:
    """
    Return the signals of `ENDING` that a process which blocks them has been sent.

    >>> sent_to(os.getpid())
    frozenset()
    """
    return frozenset(map(int, ENDING)) & (signals_of(pid, "SigPnd", "ShdPnd") or set())


def take_missed(before: frozenset[int]) -> None:
    """Send this process what its group was sent before its parent, a witness, forked it, and after *before*."""
    mask = _signal.pthread_sigmask(signal.SIG_BLOCK, ())
    for signum in sent_to(os.getppid()) - before - _signal.sigpending():
        if signum in mask or signum != signal.SIGINT:  # any other would have ended it; a second one would be the same
            os.kill(os.getpid(), signum)


def would_have_died(pid: int, signum: int) -> bool:
    """
    Tell whether the process lives and neither blocks nor ignores nor catches the signal: then it was not sent it.

    >>> import os
    >>> would_have_died(os.getpid(), signal.SIGTERM)
    True
    """
    return has_signal(pid, signum, "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt") is False
