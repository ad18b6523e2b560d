"""The locks as methods of multiprocessing's contexts: `get_context("spawn").Lock()` is a `mp_core.Lock`.

Shared ctypes objects of multiprocessing get their locks from a context, so these are robust. Queues have the standard
library's: see `queue_locks.py`.
"""

from __future__ import annotations

from multiprocessing.context import BaseContext

from mp_core.system import imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The module of each kind of lock. It is imported with the first lock of a program.
MODULES = {
    **dict.fromkeys(("Lock", "RLock", "Semaphore", "BoundedSemaphore"), "mp_core.locks.robust_locks"),
    **dict.fromkeys(("Condition", "Event", "Barrier"), "mp_core.locks.conditions"),
}


def _method(name: str) -> Any:
    def make(self: BaseContext, *args: Any, **options: Any) -> Any:
        return getattr(imports.load(MODULES[name]), name)(*args, ctx=self.get_context(), **options)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"Return a `mp_core.{name}`."
    return make


def _standard_locks_of_queues() -> None:
    imports.load("mp_core.locks.queue_locks").install()


def _ctypes_in_blocks() -> None:
    imports.load("mp_core.locks.shared_ctypes").install()


def install() -> None:
    """Make the locks of every context those of mp_core. The functions of `multiprocessing` itself stay unchanged."""
    for name in MODULES:
        setattr(BaseContext, name, _method(name))
    imports.when_imported("multiprocessing.queues", _standard_locks_of_queues)
    imports.when_imported("multiprocessing.sharedctypes", _ctypes_in_blocks)
