"""Pointers: the allocation that a pointer lies in, how it was made, and why some allocations cannot be shared.

What the driver says about an allocation is asked once, and known by the allocation's number afterwards: addresses are
used again, these numbers are not.
"""

from __future__ import annotations

from typing import NamedTuple

from mp_cuda import cuda_driver
from mp_cuda._functions import address_range, buffer_id, pointer_attributes
from mp_cuda.errors import DriverError, NotShareableError

__all__ = ["AllocationInfo", "UnknownPointerError", "allocation_of", "known", "reason"]

_ASKED = 2, 7, 8, 9, 10, 14, 17
"""Memory type, number, managed, device, whether a handle opens it, types of handles, pool."""
HOST = 1
MOST_KNOWN = 4096
POSIX_FD = 1


class UnknownPointerError(NotShareableError):
    """The driver does not know this pointer."""


class AllocationInfo(NamedTuple):
    """The allocation that a pointer lies in, as the driver describes it."""

    base: int
    nbytes: int
    device: int
    buffer_id: int
    """Unique in a process; addresses are reused."""
    legacy: bool
    """Whether a handle can open it."""
    pool: int
    """The memory pool that it is from; 0 if none."""
    pool_exportable: bool
    managed: bool
    host: bool


known: dict[int, AllocationInfo] = {}
"""Allocations by their numbers."""


def allocation_of(device: int, ptr: int, low: int, high: int) -> AllocationInfo:
    """Find the allocation that holds the bytes from *ptr + low* to *ptr + high*. `NotShareableError` if none does."""
    allocation = known.get(buffer_id(device, ptr + low))
    if allocation is None or not allocation.base <= ptr + low <= ptr + high <= allocation.base + allocation.nbytes:
        allocation = _asked(device, ptr, low, high)
        if len(known) >= MOST_KNOWN:
            known.clear()
        known[allocation.buffer_id] = allocation
    return allocation


def _asked(device: int, ptr: int, low: int, high: int) -> AllocationInfo:
    memory_type, number, managed, ordinal, legacy, handle_types, pool = pointer_attributes(device, ptr + low, _ASKED)
    if not number:
        raise UnknownPointerError(
            f"{ptr:#x} is not memory that CUDA knows (host memory, memory of another process, or freed); copy it to a "
            "device with from_host()"
        )
    if memory_type == HOST:
        base, nbytes = ptr + low, high - low
    else:
        try:
            base, nbytes = address_range(device, ptr + low)
        except DriverError as error:
            raise UnknownPointerError(f"{ptr:#x} is not in any allocation: {error}") from error
    if ptr + high > base + nbytes:
        raise NotShareableError(
            f"the array reaches {ptr + high - base - nbytes} bytes beyond its allocation of {nbytes} bytes, so it "
            "lies in several, as with torch's expandable segments: set "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, or copy it into one with "
            "share(..., fallback='copy') or set_policy(fallback='copy')"
        )
    exportable = bool(handle_types & POSIX_FD)
    is_host = memory_type == HOST
    return AllocationInfo(base, nbytes, ordinal, number, bool(legacy), pool, exportable, bool(managed), is_host)


def reason(allocation: AllocationInfo) -> str:
    """Explain why another process cannot open such memory, and what to do."""
    copy = "or use share(..., fallback='copy') or set_policy(fallback='copy')"
    if allocation.managed:
        return f"it is managed memory: copy it into device memory, {copy}"
    if allocation.host:
        return f"it is pinned memory of the host: send it as a NumPy array, {copy}"
    if allocation.pool:
        return (
            "cudaMallocAsync allocated it from a stream-ordered pool that was not made for sharing: use "
            f"the library's default pool or one with ipc_enabled=True, {copy}"
        )
    return (
        "it is a mapping of virtual memory, not made by cudaMalloc, as with torch's expandable segments: set "
        f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, use mp_cuda.empty(), {copy}"
    )


@cuda_driver.after_fork
def _forget() -> None:
    known.clear()
