"""Pools: memory of a stream-ordered pool made for sharing. A descriptor brings the pool, a handle the pointer.

The driver does not count imports of one pointer: the first free unmaps it for all. An allocation is therefore imported
once, like every mapping, and its pool with it, since another pool may reuse the address of one that is gone.
"""

from __future__ import annotations

import os
from multiprocessing.reduction import ForkingPickler
from typing import Any

from mp_cuda.driver import cuda_driver
from mp_cuda.driver.functions import set_hooks
from mp_cuda.errors import DriverError

POSIX_FD = 1


def _fd_type() -> Any:
    return cuda_driver.bindings().CUmemAllocationHandleType(POSIX_FD)


def export(device: int, base: int, pool_number: int) -> tuple[bytes, bytes]:
    """Return the handle of an allocation of a pool, and what one receiver needs to open it."""
    from multiprocessing import resource_sharer  # few programs have pools

    with cuda_driver.guard(device):
        pool = cuda_driver.bindings().CUmemoryPool(pool_number)
        data = cuda_driver.bytes_of(cuda_driver.call("cuMemPoolExportPointer", base))
        fd = int(cuda_driver.call("cuMemPoolExportToShareableHandle", pool, _fd_type(), 0))
    try:
        # One receiver can fetch it, over a socket of this process.
        sent = resource_sharer.DupFd(fd)
    finally:
        os.close(fd)
    return data, bytes(ForkingPickler.dumps(sent))


def _open(device: int, handle: bytes, extra: bytes | None) -> tuple[int, Any]:
    """Return the address, and the state for `_close`."""
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


def _skip(extra: bytes) -> None:
    """Discard *extra*: the memory is already open."""
    os.close(_fetched(extra))


def _fetched(extra: bytes) -> int:
    return int(ForkingPickler.loads(extra).detach())


def _close(device: int, ptr: int, pool: Any) -> int:
    """Close it on an idle device. Return what the driver says, 0 if it is closed."""
    try:
        with cuda_driver.guard(device):
            cuda_driver.call("cuMemFreeAsync", ptr, 0)
            cuda_driver.call("cuStreamSynchronize", 0)
            cuda_driver.call("cuMemPoolDestroy", pool)
    except DriverError as error:
        return error.code
    return 0


set_hooks(open_pool=_open, skip_pool=_skip, close_pool=_close)
