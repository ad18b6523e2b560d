"""Kinds of memory: what no handle opens goes through its pool, is copied, or is an error that says what to do.

C describes all other memory (`native/describe.c`), and calls `describe` for this.
"""

from __future__ import annotations

from typing import NamedTuple

from mp_cuda.arrays.array import DeviceArray, empty, order
from mp_cuda.driver import cuda_driver, policy
from mp_cuda.driver.functions import set_hooks
from mp_cuda.driver.stream import as_stream, in_feeder
from mp_cuda.errors import NotShareableError, UnknownPointerError
from mp_cuda.sharing import pool

HOST = 1
POSIX_FD = 1


class Facts(NamedTuple):
    """What the driver says of the allocation that a pointer lies in; 0 for what it does not know."""

    base: int
    nbytes: int
    device: int
    buffer_id: int
    legacy: int
    """Whether a handle can open it."""
    pool: int
    """The memory pool that it is from."""
    handle_types: int
    managed: int
    memory_type: int

    @property
    def host(self) -> bool:
        return self.memory_type == HOST


def describe(
    array: DeviceArray,
    low: int,
    high: int,
    facts: tuple[int, ...] | None,
    receivers: int,
    fallback: policy.Fallback | None,
) -> tuple[bytes, bytes] | DeviceArray:
    """
    Return (handle, more for one receiver) of memory of a pool, from *low* to *high*; or a copy that can be sent.

    *facts* is None for a pool of another process. `NotShareableError` if no process can open the memory.
    """
    try:
        if facts is None:
            raise NotShareableError(
                "the memory is from a pool of another process, and only that one can send it; send it from there, or "
                "copy it with share(..., fallback='copy')"
            )
        return _by_pool(Facts(*facts), low, high, receivers)
    except NotShareableError as error:
        if (fallback or policy.fallback) != "copy" or isinstance(error, UnknownPointerError):
            raise
        return _copied(array, low, high)


def _by_pool(facts: Facts, low: int, high: int, receivers: int) -> tuple[bytes, bytes]:
    if not facts.buffer_id:
        raise UnknownPointerError(
            f"{low:#x} is not memory that CUDA knows (host memory, memory of another process, or freed); copy it to a "
            "device with from_host()"
        )
    if not facts.nbytes and not facts.host:
        raise UnknownPointerError(f"{low:#x} is not in any allocation")
    beyond = 0 if facts.host else high - facts.base - facts.nbytes
    if beyond > 0:
        raise NotShareableError(
            f"the array reaches {beyond} bytes beyond its allocation of {facts.nbytes} bytes, so it "
            "lies in several, as with torch's expandable segments: set "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, or copy it into one with "
            "share(..., fallback='copy') or set_policy(fallback='copy')"
        )
    if facts.managed or facts.host or not facts.pool or not facts.handle_types & POSIX_FD:
        raise NotShareableError(f"another process cannot open the memory of this array: {_reason(facts)}")
    if receivers > 1:
        raise NotShareableError(
            f"memory of a pool goes to one receiver for each message, not {receivers}: call share() once for each"
        )
    return pool.export(facts.device, facts.base, facts.pool)


def _reason(facts: Facts) -> str:
    copy = "or use share(..., fallback='copy') or set_policy(fallback='copy')"
    if facts.managed:
        return f"it is managed memory: copy it into device memory, {copy}"
    if facts.host:
        return f"it is pinned memory of the host: send it as a NumPy array, {copy}"
    if facts.pool:
        return (
            "cudaMallocAsync allocated it from a stream-ordered pool that was not made for sharing: use "
            f"the library's default pool or one with ipc_enabled=True, {copy}"
        )
    return (
        "it is a mapping of virtual memory, not made by cudaMalloc, as with torch's expandable segments: set "
        f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, use mp_cuda.empty(), {copy}"
    )


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


set_hooks(describe=describe, order=order)
