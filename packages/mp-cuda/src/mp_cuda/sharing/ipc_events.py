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

import math
import threading
from typing import Any

from mp_cuda.driver import at_exit, cuda_driver, finalizer_queue, policy
from mp_cuda.driver.functions import Event, Reference, destroy_events, free_events, look_at_exports, set_hooks
from mp_cuda.errors import DriverError

INTERPROCESS, DISABLE_TIMING, BLOCKING_SYNC = 4, 2, 1
KEPT_OPEN = 1024

_lock = threading.RLock()
_made: dict[bytes, Event] = {}
"""All events of the pool, and those in use, by their handles."""
_opened: dict[bytes, Event] = {}
"""Events of other processes that are open, by process and handle."""


def make_event(device: int) -> Event | None:
    """Make one more event for messages. Return None if there may be no more, or if others were returned meanwhile."""
    with _lock:
        if len(_made) >= policy.event_pool:
            look_at_exports(False, -math.inf)
            return None
        try:
            with cuda_driver.guard(device):
                event = cuda_driver.call("cuEventCreate", INTERPROCESS | DISABLE_TIMING | BLOCKING_SYNC)
                try:
                    handle = cuda_driver.bytes_of(cuda_driver.call("cuIpcGetEventHandle", event))
                except DriverError:
                    cuda_driver.call("cuEventDestroy", event)
                    raise
        except DriverError:
            return None
        made = _made[handle] = Event(device, int(event), handle)
    return made


def destroy(device: int, events: list[tuple[int, Reference | None]]) -> None:
    """Destroy events, then release the references for them."""
    try:
        cuda_driver.check_codes("cuEventDestroy", destroy_events(device, tuple(number for number, _ in events)))
    finally:
        for _, reference in events:
            if reference is not None:
                reference.release()


def open_event(device: int, home: Reference, handle: bytes) -> Event | None:
    """
    Open the event of another process, which *home* keeps, or return the one already open. 1024 stay open.

    It is known by its owner too, which it may outlive: a later process may have the same pid and handles.
    Return None if the owner has ended.
    """
    pid, nonce = home.owner
    key = pid.to_bytes(4, "little") + nonce + handle
    with _lock:
        event = _opened.get(key)
        if event is None and (opened := open_handle(device, home, handle)) is not None:
            number = int(opened)
            finalizer_queue.expect()
            event = Event(device, number, handle, finalizer_queue.Task(device, destroy, (number, None)))
            _opened[key] = event
            if len(_opened) > KEPT_OPEN:
                del _opened[next(iter(_opened))]
    return event


def open_handle(device: int, home: Reference, handle: bytes) -> Any:
    """Return the event of a handle that *home* keeps; None if its owner has ended, whose event the driver opens too."""
    if not home.owner_alive:
        return None
    given = cuda_driver.handle_from("CUipcEventHandle", handle)
    try:
        with cuda_driver.guard(device):
            # A process may have 4096: those kept for reuse make room.
            event = cuda_driver.call_with_room(_destroy_all, "cuIpcOpenEventHandle", given)
    except DriverError:
        if home.owner_alive:
            raise
        return None
    if not home.owner_alive:
        destroy(device, [(int(event), None)])
        return None
    return event


def counts() -> tuple[int, int, int]:
    """Return how many events were made, how many of them are free, and how many of other processes are open."""
    return len(_made), free_events(), len(_opened)


def close_all() -> None:
    with _lock:
        _opened.clear()


@at_exit.register(at_exit.Step.EVENTS)
def _destroy_all() -> None:
    close_all()
    finalizer_queue.drain()


set_hooks(made=_made, events=_opened, make_event=make_event, open_event=open_event)


@cuda_driver.after_fork
def _forget() -> None:
    global _lock
    _lock = threading.RLock()
    for event in _opened.values():
        event.forget()
    _opened.clear()
    _made.clear()
