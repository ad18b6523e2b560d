"""DataLoader: its queue, and the batches that are left in it when its workers end.

Note [Batches that nobody reads]
--------------------------------
A DataLoader that is left before its end has batches in its queue. Nobody reads them, and a message that is not read
keeps its memory until the session ends. mp-core's queues free it when their last reading end is closed. With a queue of
multiprocessing, the process that started the workers reads, after they have ended, what is left and drops it.

torch ends a worker by SIGTERM if it has not ended within 5 seconds, as on a busy machine. The queue of multiprocessing
has a thread that pickles a batch, waits for the GIL and for the other workers, and writes. A worker that is killed
there has a batch in flight that no queue contains. mp-core's queue pickles and writes in one call, which takes some
microseconds. So a DataLoader without a context, with the name of a start method, or with a context of multiprocessing,
gets mp-core's context of the same start method, unless ``MP_CHANNEL=0`` turns these queues off.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from multiprocessing import context
from multiprocessing.connection import Connection
from typing import Any

from mp_core.installation.contexts import default_context
from mp_core.sharing import forks
from mp_core.sharing.backend import discard_unread
from mp_core.system import machine
from mp_core.system.imports import when_imported
from mp_core.system.settings import channels_enabled

_STANDARD = (context.DefaultContext, context.ForkContext, context.SpawnContext, context.ForkServerContext)

#: torch imports it some time after it has registered its reducers, which is when this package is installed.
MODULE = "torch.utils.data.dataloader"


def install() -> None:
    """Give DataLoader our queue, and let it drop batches that are left; at once, or when its module is imported."""
    when_imported(MODULE, _replace)


def _replace() -> None:
    kind = getattr(sys.modules[MODULE], "_MultiProcessingDataLoaderIter", None)
    if kind is None or hasattr(kind, "_of_mp_torch"):
        return
    kind._of_mp_torch = True
    initialise, shutdown = kind.__init__, kind._shutdown_workers

    def __init__(self: Any, loader: Any) -> None:
        with _starting:
            before = loader.multiprocessing_context
            loader.multiprocessing_context = _with_our_queues(before)
            try:
                initialise(self, loader)
            finally:
                loader.multiprocessing_context = before

    def _shutdown_workers(self: Any) -> None:
        ended = getattr(self, "_shutdown", True)
        shutdown(self)
        if not ended and getattr(self, "_shutdown", False):
            _drop_messages(self._worker_result_queue)

    kind.__init__ = functools.wraps(initialise)(__init__)
    kind._shutdown_workers = functools.wraps(shutdown)(_shutdown_workers)


def _with_our_queues(before: Any) -> Any:
    """Return mp-core's context of the same start method in place of None or multiprocessing's; any other unchanged."""
    chosen = sys.modules["torch.multiprocessing"] if before is None else before
    standard = before is None or type(before) in _STANDARD
    if not (standard and machine.has_libshm() and channels_enabled()):
        return before
    return default_context.get_context(chosen.get_start_method())


# Held while workers start: two threads may iterate one loader, and each has to find its context as it was. A worker is
# forked meanwhile, and has a new one.
_starting = threading.RLock()


forks.register(after_in_child=_starting._at_fork_reinit)  # type: ignore[attr-defined]


def _drop_messages(queue: Any) -> None:
    """Free the memory of what a queue still has; no other process may read it any more."""
    if type(queue._reader) is not Connection:
        return  # mp-core's
    try:
        discard_unread(_read(queue._reader.fileno()))
    except OSError:
        pass  # the queue is closed


def _read(fd: int) -> bytes:
    os.set_blocking(fd, False)
    parts = []
    try:
        while part := os.read(fd, 1 << 16):
            parts.append(part)
    except BlockingIOError:
        pass
    finally:
        os.set_blocking(fd, True)
    return b"".join(parts)
