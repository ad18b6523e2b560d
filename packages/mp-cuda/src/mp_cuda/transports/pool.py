"""Pools: memory of a stream-ordered pool made for sharing. A descriptor brings the pool, a handle the pointer.

The driver does not count imports of one pointer: the first free unmaps it for all. An allocation is therefore imported
once, like every mapping, and its pool with it, since another pool may reuse the address of one that is gone.
"""

from __future__ import annotations

import os
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from typing import Any

from mp_cuda import cuda_driver
from mp_cuda.errors import DriverError
from mp_cuda.pointer import AllocationInfo

__all__ = ["close", "export", "open", "skip"]

POSIX_FD = 1


def _fd_type() -> Any:
    return cuda_driver.bindings().CUmemAllocationHandleType(POSIX_FD)


def export(allocation: AllocationInfo) -> tuple[bytes, bytes]:
    with cuda_driver.guard(allocation.device):
        pool = cuda_driver.bindings().CUmemoryPool(allocation.pool)
        data = cuda_driver.bytes_of(cuda_driver.call("cuMemPoolExportPointer", allocation.base))
        fd = int(cuda_driver.call("cuMemPoolExportToShareableHandle", pool, _fd_type(), 0))
    try:
        # One receiver can fetch it, over a socket of this process.
        sent = resource_sharer.DupFd(fd)
    finally:
        os.close(fd)
    return data, bytes(ForkingPickler.dumps(sent))


def open(device: int, handle: bytes, extra: bytes | None) -> tuple[int, Any]:
    fd = _fetched(extra or b"")
    with cuda_driver.guard(device):
        try:
            pool = cuda_driver.call("cuMemPoolImportFromShareableHandle", fd, _fd_type(), 0)
        finally:
            os.close(fd)
        try:
            data = cuda_driver.handle_from("CUmemPoolPtrExportData", handle)
            return int(cuda_driver.call("cuMemPoolImportPointer", pool, data)), pool
        except BaseException:
            cuda_driver.call("cuMemPoolDestroy", pool)
            raise


def skip(extra: bytes) -> None:
    os.close(_fetched(extra))


def _fetched(extra: bytes) -> int:
    return int(ForkingPickler.loads(extra).detach())


def close(device: int, memories: list[tuple[int, Any]]) -> tuple[int, ...]:
    with cuda_driver.guard(device):
        return tuple(_closed(ptr, pool) for ptr, pool in memories)


def _closed(ptr: int, pool: Any) -> int:
    try:
        cuda_driver.call("cuMemFreeAsync", ptr, 0)
        cuda_driver.call("cuStreamSynchronize", 0)
        cuda_driver.call("cuMemPoolDestroy", pool)
    except DriverError as error:
        return error.code
    return 0
