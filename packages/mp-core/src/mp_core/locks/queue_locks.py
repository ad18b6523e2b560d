"""The locks of the standard queues stay those of the standard library.

A queue must reach every child, also one that cannot attach to the session (a stopped manager, a removed folder, no free
slot), and a lock in shared memory cannot. A lock that passes on would not help a queue either: if its holder dies in
the middle of a message, the next reader takes the rest of that message for the beginning of another. The queues over
channels (`channel_queues.py`) have an answer to that, and need no locks to read and write.
"""

from __future__ import annotations

import functools
from multiprocessing import synchronize

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The attributes of multiprocessing that are replaced; their types are not those of a method.
_synchronize: Any = synchronize


class StandardLocks:
    """A context whose locks are those of `multiprocessing.synchronize`; the rest is the context's own."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def Lock(self) -> Any:
        return _synchronize.Lock(ctx=self)

    def RLock(self) -> Any:
        return _synchronize.RLock(ctx=self)

    def Semaphore(self, value: int = 1) -> Any:
        return _synchronize.Semaphore(value, ctx=self)

    def BoundedSemaphore(self, value: int = 1) -> Any:
        return _synchronize.BoundedSemaphore(value, ctx=self)

    def Condition(self, lock: Any = None) -> Any:
        return _synchronize.Condition(lock, ctx=self)


def _with_standard_locks(kind: Any) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def initialise(self: Any, *args: Any, ctx: Any, **options: Any) -> None:
        original(self, *args, ctx=ctx if isinstance(ctx, StandardLocks) else StandardLocks(ctx), **options)

    kind.__init__ = initialise


def install() -> None:
    """Let `Queue`, `JoinableQueue` and `SimpleQueue` of multiprocessing make standard locks, whatever their context."""
    from multiprocessing import queues  # whose import calls this function

    if hasattr(queues.Queue.__init__, "__wrapped__"):
        return
    for kind in (queues.Queue, queues.JoinableQueue, queues.SimpleQueue):
        _with_standard_locks(kind)
