"""Sending: what keeps the memory of a message alive until its last receiver has closed it.

Note [Who keeps what alive]
---------------------------
    sender      Export --> the object that was sent (and so its memory), the event of the message
                   |
                 Lease  (mp-core: a count in shared memory, exact whoever is killed)
                   ^
    message     an offer: a claim under way
    receiver    LeaseReference <-- Received <-- the array; given back after the memory was closed, never before

When the last claim has gone, by whatever way, mp-core calls the export's `over`, and the sender lets go. A message that
nobody receives keeps its memory until it is taken back: `ipc_collect(in_flight_older_than=...)`.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from mp_core import Lease, collect_leases
from mp_cuda import driver, opened, policy, signals, transports
from mp_cuda.array import DeviceArray, empty
from mp_cuda.errors import NotShareableError
from mp_cuda.layout import extent as bytes_reached
from mp_cuda.pointer import Extent, NotThere, extent_of, reason
from mp_cuda.process import me
from mp_cuda.stream import LEGACY, as_stream, in_feeder
from mp_cuda.wire import Memory, Message, Ready

__all__ = ["Export", "exports", "message_of"]

exports: dict[int, Export] = {}
"""What this process has sent and others still have, by number."""
_numbers = itertools.count(1)
_sends = itertools.count(1)
COLLECT_EVERY = 64


class Export:
    """One message of ours that somebody may still receive, or has received and not yet let go."""

    __slots__ = ("base", "device", "lease", "nbytes", "owner", "sent_at", "serial", "signal")

    def __init__(
        self, owner: Any, signal: signals.Signal | None = None, *, device: int = 0, base: int = 0, nbytes: int = 0
    ) -> None:
        self.owner, self.signal = owner, signal
        self.device, self.base, self.nbytes = device, base, nbytes
        self.serial = next(_numbers)
        self.sent_at = time.monotonic()
        self.lease = Lease(self.over)
        exports[self.serial] = self

    def over(self) -> None:
        """Nobody has a claim any more. Called by mp-core, once, in whatever thread it notices."""
        exports.pop(self.serial, None)
        signal, self.signal = self.signal, None
        if signal is not None:
            signal.give_back()
        self.owner = None  # the last: what it frees may come back here

    def offers(self, receivers: int) -> tuple[bytes, ...]:
        """Claims for so many receivers."""
        return tuple(self.lease.offer() for _ in range(receivers))


def message_of(
    array: DeviceArray, kind: str, *, receivers: int = 1, fallback: policy.Fallback | None = None
) -> Message:
    """
    The message that lets *receivers* processes open the memory of *array*. `NotShareableError` when none can.
    """
    if receivers < 1:
        raise ValueError(f"a message is for one receiver or more, not {receivers}")
    uuid = driver.uuid_of(array.device) if array.nbytes else b""
    if not array.nbytes:
        return Message(kind, array.shape, array.strides, array.dtype, array.readonly, uuid)
    low, high = bytes_reached(array.shape, array.strides, array.dtype.itemsize)
    source = opened.find(array.ptr + low, array.device)
    try:
        if source is not None:
            return _forward(source, array, kind, receivers)
        with driver.guard(array.device):
            extent = extent_of(array.ptr, low, high)
        transport = transports.suited(extent)
        if transport == "pool" and receivers > 1:
            raise NotShareableError(
                f"memory of a pool goes to one receiver for each message, not {receivers}: share it once for each"
            )
        if transport is None:
            raise NotShareableError(f"the memory of this array cannot be opened by another process: {reason(extent)}")
    except NotShareableError as error:
        if (fallback or policy.fallback) != "copy" or isinstance(error, NotThere):
            raise
        return message_of(_copied(array, low, high), kind, receivers=receivers)
    return _send(array, kind, extent, transport, receivers)


def _send(array: DeviceArray, kind: str, extent: Extent, transport: str, receivers: int) -> Message:
    with driver.guard(extent.device):
        handle, extra = transports.of(transport).export(extent)
    if next(_sends) % COLLECT_EVERY == 0:
        collect_leases()
    owner = array if array._owner is None else array._owner
    export = Export(owner, device=extent.device, base=extent.base, nbytes=extent.nbytes)
    try:
        signal = export.signal = _after_work(array)
        offers = export.offers(receivers)
    except BaseException:
        export.lease.revoke()
        export.over()
        raise
    uuid = driver.uuid_of(extent.device)
    memory = Memory(transport, uuid, me(), export.serial, handle, extent.nbytes, extra)
    ready = Ready(signal.handle, me()) if signal is not None else None
    offset = array.ptr - extent.base
    return Message(kind, array.shape, array.strides, array.dtype, array.readonly, uuid, offset, memory, offers, ready)


def _forward(source: opened.Received, array: DeviceArray, kind: str, receivers: int) -> Message:
    """Memory of another process is sent on with claims on its owner's lease, and waits for our work by our event."""
    memory, offset = source.memory, array.ptr - source.mapping.ptr
    if memory.transport == "pool":
        raise NotShareableError(
            "the memory is from a pool of another process, and only that one can send it; send it from there, or let "
            "share(..., fallback='copy') copy it"
        )
    # The array may stand on any of the messages that have brought this memory.
    for received in list(source.mapping.received):
        received.make_wait(array._stream or LEGACY)
    signal = _after_work(array)
    offers = tuple(source.claim.offer() for _ in range(receivers))
    ready = None
    if signal is not None:
        export = Export(None, signal)
        ready = Ready(signal.handle, me(), export.offers(receivers))
    return Message(
        kind, array.shape, array.strides, array.dtype, array.readonly, memory.uuid, offset, memory, offers, ready
    )


def _after_work(array: DeviceArray) -> signals.Signal | None:
    """An event behind the work that produces *array*; None when that work has been waited for."""
    if array._stream is None and in_feeder():
        driver.synchronize(array.device)
        return None
    return signals.recorded(array.device, array._stream or LEGACY)


def _copied(array: DeviceArray, low: int, high: int) -> DeviceArray:
    """The same elements in memory that can be shared: all that lies between its first and last byte, once."""
    block = empty((high - low,), "|u1", device=array.device)
    with driver.guard(array.device):
        stream = as_stream(array._stream)
        if array._stream is None and in_feeder():
            driver.call("cuCtxSynchronize")
        driver.call("cuMemcpyAsync", block.ptr, array.ptr + low, high - low, stream)
        # The original may be gone, and its memory used again, before the receiver looks.
        driver.call("cuStreamSynchronize", stream)
    return DeviceArray(
        block.ptr - low,
        array.shape,
        array.dtype,
        array.device,
        strides=array.strides,
        readonly=array.readonly,
        owner=block._owner,
        stream=array._stream,
    )


@driver.after_fork
def _forget() -> None:
    """The child owns nothing of it, and nothing of it may be freed there: the driver does not answer."""
    _immortal.append(dict(exports))
    exports.clear()


_immortal: list[Any] = []
