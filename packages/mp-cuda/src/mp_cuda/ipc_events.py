"""IPC events: they order a sender's work on the device before a receiver's.

Note [Events of a message]
--------------------------
A message has an event for each stream that produced some of its bytes, recorded when the message has been pickled. The
receiver makes its own streams wait for it; no thread blocks. Events come from a pool and return to it when the last
receiver has released the message, so that no event is recorded again while a stream still waits for it. Events of the
pool are never destroyed, so that a receiver can keep an opened event and find it by its handle.

A process may have 4096 such events. If no event is available, the sender waits for its stream instead.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from mp_core import collect_leases
from mp_cuda import at_exit, cuda_driver, finalizer_queue, policy
from mp_cuda.errors import DriverError
from mp_cuda.process_identity import Process
from mp_cuda.stream import as_stream

__all__ = ["ImportedEvent", "PooledEvent", "close_all", "counts", "open_event", "take", "wait_on_own"]

INTERPROCESS, DISABLE_TIMING, BLOCKING_SYNC = 4, 2, 1
KEPT_OPEN = 1024
OUT_OF_MEMORY = 2

_lock = threading.RLock()
_free: dict[int, deque[PooledEvent]] = {}
_made: dict[bytes, PooledEvent] = {}
"""All events of the pool, by their handles."""


# ---- the sender's side -----------------------------------------------------------------------------------------------


class PooledEvent:
    """An event of the pool, with the 64-byte handle that opens it in another process."""

    __slots__ = ("device", "event", "handle")

    def __init__(self, device: int) -> None:
        self.device = device
        self.event = cuda_driver.call("cuEventCreate", INTERPROCESS | DISABLE_TIMING | BLOCKING_SYNC)
        self.handle = cuda_driver.bytes_of(cuda_driver.call("cuIpcGetEventHandle", self.event))

    def record(self, stream: Any) -> None:
        """Mark the work given to *stream* so far."""
        with cuda_driver.guard(self.device):
            cuda_driver.call("cuEventRecord", self.event, as_stream(stream))

    def wait_on(self, stream: Any) -> None:
        """Make later work on *stream* wait for the recorded work."""
        with cuda_driver.guard(self.device):
            cuda_driver.call("cuStreamWaitEvent", as_stream(stream), self.event, 0)

    def return_to_pool(self) -> None:
        """Return an event that no stream waits for any more. Does not lock."""
        _free[self.device].append(self)


def take(device: int) -> PooledEvent | None:
    """Take an event of *device* from the pool. Return None if there is none: then the sender waits for its stream."""
    free = _free.setdefault(device, deque())
    try:
        return free.pop()  # the one that was used last: receivers have it open
    except IndexError:
        pass
    with _lock:
        if len(_made) >= policy.event_pool:
            collect_leases()
            return free.pop() if free else None
        try:
            with cuda_driver.guard(device):
                event = PooledEvent(device)
        except DriverError:
            return None
        _made[event.handle] = event
    return event


def wait_on_own(handle: bytes, stream: Any) -> None:
    """Make later work on *stream* wait for the event of this process with that handle."""
    _made[handle].wait_on(stream)


# ---- the receiver's side ---------------------------------------------------------------------------------------------


class _Destroy:
    after_work = False

    def __init__(self, device: int, event: Any) -> None:
        self.device, self.event = device, event

    def run(self) -> None:
        with cuda_driver.guard(self.device):
            cuda_driver.call("cuEventDestroy", self.event)


class ImportedEvent:
    """An event of another process."""

    __slots__ = ("__weakref__", "_task", "device", "event")

    def __init__(self, device: int, handle: bytes) -> None:
        self.device = device
        with cuda_driver.guard(device):
            self.event = cuda_driver.call("cuIpcOpenEventHandle", cuda_driver.handle_from("CUipcEventHandle", handle))
        self._task = _Destroy(device, self.event)
        finalizer_queue.expect()

    def wait_on(self, stream: Any) -> None:
        """Make later work on *stream* wait for the recorded work."""
        with cuda_driver.guard(self.device):
            cuda_driver.call("cuStreamWaitEvent", as_stream(stream), self.event, 0)

    def __del__(self, put: Any = finalizer_queue.put) -> None:
        task = getattr(self, "_task", None)
        if task is not None:
            put(task)


_recent: OrderedDict[tuple[Process, bytes], ImportedEvent] = OrderedDict()
_opened: weakref.WeakValueDictionary[tuple[Process, bytes], ImportedEvent] = weakref.WeakValueDictionary()


def open_event(device: int, owner: Process, handle: bytes, alive: Callable[[], bool]) -> ImportedEvent | None:
    """
    Open the event of *owner* with *handle*, or return the one already open. The last 1024 stay open.

    The key includes the owner because an open event may outlive it, and a later process may have its pid and handles.
    Return None if the owner has ended: the driver opens its event, too.
    """
    key = owner, handle
    with _lock:
        event = _opened.get(key)
        if event is None:
            event = _open(device, handle, alive)
            if event is None:
                return None
            _opened[key] = event
        _recent[key] = event
        _recent.move_to_end(key)
        if len(_recent) > KEPT_OPEN:
            _recent.popitem(last=False)
    return event


def _open(device: int, handle: bytes, alive: Callable[[], bool]) -> ImportedEvent | None:
    if not alive():
        return None
    try:
        event = ImportedEvent(device, handle)
    except DriverError as error:
        if not alive():
            return None
        if error.code != OUT_OF_MEMORY:
            raise
        close_all()  # a process may have so many; those kept for reuse make room
        finalizer_queue.drain()
        event = ImportedEvent(device, handle)
    return event if alive() else None


def counts() -> tuple[int, int]:
    """Return how many events are in the pool or in use, and how many of other processes are open."""
    return len(_made), len(_opened)


def close_all() -> None:
    """Close the events of other processes that are kept open only for reuse."""
    with _lock:
        _recent.clear()


@at_exit.register(at_exit.Step.EVENTS)
def _close_at_exit() -> None:
    close_all()
    finalizer_queue.drain()


@cuda_driver.after_fork
def _forget() -> None:
    global _lock
    _lock = threading.RLock()
    _made.clear()
    for event in list(_recent.values()):
        event._task = None  # type: ignore[assignment]
    _recent.clear()
    _opened.clear()
    _free.clear()
