"""Events behind the messages: which work must be done before a receiver may read.

Note [One event per message]
----------------------------
Each message has an event, recorded on the stream that produced its bytes. The receiver makes its own streams wait
for it; nobody blocks. Events come from a pool and go back to it when the last receiver has let go of the message, so
that no one records an event anew for which somebody still waits. Events of the pool are never destroyed, so that a
receiver can keep what it has opened, by handle. When there is no event to be had, the sender waits for its stream
instead.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from typing import Any

from mp_core import collect_leases
from mp_cuda import driver, janitor, policy
from mp_cuda.errors import DriverError
from mp_cuda.process import Process
from mp_cuda.stream import as_stream

__all__ = ["Opened", "Signal", "counts", "open_signal", "recorded"]

INTERPROCESS, DISABLE_TIMING, BLOCKING_SYNC = 4, 2, 1
KEPT_OPEN = 1024

_lock = threading.RLock()
_free: dict[int, deque[Signal]] = {}
_made = 0


class Signal:
    """An event of the pool, and the 64 bytes with which another process opens it."""

    __slots__ = ("device", "event", "handle")

    def __init__(self, device: int) -> None:
        self.device = device
        self.event = driver.call("cuEventCreate", INTERPROCESS | DISABLE_TIMING | BLOCKING_SYNC)
        self.handle = driver.bytes_of(driver.call("cuIpcGetEventHandle", self.event))

    def wait_on(self, stream: Any) -> None:
        """What *stream* is given from now on begins after what was recorded."""
        with driver.guard(self.device):
            driver.call("cuStreamWaitEvent", as_stream(stream), self.event, 0)

    def give_back(self) -> None:
        """Nobody waits for it any more. Does not lock."""
        _free[self.device].append(self)


def recorded(device: int, stream: Any) -> Signal | None:
    """
    An event recorded on *stream*; None when the stream had to be waited for instead.
    """
    with driver.guard(device):
        signal = _take(device)
        if signal is None:
            driver.call("cuStreamSynchronize", as_stream(stream))
            return None
        driver.call("cuEventRecord", signal.event, as_stream(stream))
    return signal


def _take(device: int) -> Signal | None:
    global _made
    free = _free.setdefault(device, deque())
    try:
        return free.popleft()
    except IndexError:
        pass
    with _lock:
        if _made >= policy.event_pool:
            collect_leases()
            return free.popleft() if free else None
        try:
            signal = Signal(device)
        except DriverError:
            return None
        _made += 1
    return signal


# ---- the receiver's side ---------------------------------------------------------------------------------------------


class _Destroy:
    after_work = False

    def __init__(self, device: int, event: Any) -> None:
        self.device, self.event = device, event

    def finish(self) -> None:
        with driver.guard(self.device):
            driver.call("cuEventDestroy", self.event)


class Opened:
    """An event of another process."""

    __slots__ = ("__weakref__", "_chore", "device", "event")

    def __init__(self, device: int, handle: bytes) -> None:
        self.device = device
        with driver.guard(device):
            self.event = driver.call("cuIpcOpenEventHandle", driver.handle_from("CUipcEventHandle", handle))
        self._chore = _Destroy(device, self.event)
        janitor.expect()

    def wait_on(self, stream: Any) -> None:
        """What *stream* is given from now on begins after what was recorded."""
        with driver.guard(self.device):
            driver.call("cuStreamWaitEvent", as_stream(stream), self.event, 0)

    def __del__(self, drop: Any = janitor.drop) -> None:
        chore = getattr(self, "_chore", None)
        if chore is not None:
            drop(chore)


_recent: OrderedDict[tuple[Process, bytes], Opened] = OrderedDict()
_opened: weakref.WeakValueDictionary[tuple[Process, bytes], Opened] = weakref.WeakValueDictionary()


def open_signal(device: int, owner: Process, handle: bytes) -> Opened:
    """
    The event of *owner* with *handle*, opened once; the last thousand stay open.

    What stays open may outlive its owner, and a later process may have its pid, and so its handles.
    """
    key = owner, handle
    with _lock:
        opened = _opened.get(key)
        if opened is None:
            opened = _opened[key] = Opened(device, handle)
        _recent[key] = opened
        _recent.move_to_end(key)
        if len(_recent) > KEPT_OPEN:
            _recent.popitem(last=False)
    return opened


def counts() -> tuple[int, int]:
    """(events in the pool and in use, events of other processes that are open)"""
    return _made, len(_opened)


def close_all() -> None:
    """Let go of the events of other processes that are only kept for the next time."""
    with _lock:
        _recent.clear()


@driver.after_fork
def _forget() -> None:
    global _lock, _made
    _lock = threading.RLock()
    _made = 0
    for opened in list(_recent.values()):
        opened._chore = None  # type: ignore[assignment]
    _recent.clear()
    _opened.clear()
    _free.clear()
