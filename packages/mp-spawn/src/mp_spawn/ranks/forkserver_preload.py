"""Make the fork server survive signals to its group: it imports this as it starts; see Note [Signals and groups].

Without this, SIGTERM to the group ends the server, which then cannot tell how any rank ended. Processes that the
server forks get the mask that it had before, including those of other users of the same server.
"""

from __future__ import annotations

import os
import signal
import sys

from mp_spawn.ranks.signals import FROM_OUTSIDE

__all__: list[str] = []

_before: set[int] = set()
# Anywhere in the text: since CPython issue 144503 (3.14, 3.15) it begins with another import.
_in_server = any("from multiprocessing.forkserver import main" in word for word in sys.orig_argv)


def _restore() -> None:
    global _in_server
    # Once: a mask that a forked process sets itself is inherited by its children.
    if _in_server:
        _in_server = False
        signal.pthread_sigmask(signal.SIG_SETMASK, _before)


if _in_server:
    _before = {int(signum) for signum in signal.pthread_sigmask(signal.SIG_BLOCK, FROM_OUTSIDE)}
    os.register_at_fork(after_in_child=_restore)
