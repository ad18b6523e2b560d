"""The locks as methods of multiprocessing's contexts: `get_context("spawn").Lock()` is a `mp_core.Lock`.

Shared ctypes objects of multiprocessing get their locks from a context, so they have them too. Queues have the standard
library's: see `_queue_locks.py`.
"""

from __future__ import annotations

from multiprocessing.context import BaseContext
from typing import Any

from mp_core import _queue_locks, conditions, locks

__all__ = ["install"]

KINDS = (
    locks.Lock,
    locks.RLock,
    locks.Semaphore,
    locks.BoundedSemaphore,
    conditions.Condition,
    conditions.Event,
    conditions.Barrier,
)


def _method(kind: Any) -> Any:
    def make(self: BaseContext, *args: Any, **options: Any) -> Any:
        return kind(*args, ctx=self.get_context(), **options)

    make.__name__ = make.__qualname__ = kind.__name__
    make.__doc__ = f"Return a `mp_core.{kind.__name__}`."
    return make


def install() -> None:
    """Make the locks of every context those of mp_core. The functions of `multiprocessing` itself stay unchanged."""
    for kind in KINDS:
        setattr(BaseContext, kind.__name__, _method(kind))
    _queue_locks.install()
