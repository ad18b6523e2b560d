"""`LateLocks`: the locks of a standard queue, for a queue that does not need them.

Other code may use `_rlock` and `_wlock`, so they exist, but each takes longer to make than a pipe. They are made when
somebody asks for one, or before another process gets the queue, by a pickle or a fork: it must have the same ones.
"""

from __future__ import annotations

import threading
import weakref

from mp_core import forks
from mp_core.weak_sets import members

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from typing import Any

__all__ = ["LateLocks", "make_all"]


class LateLocks:
    """Makes `_rlock` and `_wlock` of a queue late."""

    _lock_context: Any = None

    def _make_locks_late(self, ctx: Any) -> None:
        self._lock_context = ctx
        _without_locks.add(self)

    def _make_locks(self) -> None:
        """Make the locks, unless this process has them."""
        with _making:
            ctx = self._lock_context
            if ctx is not None:
                self._rlock, self._wlock = ctx.Lock(), ctx.Lock()
                self._lock_context = None
        _without_locks.discard(self)

    def __getattr__(self, name: str) -> Any:
        # Python looks here for what the object does not have.
        if name not in ("_rlock", "_wlock") or self._lock_context is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._make_locks()
        return self.__dict__[name]

    def __getstate__(self) -> Any:
        self._make_locks()
        return super().__getstate__()


# A signal handler may interrupt the thread that makes locks, and fork.
_making = threading.RLock()
_without_locks: weakref.WeakSet[LateLocks] = weakref.WeakSet()


def make_all() -> None:
    """Make the locks that the child has to have in common with this process."""
    for each in members(_without_locks):
        try:
            each._make_locks()
        except OSError:
            pass  # no semaphore can be made, and the queue needs none


forks.register(before=make_all)
forks.keep_out(_making)  # the child must not find half of a lock
