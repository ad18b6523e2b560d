"""Messages: make the message that lets other processes open the memory of an array."""

from __future__ import annotations

import itertools

from mp_core import collect_leases
from mp_cuda import cuda_driver, imports, ipc_events, policy, transports
from mp_cuda.array import DeviceArray, empty
from mp_cuda.errors import NotShareableError
from mp_cuda.exports import Export
from mp_cuda.layout import byte_range
from mp_cuda.pointer import AllocationInfo, UnknownPointerError, allocation_of, reason
from mp_cuda.process_identity import me
from mp_cuda.stream import LEGACY, as_stream, in_feeder
from mp_cuda.wire import Memory, Message, Ready

__all__ = ["message_of"]

COLLECT_EVERY = 64
_sends = itertools.count(1)


def message_of(
    array: DeviceArray, kind: str, *, receivers: int = 1, fallback: policy.Fallback | None = None
) -> Message:
    """
    Make the message with which *receivers* processes open the memory of *array*. `NotShareableError` if none can.
    """
    if receivers < 1:
        raise ValueError(f"a message is for one receiver or more, not {receivers}")
    uuid = cuda_driver.uuid_of(array.device) if array.nbytes else b""
    if not array.nbytes:
        return Message(kind, array.shape, array.strides, array.dtype, array.readonly, uuid)
    low, high = byte_range(array.shape, array.strides, array.dtype.itemsize)
    source = imports.find(array.ptr + low, array.device)
    try:
        if source is not None:
            return _forward(source, array, kind, receivers)
        with cuda_driver.guard(array.device):
            allocation = allocation_of(array.ptr, low, high)
        transport = transports.suited(allocation)
        if transport == "pool" and receivers > 1:
            raise NotShareableError(
                f"memory of a pool goes to one receiver for each message, not {receivers}: call share() once for each"
            )
        if transport is None:
            raise NotShareableError(f"another process cannot open the memory of this array: {reason(allocation)}")
    except NotShareableError as error:
        if (fallback or policy.fallback) != "copy" or isinstance(error, UnknownPointerError):
            raise
        return message_of(_copied(array, low, high), kind, receivers=receivers)
    return _export(array, kind, allocation, transport, receivers)


def _export(array: DeviceArray, kind: str, allocation: AllocationInfo, transport: str, receivers: int) -> Message:
    with cuda_driver.guard(allocation.device):
        handle, extra = transports.of(transport).export(allocation)
    if next(_sends) % COLLECT_EVERY == 0:
        collect_leases()
    owner = array if array._owner is None else array._owner
    export = Export(owner, device=allocation.device, base=allocation.base, nbytes=allocation.nbytes)
    try:
        event = export.event = _after_work(array)
        offers = export.offers(receivers)
    except BaseException:
        export.lease.revoke()
        export.on_released()
        raise
    uuid = cuda_driver.uuid_of(allocation.device)
    memory = Memory(transport, uuid, me(), export.serial, handle, allocation.nbytes, extra)
    ready = Ready(event.handle, me()) if event is not None else None
    offset = array.ptr - allocation.base
    return Message(kind, array.shape, array.strides, array.dtype, array.readonly, uuid, offset, memory, offers, ready)


def _forward(source: imports.Received, array: DeviceArray, kind: str, receivers: int) -> Message:
    """Send on memory of another process: with references to its owner's lease, and an event after our own work."""
    memory, offset = source.memory, array.ptr - source.mapping.ptr
    if memory.transport == "pool":
        raise NotShareableError(
            "the memory is from a pool of another process, and only that one can send it; send it from there, or copy "
            "it with share(..., fallback='copy')"
        )
    # Any of the messages that brought this memory may have brought the array.
    for received in list(source.mapping.received):
        received.make_wait(array._stream or LEGACY)
    event = _after_work(array)
    offers = tuple(source.reference.offer() for _ in range(receivers))
    ready = None
    if event is not None:
        export = Export(None, event)
        ready = Ready(event.handle, me(), export.offers(receivers))
    return Message(
        kind, array.shape, array.strides, array.dtype, array.readonly, memory.uuid, offset, memory, offers, ready
    )


def _after_work(array: DeviceArray) -> ipc_events.PooledEvent | None:
    """Record an event after the work that produces *array*. Return None if this thread has waited for that work."""
    if array._stream is None and in_feeder():
        cuda_driver.synchronize(array.device)
        return None
    return ipc_events.record(array.device, array._stream or LEGACY)


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
