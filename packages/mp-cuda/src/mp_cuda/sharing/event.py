"""Event: a mark in a stream that any process can wait for."""

from __future__ import annotations

import threading
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

from mp_cuda.driver import cuda_driver, finalizer_queue
from mp_cuda.driver.functions import Reference, export_object, own_sent, process, receive_reference
from mp_cuda.driver.stream import as_stream
from mp_cuda.errors import ProducerGoneError
from mp_cuda.sharing.exports import ipc_collect
from mp_cuda.sharing.imports import own_is_gone
from mp_cuda.sharing.ipc_events import BLOCKING_SYNC, DISABLE_TIMING, INTERPROCESS, destroy, open_handle


class Event(finalizer_queue.Finalized):
    """
    A mark in a stream that any stream, thread or process can wait for.

    It is created on *device*, or on the device of the first stream that records it. With *interprocess* you can send it
    like an array: the receiver has the same event and may record it too, and it lives until both have dropped it.

    Parameters
    ----------
    enable_timing : bool
        Measure time.
    blocking : bool
        Let `synchronize` sleep instead of spin.
    interprocess : bool
        Allow sending it to other processes. Such an event has no timing.
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
            raise ValueError(
                "an event for other processes cannot measure time; give only one of enable_timing and interprocess"
            )
        self.interprocess = interprocess
        self._flags = (
            (BLOCKING_SYNC if blocking else 0)
            | (0 if enable_timing else DISABLE_TIMING)
            | (INTERPROCESS if interprocess else 0)
        )
        self._event: Any = None
        self._imported = False
        self._lock = threading.RLock()
        self.device = device
        """The ordinal of its device; None until it is created."""

    def _created(self, device: int | None = None) -> Any:
        with self._lock:
            if self._event is None:
                if self.device is None:
                    self.device = cuda_driver.current_device() if device is None else device
                with cuda_driver.guard(self.device):
                    # A process may have 4096 that other processes can open: destroy those that were dropped.
                    event = cuda_driver.call_with_room(ipc_collect, "cuEventCreate", self._flags)
                    self._adopt(event, self.device, None)
        return self._event

    def _adopt(self, event: Any, device: int, reference: Reference | None) -> None:
        self._event, self.device = event, device
        # An event of another process must outlive the streams here that wait for it.
        self._leave(device, destroy, (int(event), reference), reference is not None)

    @property
    def cuda_event(self) -> int:
        """The event's number in the driver; 0 until it is created."""
        return int(self._event) if self._event is not None else 0

    def record(self, stream: Any = None) -> None:
        """Mark the work given to *stream* so far (legacy default stream if None). It must be on the event's device."""
        of = getattr(stream, "device", None)
        event = self._created(of if isinstance(of, int) else None)
        with cuda_driver.guard(self._on()):
            cuda_driver.call("cuEventRecord", event, as_stream(stream))

    def wait(self, stream: Any = None) -> None:
        """Make later work on *stream* wait for the work marked last. Does not block."""
        if self._event is not None:
            with cuda_driver.guard(self._on()):
                cuda_driver.call("cuStreamWaitEvent", as_stream(stream), self._event, 0)

    def query(self) -> bool:
        """Tell whether the work marked last is done. True if none was marked."""
        if self._event is None:
            return True
        with cuda_driver.guard(self._on()):
            return cuda_driver.is_done("cuEventQuery", self._event)

    def synchronize(self) -> None:
        """Wait until the work marked last is done. Other threads run meanwhile."""
        if self._event is not None:
            with cuda_driver.guard(self._on()):
                cuda_driver.call("cuEventSynchronize", self._event)

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds from this event to *end*. Both need *enable_timing* and must be recorded and done."""
        if self._event is None or end._event is None:
            raise ValueError("record both events before you ask for the time between them")
        with cuda_driver.guard(self._on()):
            return float(cuda_driver.call("cuEventElapsedTime", self._event, end._event))

    def ipc_handle(self) -> bytes:
        """
        Return the 64 bytes for `from_ipc_handle` in another process.

        Users of the bytes are not counted: keep this event until they are done, or send the event itself. `ValueError`
        without *interprocess*, or if another process made the event.
        """
        if not self.interprocess:
            raise ValueError("the event is for this process only; make it with interprocess=True")
        if self._imported:
            raise ValueError("the event was received from another process; only its maker can send it")
        event = self._created()
        with cuda_driver.guard(self._on()):
            return cuda_driver.bytes_of(cuda_driver.call("cuIpcGetEventHandle", event))

    @classmethod
    def from_ipc_handle(cls, device: int, handle: bytes) -> Event:
        """Open the event of another process with this *handle*, on *device*. `ValueError` if it is not 64 bytes."""
        given = cuda_driver.handle_from("CUipcEventHandle", bytes(handle))
        with cuda_driver.guard(device):
            return cls._opened(cuda_driver.call("cuIpcOpenEventHandle", given), device, None)

    @classmethod
    def _opened(cls, event: Any, device: int, reference: Reference | None) -> Event:
        self = cls(interprocess=True, device=device)
        self._imported = True
        self._adopt(event, device, reference)
        return self

    def _on(self) -> int:
        assert self.device is not None
        return self.device

    def __repr__(self) -> str:
        where = "on no device yet" if self.device is None else f"on device {self.device}"
        return f"<Event {where}{', of another process' * self._imported}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Event can be sent to another process but cannot be pickled for storage")


# Received events, so that an event that arrives twice is one object.
_received: weakref.WeakValueDictionary[tuple[tuple[int, bytes], bytes], Event] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def _reduce_event(event: Event) -> Any:
    handle = event.ipc_handle()
    return rebuild_event, (cuda_driver.uuid_of(event._on()), handle, *process(), *export_object(event))


def rebuild_event(uuid: bytes, handle: bytes, pid: int, nonce: bytes, serial: int, offer: bytes) -> Event:
    """Rebuild the event that was sent. In the sender's own process it is the same object."""
    maker = pid, nonce
    # Retain what was sent before the reference is released: the export drops it with the last one.
    sent = own_sent(serial) if maker == process() else None
    reference = receive_reference(offer, pid, nonce)
    if maker == process():
        reference.release()
        if sent is None:
            own_is_gone()
        own: Event = sent[0]
        return own
    with _lock:
        event = _received.get((maker, handle)) if reference.owner_alive else None
        if event is None:
            device = cuda_driver.ordinal_of(uuid)
            opened = open_handle(device, reference, handle)
            if opened is None:
                raise ProducerGoneError(f"process {pid}, which made the event, has ended, and its event with it")
            event = _received[maker, handle] = Event._opened(opened, device, reference)
    return event


ForkingPickler.register(Event, _reduce_event)


@cuda_driver.after_fork
def _forget() -> None:
    global _lock
    _lock = threading.RLock()
    _received.clear()
