"""Imported by the fork server as it starts: it outlives signals to its group; see Note [Signals and groups].

Without this, SIGTERM to the group ends the server, which then tells of no rank how it ended. The processes that it
forks get the mask that the server had: also those that somebody else starts with the same server.
"""

from __future__ import annotations

import os
import signal
import sys

from mp_spawn.signals import FROM_OUTSIDE

__all__: list[str] = []

_before: set[int] = set()
_in_server = any(word.startswith("from multiprocessing.forkserver import main") for word in sys.orig_argv)


def _restore() -> None:
    global _in_server
    # Once: what a forked process blocks is its own, and goes to its children.
    if _in_server:
        _in_server = False
        signal.pthread_sigmask(signal.SIG_SETMASK, _before)


if _in_server:
    _before = {int(signum) for signum in signal.pthread_sigmask(signal.SIG_BLOCK, FROM_OUTSIDE)}
    os.register_at_fork(after_in_child=_restore)
