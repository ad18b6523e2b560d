"""Memory of a stream-ordered pool that was made for other processes: the pool by a descriptor, its pointer by a handle.

The driver does not count imports of one pointer: the first to free it unmaps it for all. So an allocation is imported
once, as every mapping is, and its pool with it, since the address of a pool that has gone may be another's.
"""

from __future__ import annotations

import os
from multiprocessing import resource_sharer
from typing import Any

from mp_cuda import driver
from mp_cuda.pointer import Extent
from mp_cuda.process import me

__all__ = ["close", "export", "open", "skip"]

POSIX_FD = 1


def _fd_type() -> Any:
    return driver.bindings().CUmemAllocationHandleType(POSIX_FD)


def export(extent: Extent) -> tuple[bytes, Any]:
    pool = driver.bindings().CUmemoryPool(extent.pool)
    data = driver.bytes_of(driver.call("cuMemPoolExportPointer", extent.base))
    fd = int(driver.call("cuMemPoolExportToShareableHandle", pool, _fd_type(), 0))
    try:
        # Good for one receiver, over a socket of this process.
        sent = resource_sharer.DupFd(fd)
    finally:
        os.close(fd)
    # What follows the driver's bytes makes them differ from those of every other allocation.
    return data + me().nonce + extent.buffer_id.to_bytes(8, "little"), sent


def open(device: int, handle: bytes, extra: Any) -> tuple[int, Any]:
    fd = extra.detach()
    try:
        pool = driver.call("cuMemPoolImportFromShareableHandle", fd, _fd_type(), 0)
    finally:
        os.close(fd)
    try:
        data = driver.handle_from("CUmemPoolPtrExportData", handle[: driver.HANDLE_SIZE])
        return int(driver.call("cuMemPoolImportPointer", pool, data)), pool
    except BaseException:
        driver.call("cuMemPoolDestroy", pool)
        raise


def skip(extra: Any) -> None:
    os.close(extra.detach())


def close(ptr: int, state: Any) -> None:
    driver.call("cuMemFreeAsync", ptr, 0)
    driver.call("cuStreamSynchronize", 0)
    driver.call("cuMemPoolDestroy", state)
