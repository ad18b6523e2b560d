"""Messages: make what lets other processes open the memory of the arrays of a message.

Note [One message]
------------------
All arrays of a message share its `Outgoing`: one lease, one event for each stream that produced something, one handle
for each allocation. The events are recorded when the whole message has been pickled, because pickling it may give the
device more work: a `__reduce__` may compute the array that it sends.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from mp_core import collect_leases
from mp_core.native import message_part
from mp_cuda import cuda_driver, imports, ipc_events, policy, transports
from mp_cuda.array import DeviceArray, empty
from mp_cuda.errors import NotShareableError
from mp_cuda.exports import Export
from mp_cuda.layout import byte_range
from mp_cuda.pointer import AllocationInfo, UnknownPointerError, allocation_of, reason
from mp_cuda.process_identity import me
from mp_cuda.stream import LEGACY, as_stream, in_feeder
from mp_cuda.wire import ALL, Memory, MemoryKey, Ready, joined

__all__ = ["Described", "Forwarded", "Outgoing", "described", "outgoing"]

COLLECT_EVERY = 64
MOST_KNOWN = 4096
_messages = itertools.count(1)
_known: dict[int, Memory] = {}
"""What messages say about allocations that a handle opens, by the allocation's number."""


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
        self.export = Export(receivers)
        self.memory: dict[int, Memory] = {}
        """How the message names the allocations of the export."""
        self._theirs: dict[imports.Mapping, Memory] = {}
        self._leases: dict[imports.Delivery, Forwarded] = {}
        self._ready: dict[tuple[int, int], Ready | None] = {}
        self._recorded: list[tuple[ipc_events.PooledEvent, int]] = []
        self._devices: set[int] = set()

    def allocation_of(self, low: int, high: int) -> AllocationInfo | None:
        """Return the allocation of the message with these bytes. The message keeps it: its address is not reused."""
        for allocation in self.export.allocations.values():
            if allocation.base <= low and high <= allocation.base + allocation.nbytes:
                return allocation
        return None

    def ready(self, array: DeviceArray) -> Ready | None:
        """Return the event after the work that produces *array*; None if `finish` waits for that work."""
        if array._stream is None and in_feeder():
            self._devices.add(array.device)
            return None
        key = array.device, array._stream or LEGACY
        if key not in self._ready:
            event = ipc_events.take(array.device)
            self._ready[key] = None
            if event is not None:
                self.export.events.append(event)  # it returns to the pool with the message
                self._recorded.append((event, key[1]))
                self._ready[key] = Ready(event.handle, me())
        return self._ready[key]

    def sent_on(self, mapping: imports.Mapping, delivery: imports.Delivery) -> tuple[Memory, Forwarded]:
        """Return how the message names memory of another process, and a lease for it."""
        if mapping not in self._theirs:
            self._theirs[mapping] = mapping.memory()
        if delivery not in self._leases:
            self._leases[delivery] = Forwarded(delivery, self.receivers)
        return self._theirs[mapping], self._leases[delivery]

    def finish(self) -> None:
        """Finish a message that has been pickled."""
        if self.export.offers:  # the reducer of each array has failed, and somebody has handled that
            self.export.lease.revoke()
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


def outgoing() -> tuple[Outgoing, bool]:
    """Return what the message that this thread is pickling shares, and whether it is the caller who records events."""
    part = message_part(Outgoing)
    return (part, False) if part is not None else (Outgoing(), True)


class Described(NamedTuple):
    """An array as a part of a message."""

    export: Export
    leases: tuple[Forwarded, ...]
    """Those of other processes, if one owns the memory."""
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
    allocation = message.allocation_of(array.ptr + low, array.ptr + high)
    if allocation is None:
        try:
            source = imports.find(array.ptr + low, array.device)
            if source is not None:
                return _forwarded(source, array, message)
            with cuda_driver.guard(array.device):
                allocation = allocation_of(array.ptr, low, high)
                memory = _memory(allocation, message.receivers)
        except NotShareableError as error:
            if (fallback or policy.fallback) != "copy" or isinstance(error, UnknownPointerError):
                raise
            return described(_copied(array, low, high), message)
        message.export.allocations[allocation.buffer_id] = allocation
        message.memory[allocation.buffer_id] = memory
    number = message.export.keep(array if array._owner is None else array._owner, in_use)
    memory = message.memory[allocation.buffer_id]
    return Described(message.export, (), memory, message.ready(array), number, array.ptr - allocation.base)


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
    own = array._received
    # An array of another library does not tell which message has brought it, so all of them are sent on.
    received = [own] if own is not None else list(mapping.received)
    leases: list[Forwarded] = []
    for one in received:
        one.delivery.make_wait(array._stream or LEGACY)
        memory, lease = message.sent_on(mapping, one.delivery)
        leases.append(lease)
    return Described(message.export, tuple(leases), memory, message.ready(array), ALL, array.ptr - mapping.ptr)


def _copied(array: DeviceArray, low: int, high: int) -> DeviceArray:
    """Copy everything between the array's first and last byte into memory that can be shared."""
    block = empty((high - low,), "|u1", device=array.device)
    with cuda_driver.guard(array.device):
        stream = as_stream(array._stream)
        if array._stream is None and in_feeder():
            cuda_driver.call("cuCtxSynchronize")
        cuda_driver.call("cuMemcpyAsync", block.ptr, array.ptr + low, high - low, stream)
        # The original may be freed, and its memory reused, before the receiver reads.
        cuda_driver.call("cuStreamSynchronize", stream)
    return array._replace(ptr=block.ptr - low, owner=block._owner)


@cuda_driver.after_fork
def _forget() -> None:
    _known.clear()
