"""Memory for messages: describe what an array needs so that other processes can open its memory.

C calls `describe` for memory that it does not know (`native/outgoing.c`, Note [What is known]): once for each object
that owns some. All such objects of a message share one export.
"""

from __future__ import annotations

from mp_cuda import cuda_driver, imports, policy, transports
from mp_cuda._functions import Received, Source, set_hooks
from mp_cuda.array import DeviceArray, empty, order
from mp_cuda.errors import NotShareableError
from mp_cuda.exports import Export
from mp_cuda.layout import byte_range
from mp_cuda.pointer import AllocationInfo, UnknownPointerError, allocation_of, reason
from mp_cuda.process_identity import me
from mp_cuda.stream import LEGACY, as_stream, in_feeder
from mp_cuda.wire import ALL, Key

__all__ = ["describe"]

MOST_KNOWN = 4096
_known: dict[int, bytes] = {}
"""The keys of allocations that a handle opens, by the driver's number."""


def describe(
    array: DeviceArray, fresh: Export | None, receivers: int, fallback: policy.Fallback | None
) -> tuple[Source, int]:
    """
    Return the memory of *array* for a message, and the address of its first element there.

    *fresh* is the export of the message, if it has one. `NotShareableError` if no process can open the memory.
    """
    low, high = byte_range(array.shape, array.strides, array.dtype.itemsize)
    low, high = array.ptr + low, array.ptr + high
    try:
        received = imports.find(low, array.device)
        if received is not None:
            return _forwarded(received, array), array.ptr
        allocation, key, extra = _allocation(array, low, high, fresh, receivers)
    except NotShareableError as error:
        if (fallback or policy.fallback) != "copy" or isinstance(error, UnknownPointerError):
            raise
        return describe(_copied(array, low, high), fresh, receivers, "error")
    export = Export() if fresh is None else fresh
    owner = array if array._owner is None else array._owner
    return export.keep_memory(owner, allocation, key, extra), array.ptr


def _allocation(
    array: DeviceArray, low: int, high: int, fresh: Export | None, receivers: int
) -> tuple[AllocationInfo, bytes, bytes | None]:
    """Return the allocation with these bytes, its key, and more data for the transport."""
    if fresh is not None and fresh.last is not None:
        allocation, key = fresh.last
        if allocation.base <= low and high <= allocation.base + allocation.nbytes:
            return allocation, key, None
    allocation = allocation_of(array.device, array.ptr, low - array.ptr, high - array.ptr)
    known = _known.get(allocation.buffer_id)
    return (allocation, known, None) if known is not None else (allocation, *_exported(allocation, receivers))


def _exported(allocation: AllocationInfo, receivers: int) -> tuple[bytes, bytes | None]:
    transport = transports.suited(allocation)
    if transport == "pool" and receivers > 1:
        raise NotShareableError(
            f"memory of a pool goes to one receiver for each message, not {receivers}: call share() once for each"
        )
    if transport is None:
        raise NotShareableError(f"another process cannot open the memory of this array: {reason(allocation)}")
    handle, extra = transports.of(transport).export(allocation)
    uuid = cuda_driver.uuid_of(allocation.device)
    key = Key(*me(), uuid, allocation.buffer_id, allocation.nbytes, transports.NAMES.index(transport), handle).packed()
    if extra is None:  # it is for any number of messages
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        _known[allocation.buffer_id] = key
    return key, extra


def _forwarded(found: Received, array: DeviceArray) -> Source:
    """Send on memory of another process: with references to its owner's leases, and an event after our own work."""
    mapping = found.mapping
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
    received = [own] if own is not None else mapping.received()
    leases = dict.fromkeys(lease for one in received for lease in one.leases)
    return Source(tuple(leases), mapping.key, None, mapping.ptr, mapping.nbytes, ALL, mapping.device)


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


set_hooks(describe=describe)


@cuda_driver.after_fork
def _forget() -> None:
    _known.clear()
