"""Signals that come from outside: who holds them back, and who was sent one.

Note [Signals and groups]
-------------------------
A terminal, `timeout` and most schedulers signal a whole process group. Every process of a job gets what it needs once:

    process             its group                   signals from outside
    the starter         as it was started           API: its own handlers. Where it has none, join() gives the ranks
                                                    time before it dies. Command: forwards each to the ranks
    nursery, fork       the starter's               all blocked, so that they outlive their ranks and report how those
    server                                          ended; the starter's death ends them
    ranks (API)         the starter's               the program's own dispositions and mask: the kernel delivers
    ranks (command)     one each                    the same: the command delivers

Dispositions are never changed on the way, only the mask: a signal that the program ignores (nohup, a job in the
background of a shell) is ignored by its ranks. Each rank restores the mask before anything of the user's runs.

The starter cannot see whether a signal was sent to it alone or to the group. A process in the group that blocks the
signal can: there it stays pending, and /proc tells.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator

__all__ = ["FROM_OUTSIDE", "group_was_sent", "held_back"]

# Not those that an instruction of the process itself raises, nor the one that tells of its children.
_OWN = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGCHLD", "SIGKILL", "SIGSTOP")
FROM_OUTSIDE = frozenset(signal.valid_signals()) - {getattr(signal, name, None) for name in _OWN}


@contextlib.contextmanager
def held_back(signals: Iterable[int] = FROM_OUTSIDE) -> Iterator[frozenset[int]]:
    """
    Start processes with *signals* blocked, so that one finds them ready for it; yields the mask from before.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        # As integers, since a rank unpickles them.
        yield frozenset(int(signum) for signum in before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def group_was_sent(signum: int, pids: list[int], witness: int = 0) -> bool:
    """
    Whether the processes *pids*, of this one's group, have been sent the signal that this one has been sent.

    *witness* is a process of the group that blocks it. Without one, where each of *pids* has a handler, the answer is
    not known: then it is True, since no signal is better than two.

    >>> import os
    >>> group_was_sent(signal.SIGTERM, [os.getpid()])
    False
    """
    if not pids or witness:
        return not pids or was_sent(witness, signum)
    return not any(would_have_died(pid, signum) for pid in pids)


def was_sent(pid: int, signum: int) -> bool:
    """
    Whether a process that blocks the signal has been sent it; one that did not, and has gone, has been, too.

    >>> import os
    >>> was_sent(os.getpid(), signal.SIGTERM)
    False
    """
    return bool(_sets(pid, "SigPnd", "ShdPnd") >> (signum - 1) & 1)


def would_have_died(pid: int, signum: int) -> bool:
    """
    Whether the process lives and neither blocks nor ignores nor catches the signal: it has not been sent it, then.

    >>> import os
    >>> would_have_died(os.getpid(), signal.SIGTERM)
    True
    """
    return not _sets(pid, "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt") >> (signum - 1) & 1


def _sets(pid: int, *names: str) -> int:
    """
    The union of these sets of signals; all signals for a process that has gone.
    """
    try:
        with open(f"/proc/{pid}/status") as file:
            fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    except OSError:
        fields = {}
    if fields.get("State", "Z")[0] in "ZX":
        return (1 << 64) - 1
    union = 0
    for name in names:
        union |= int(fields[name], 16)
    return union
