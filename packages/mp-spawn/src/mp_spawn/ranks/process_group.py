"""The process group of a rank under the command: the rank, and what it has started.

A number is not given to another process while a group has it.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from mp_core.system.kernel_files import status_of

OF_TERMINALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
#: What a terminal sends to a group, and what ends it.
TO_GROUP = frozenset({*OF_TERMINALS, signal.SIGKILL})


def leads_group(pid: int) -> bool:
    """
    Tell whether a process leads a group: a program may have put itself into another one.

    >>> leads_group(os.getpgid(0))
    True
    """
    with suppress(OSError):
        return os.getpgid(pid) == pid
    return False


def send_to_group(group: int, signum: int) -> bool:
    """
    Send a signal to a group; return False if it is empty.

    >>> send_to_group(os.getpgid(0), 0)
    True
    """
    with suppress(OSError):
        os.killpg(group, signum)
        return True
    return False


def is_alive(group: int) -> bool:
    """
    Tell whether a process of the group runs: nobody may wait for those whose parent has ended.

    >>> is_alive(os.getpgid(0))
    True
    """
    return send_to_group(group, 0) and any(map(group.__eq__, _groups()))


def _groups() -> list[int]:
    """Return the group of each process that runs; without /proc, nothing."""
    with suppress(OSError):
        found = filter(None, map(status_of, filter(str.isdigit, os.listdir("/proc"))))
        return [int(group) for state, _, group, *_ in found if state not in "ZX"]
    return []
