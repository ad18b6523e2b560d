"""Pointers: the allocation that a pointer lies in, how it was made, and why some allocations cannot be shared.

What the driver says about an allocation is asked once, and known by the allocation's number afterwards: addresses are
used again, these numbers are not.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from mp_cuda import cuda_driver
from mp_cuda.errors import DriverError, NotShareableError

__all__ = ["AllocationInfo", "UnknownPointerError", "allocation_of", "known", "reason"]

BUFFER_ID = 7
_ASKED = {
    "memory_type": 2,
    "buffer_id": BUFFER_ID,
    "is_managed": 8,
    "device": 9,
    "legacy": 10,
    "handle_types": 14,
    "pool": 17,
}
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


def allocation_of(ptr: int, low: int, high: int) -> AllocationInfo:
    """
    Find the allocation that holds the bytes from *ptr + low* to *ptr + high*. `NotShareableError` if none does.

    A context must be current.
    """
    allocation = known.get(_buffer_id(ptr + low))
    if allocation is None or not allocation.base <= ptr + low <= ptr + high <= allocation.base + allocation.nbytes:
        allocation = _asked(ptr, low, high)
        if len(known) >= MOST_KNOWN:
            known.clear()
        known[allocation.buffer_id] = allocation
    return allocation


def _buffer_id(ptr: int) -> int:
    try:
        return int(cuda_driver.call("cuPointerGetAttribute", _attribute(BUFFER_ID), ptr))
    except DriverError:
        return 0  # the driver does not know the pointer


@functools.cache
def _attribute(number: int) -> Any:
    return cuda_driver.bindings().CUpointer_attribute(number)


def _asked(ptr: int, low: int, high: int) -> AllocationInfo:
    asked = _attributes(ptr + low)
    if not asked["buffer_id"]:
        raise UnknownPointerError(
            f"{ptr:#x} is not memory that CUDA knows (host memory, memory of another process, or freed); copy it to a "
            "device with from_host()"
        )
    if asked["memory_type"] == HOST:
        base, nbytes = ptr + low, high - low
    else:
        try:
            base, nbytes = (int(v) for v in cuda_driver.call("cuMemGetAddressRange", ptr + low))
        except DriverError as error:
            raise UnknownPointerError(f"{ptr:#x} is not in any allocation: {error}") from error
    if ptr + high > base + nbytes:
        raise NotShareableError(
            f"the array reaches {ptr + high - base - nbytes} bytes beyond its allocation of {nbytes} bytes, so it "
            "lies in several, as with torch's expandable segments: set "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, or copy it into one with "
            "share(..., fallback='copy') or set_policy(fallback='copy')"
        )
    return AllocationInfo(
        base,
        nbytes,
        int(asked["device"]),
        int(asked["buffer_id"]),
        bool(asked["legacy"]),
        int(asked["pool"] or 0),
        bool(int(asked["handle_types"] or 0) & POSIX_FD),
        bool(asked["is_managed"]),
        asked["memory_type"] == HOST,
    )


def _attributes(ptr: int) -> dict[str, Any]:
    kinds = [_attribute(number) for number in _ASKED.values()]
    values = cuda_driver.call("cuPointerGetAttributes", len(kinds), kinds, ptr)
    return dict(zip(_ASKED, (int(v) if v is not None else 0 for v in values), strict=True))


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
