"""Messages: make what lets other processes open the memory of the arrays of a message.

Note [One message]
------------------
All arrays of a message share its `Outgoing`: one lease, one event for each stream that produced something, one handle
for each allocation. The events are recorded when the whole message has been pickled, because pickling it may give the
device more work: a `__reduce__` may compute the array that it sends.

Memory that was sent before, and that a receiver still has or may still receive, is sent with the same lease again: so
an array that is sent over and over has one, and nothing is asked about its memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from mp_core import collect_leases
from mp_core.native import message_part
from mp_cuda import cuda_driver, imports, ipc_events, policy, transports
from mp_cuda.array import DeviceArray, empty, order
from mp_cuda.errors import NotShareableError, StaleHandleError
from mp_cuda.exports import NO_SLOT, Export, Kept, kept_before
from mp_cuda.layout import byte_range
from mp_cuda.pointer import AllocationInfo, UnknownPointerError, allocation_of, reason
from mp_cuda.process_identity import me
from mp_cuda.stream import LEGACY, as_stream, in_feeder
from mp_cuda.wire import ALL, Memory, MemoryKey, Ready, joined

__all__ = ["Carried", "Described", "Outgoing", "described", "outgoing"]

COLLECT_EVERY = 64
MOST_KNOWN = 4096
_messages = itertools.count(1)
_known: dict[int, Memory] = {}
"""What messages say about allocations that a handle opens, by the allocation's number."""


class Carried:
    """An export in one message, for one receiver or several."""

    __slots__ = ("export", "offers")

    def __init__(self, export: Export, receivers: int = 1) -> None:
        self.export = export
        # Before it is pickled: if that fails, the message's references are discarded.
        self.offers = export.offer(receivers)

    def __reduce__(self) -> Any:
        offers, self.offers = self.offers, ()
        if not offers:  # it is in another pickle, too
            offers = self.export.offer(1)
        return imports.receive_message, (*me(), self.export.serial, joined(offers))

    def take_back(self) -> None:
        """Take back the references of a message that is not sent."""
        offers, self.offers = self.offers, ()
        for offer in offers:
            try:
                imports.receive_reference((offer,)).release()
            except StaleHandleError:
                pass  # revoked already


class Forwarded:
    """A lease of another process, for memory of it that a message sends on."""

    __slots__ = ("delivery", "receivers")

    def __init__(self, delivery: imports.Delivery, receivers: int) -> None:
        self.delivery, self.receivers = delivery, receivers

    def __reduce__(self) -> Any:
        offers = tuple(self.delivery.reference.offer() for _ in range(self.receivers))
        return imports.receive_message, (*self.delivery.owner, self.delivery.serial, joined(offers))


class Outgoing:
    """What the arrays of a message that is being pickled share."""

    def __init__(self, receivers: int = 1) -> None:
        if next(_messages) % COLLECT_EVERY == 0:
            collect_leases()
        self.receivers = receivers
        self.carried: dict[int, Carried] = {}
        """The exports of the message, by their serial numbers."""
        self._last: tuple[AllocationInfo, Memory] | None = None
        self._fresh: Carried | None = None
        self._theirs: dict[imports.Mapping, Memory] = {}
        self._leases: dict[imports.Delivery, Forwarded] = {}
        self._ready: dict[tuple[int, int], Ready | None] = {}
        self._recorded: list[tuple[ipc_events.PooledEvent, int]] = []
        self._devices: set[int] = set()
        self._in_feeder = in_feeder()

    def fresh(self) -> Carried:
        """Return an export for what has no live one, or must not share it."""
        if self._fresh is None:
            self._fresh = self._added(Carried(Export(), self.receivers))
        return self._fresh

    def carry(self, export: Export) -> bool:
        """Send an export again. Return False if its lease has just ended."""
        try:
            self._added(Carried(export))
        except ValueError:
            return False
        return True

    def _added(self, carried: Carried) -> Carried:
        self.carried[carried.export.serial] = carried
        return carried

    def allocation_with(self, array: DeviceArray, low: int, high: int) -> tuple[AllocationInfo, Memory]:
        """Return the allocation with these bytes, and how the message names it."""
        if self._last is not None:
            allocation, _ = self._last
            # The message keeps it, so its address is not used again.
            if allocation.base <= low and high <= allocation.base + allocation.nbytes:
                return self._last
        with cuda_driver.guard(array.device):
            allocation = allocation_of(array.ptr, low - array.ptr, high - array.ptr)
            known = self.fresh().export.allocations.get(allocation.buffer_id)
            self._last = known or (allocation, _memory(allocation, self.receivers))
        return self._last

    def ready(self, array: DeviceArray) -> Ready | None:
        """Return the event after the work that produces *array*; None if `finish` waits for that work."""
        if array._stream is None and self._in_feeder:
            self._devices.add(array.device)
            return None
        key = array.device, array._stream or LEGACY
        if key not in self._ready:
            self._ready[key] = self._event_for(*key)
        return self._ready[key]

    def _event_for(self, device: int, stream: int) -> Ready | None:
        event = ipc_events.take(device)
        if event is None:
            return None
        self._recorded.append((event, stream))
        if self.receivers == 1:
            for carried in list(self.carried.values()):
                slot = carried.export.keep_event(event)
                if slot != NO_SLOT:
                    return Ready(event.handle, carried, slot)
        home = self.fresh()
        home.export.events.append(event)  # it returns to the pool with the export
        return Ready(event.handle, home, NO_SLOT)

    def sent_on(self, mapping: imports.Mapping, delivery: imports.Delivery) -> tuple[Memory, Forwarded]:
        """Return how the message names memory of another process, and a lease for it."""
        if mapping not in self._theirs:
            self._theirs[mapping] = mapping.memory()
        if delivery not in self._leases:
            self._leases[delivery] = Forwarded(delivery, self.receivers)
        return self._theirs[mapping], self._leases[delivery]

    def finish(self) -> None:
        """Finish a message that has been pickled."""
        for carried in self.carried.values():
            if carried.offers:  # a reducer has failed, and somebody has handled that
                carried.take_back()
        self.record()

    def record(self) -> None:
        """Record the events, or wait for the work."""
        for event, stream in self._recorded:
            event.record(stream)
        for (device, stream), ready in self._ready.items():
            if ready is None:
                with cuda_driver.guard(device):
                    cuda_driver.call("cuStreamSynchronize", as_stream(stream))
        for device in self._devices:
            cuda_driver.synchronize(device)

    def drop(self) -> None:
        """Take the references of a message back that will not be sent."""
        for carried in self.carried.values():
            carried.take_back()


def outgoing() -> tuple[Outgoing, bool]:
    """Return what the message that this thread is pickling shares, and whether it is the caller who records events."""
    part = message_part(Outgoing)
    return (part, False) if part is not None else (Outgoing(), True)


class Described(NamedTuple):
    """An array as a part of a message."""

    leases: tuple[Carried | Forwarded, ...]
    """For its memory: of this process, or of the one that owns it."""
    memory: Memory
    ready: Ready | None
    number: int
    """Of what the export keeps for it."""
    offset: int
    """From the begin of the memory."""


def described(
    array: DeviceArray,
    message: Outgoing,
    in_use: Callable[[Any], bool] | None = None,
    fallback: policy.Fallback | None = None,
) -> Described:
    """
    Make *array* a part of *message*. `NotShareableError` if no process can open its memory.

    *in_use* is that of `Export.keep`.
    """
    low, high = byte_range(array.shape, array.strides, array.dtype.itemsize)
    low, high = array.ptr + low, array.ptr + high
    owner = array if array._owner is None else array._owner
    kept = _sent_before(owner, message, low, high)
    if kept is None:
        try:
            source = imports.find(low, array.device)
            if source is not None:
                return _forwarded(source, array, message)
            allocation, memory = message.allocation_with(array, low, high)
        except NotShareableError as error:
            if (fallback or policy.fallback) != "copy" or isinstance(error, UnknownPointerError):
                raise
            return described(_copied(array, low, high), message)
        kept = message.fresh().export.keep_memory(owner, allocation, memory, in_use)
    carried = message.carried[kept.export.serial]
    return Described((carried,), kept.memory, message.ready(array), kept.number, array.ptr - kept.allocation.base)


def _sent_before(owner: Any, message: Outgoing, low: int, high: int) -> Kept | None:
    """Return a live export of *owner* with these bytes, which is a part of the message now."""
    kept = kept_before(owner, low, high)
    if kept is None:
        return None
    if kept.export.serial in message.carried:
        return kept
    # A descriptor of a pool is for the receiver of one message.
    if message.receivers > 1 or kept.memory.extra is not None or not message.carry(kept.export):
        return None
    return kept


def _memory(allocation: AllocationInfo, receivers: int) -> Memory:
    memory = _known.get(allocation.buffer_id)
    if memory is not None:
        return memory
    transport = transports.suited(allocation)
    if transport == "pool" and receivers > 1:
        raise NotShareableError(
            f"memory of a pool goes to one receiver for each message, not {receivers}: call share() once for each"
        )
    if transport is None:
        raise NotShareableError(f"another process cannot open the memory of this array: {reason(allocation)}")
    handle, extra = transports.of(transport).export(allocation)
    key = MemoryKey(me(), allocation.buffer_id, handle)
    memory = Memory(transport, cuda_driver.uuid_of(allocation.device), key, allocation.nbytes, extra)
    if extra is None:  # it is for any number of messages
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        _known[allocation.buffer_id] = memory
    return memory


def _forwarded(source: imports.Received, array: DeviceArray, message: Outgoing) -> Described:
    """Send on memory of another process: with references to its owner's leases, and an event after our own work."""
    mapping = source.mapping
    if mapping.transport == "pool":
        raise NotShareableError(
            "the memory is from a pool of another process, and only that one can send it; send it from there, or copy "
            "it with share(..., fallback='copy')"
        )
    # The legacy default stream waits for the sender's work.
    if (array._stream or LEGACY) != LEGACY:
        order(array.device, LEGACY, array._stream or LEGACY)
    own = array._received
    # An array of another library does not tell which message has brought it, so all of them are sent on.
    leases: list[Forwarded] = []
    for received in [own] if own is not None else list(mapping.received):
        memory, lease = message.sent_on(mapping, received.delivery)
        leases.append(lease)
    return Described(tuple(leases), memory, message.ready(array), ALL, array.ptr - mapping.ptr)


def _copied(array: DeviceArray, low: int, high: int) -> DeviceArray:
    """Copy everything between the array's first and last byte into memory that can be shared."""
    block = empty((high - low,), "|u1", device=array.device)
    with cuda_driver.guard(array.device):
        stream = as_stream(array._stream)
        if array._stream is None and in_feeder():
            cuda_driver.call("cuCtxSynchronize")
        cuda_driver.call("cuMemcpyAsync", block.ptr, low, high - low, stream)
        # The original may be freed, and its memory reused, before the receiver reads.
        cuda_driver.call("cuStreamSynchronize", stream)
    return array._replace(ptr=block.ptr + array.ptr - low, owner=block._owner)


@cuda_driver.after_fork
def _forget() -> None:
    _known.clear()
