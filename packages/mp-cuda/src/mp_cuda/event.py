"""Event: a mark in a stream, which any process can wait for."""

from __future__ import annotations

import threading
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

from mp_core import LeaseReference
from mp_cuda import driver, janitor
from mp_cuda.errors import DriverError, ProducerGoneError, StaleHandleError
from mp_cuda.export import Export, exports
from mp_cuda.opened import claim_any
from mp_cuda.process import Process, me
from mp_cuda.stream import NOT_READY, as_stream

__all__ = ["Event", "rebuild_event"]

BLOCKING_SYNC, DISABLE_TIMING, INTERPROCESS = 1, 2, 4


class _Destroy:
    """Destroy an event, and only then give back the claim on it."""

    def __init__(self, device: int, event: Any, claim: LeaseReference | None) -> None:
        self.device, self.event, self.claim = device, event, claim
        # Somebody else's event must not end while a stream here still waits for it.
        self.after_work = claim is not None

    def finish(self) -> None:
        try:
            with driver.guard(self.device):
                driver.call("cuEventDestroy", self.event)
        finally:
            if self.claim is not None:
                self.claim.release()


class Event:
    """
    A mark in a stream, which any stream, thread or process can wait for.

    It is made on the device of the first stream that records it, or on *device*. With *interprocess* it can be sent, as
    an array can: the receiver has the same event, may record it as well, and it lives until both have dropped it.

    Parameters
    ----------
    enable_timing : bool
        Can it measure time?
    blocking : bool
        Does `synchronize` sleep rather than spin?
    interprocess : bool
        Can it be sent to other processes? Such an event has no timing.
    device : int
        An ordinal; that of the first stream if None.

    Raises
    ------
    ValueError
        Both *enable_timing* and *interprocess*.

    Examples
    --------
    >>> event = mp_cuda.Event(interprocess=True)                                 # doctest: +SKIP
    >>> event.record(); event.synchronize(); event.query()                       # doctest: +SKIP
    True
    """

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        *,
        device: int | None = None,
    ) -> None:
        if enable_timing and interprocess:
            raise ValueError("an event for other processes cannot measure time; leave out one of the two")
        self.interprocess = interprocess
        self._flags = (
            (BLOCKING_SYNC if blocking else 0)
            | (0 if enable_timing else DISABLE_TIMING)
            | (INTERPROCESS if interprocess else 0)
        )
        self._event: Any = None
        self._chore: _Destroy | None = None
        self._imported = False
        self._lock = threading.RLock()
        self.device = device
        """The ordinal of its device; None as long as it is on none."""

    def _made(self, device: int | None = None) -> Any:
        with self._lock:
            if self._event is None:
                if self.device is None:
                    self.device = driver.current_device() if device is None else device
                with driver.guard(self.device):
                    self._adopt(driver.call("cuEventCreate", self._flags), self.device, None)
        return self._event

    def _adopt(self, event: Any, device: int, claim: LeaseReference | None) -> None:
        self._event, self.device = event, device
        self._chore = _Destroy(device, event, claim)
        janitor.expect()

    @property
    def cuda_event(self) -> int:
        """The driver's number of it; 0 before it was made."""
        return int(self._event) if self._event is not None else 0

    def record(self, stream: Any = None) -> None:
        """Mark what *stream* (the legacy default stream if None) was given so far. It must be of the event's device."""
        of = getattr(stream, "device", None)
        event = self._made(of if isinstance(of, int) else None)
        with driver.guard(self._on()):
            driver.call("cuEventRecord", event, as_stream(stream))

    def wait(self, stream: Any = None) -> None:
        """What *stream* is given from now on begins after what was marked last. Does not block."""
        if self._event is not None:
            with driver.guard(self._on()):
                driver.call("cuStreamWaitEvent", as_stream(stream), self._event, 0)

    def query(self) -> bool:
        """Is what was marked last done? True when nothing was."""
        if self._event is None:
            return True
        try:
            with driver.guard(self._on()):
                driver.call("cuEventQuery", self._event)
        except DriverError as error:
            if error.code != NOT_READY:
                raise
            return False
        return True

    def synchronize(self) -> None:
        """Wait until what was marked last is done. Other threads run meanwhile."""
        if self._event is not None:
            with driver.guard(self._on()):
                driver.call("cuEventSynchronize", self._event)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to *end*, both with *enable_timing*, recorded and done."""
        if self._event is None or end._event is None:
            raise ValueError("both events must have been recorded before the time between them can be had")
        with driver.guard(self._on()):
            return float(driver.call("cuEventElapsedTime", self._event, end._event))

    def ipc_handle(self) -> bytes:
        """
        64 bytes for `from_ipc_handle` in another process. Whoever has them is not counted: keep this event until they
        are done with it, or send the event itself. `ValueError` without *interprocess*, or for somebody else's event.
        """
        self._must_be_ours()
        event = self._made()
        with driver.guard(self._on()):
            return driver.bytes_of(driver.call("cuIpcGetEventHandle", event))

    @classmethod
    def from_ipc_handle(cls, device: int, handle: bytes) -> Event:
        """The event of another process with this *handle*, on *device*. `ValueError` when it has not 64 bytes."""
        self = cls(interprocess=True, device=device)
        self._imported = True
        given = driver.handle_from("CUipcEventHandle", bytes(handle))
        with driver.guard(device):
            self._adopt(driver.call("cuIpcOpenEventHandle", given), device, None)
        return self

    def _on(self) -> int:
        assert self.device is not None
        return self.device

    def _must_be_ours(self) -> None:
        if not self.interprocess:
            raise ValueError("the event is for this process only; make it with interprocess=True")
        if self._imported:
            raise ValueError("the event was received from another process; only the process that made it can send it")

    def __repr__(self) -> str:
        where = "on no device yet" if self.device is None else f"on device {self.device}"
        return f"<Event {where}{', of another process' * self._imported}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Event can travel to another process but cannot be pickled for keeping")

    def __del__(self, drop: Any = janitor.drop) -> None:
        chore = getattr(self, "_chore", None)
        if chore is not None:
            drop(chore)


# What was received here, so that an event that arrives twice is one event.
_received: weakref.WeakValueDictionary[tuple[Process, bytes], Event] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def _reduce_event(event: Event) -> Any:
    handle = event.ipc_handle()
    export = Export(event)
    return rebuild_event, (driver.uuid_of(event._on()), handle, tuple(me()), export.serial, export.offers(1))


def rebuild_event(
    uuid: bytes, handle: bytes, owner: tuple[int, int, bytes], serial: int, offers: tuple[bytes, ...]
) -> Event:
    """The event that was sent; the very same object in the process that sent it."""
    maker = Process(*owner)
    if maker == me():
        export = exports.get(serial)
        event: Event | None = export.owner if export is not None else None
        claim_any(offers).release()
        assert event is not None
        return event
    try:
        claim = claim_any(offers)
    except StaleHandleError:
        if maker.alive:
            raise
        raise _gone(maker) from None
    with _lock:
        known = _received.get((maker, handle))
        if known is not None:
            claim.release()
            return known
        try:
            device = driver.ordinal_of(uuid)
            event = Event(interprocess=True, device=device)
            event._imported = True
            given = driver.handle_from("CUipcEventHandle", handle)
            with driver.guard(device):
                event._adopt(driver.call("cuIpcOpenEventHandle", given), device, claim)
        except BaseException as error:
            claim.release()
            if isinstance(error, DriverError) and not maker.alive:
                raise _gone(maker) from error
            raise
        _received[maker, handle] = event
    return event


def _gone(maker: Process) -> ProducerGoneError:
    return ProducerGoneError(f"process {maker.pid}, which made the event, has ended, and its event with it")


ForkingPickler.register(Event, _reduce_event)


@driver.after_fork
def _forget() -> None:
    global _lock
    _lock = threading.RLock()
    for event in list(_received.values()):
        if event._chore is not None and event._chore.claim is not None:
            event._chore.claim.release()
    _received.clear()
