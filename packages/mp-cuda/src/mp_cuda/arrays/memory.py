"""Allocation: memory from the driver itself, which other processes can always open."""

from __future__ import annotations

from typing import Any

from mp_cuda.driver import cuda_driver, finalizer_queue
from mp_cuda.driver.functions import free_memory
from mp_cuda.errors import DeviceMemoryError, DriverError
from mp_cuda.sharing.exports import collect_lingering

OUT_OF_MEMORY = 2


def _free(device: int, addresses: list[int]) -> None:
    cuda_driver.check_codes("cuMemFree", free_memory(device, tuple(addresses)))


class Allocation:
    """*nbytes* bytes on *device*, from `ptr`, freed after the last reference to this object is gone."""

    __slots__ = ("__weakref__", "_task", "device", "nbytes", "ptr")

    def __init__(self, nbytes: int, device: int) -> None:
        self.device, self.nbytes = device, nbytes
        with cuda_driver.guard(device):
            try:
                self.ptr = int(cuda_driver.call("cuMemAlloc", nbytes))
            except DriverError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
                self.ptr = self._after_collecting(nbytes, device)
        # After all work that this process has given to the device.
        self._task = finalizer_queue.Task(device, _free, self.ptr, after_work=True)
        finalizer_queue.expect()

    def _after_collecting(self, nbytes: int, device: int) -> int:
        """Allocate again after freeing what other processes have released, or give back on request."""
        collect_lingering()
        try:
            return int(cuda_driver.call("cuMemAlloc", nbytes))
        except DriverError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            left, total = cuda_driver.call("cuMemGetInfo")
            raise DeviceMemoryError(
                f"cannot allocate {nbytes} bytes on device {device}: {left} of {total} bytes are free"
            ) from None

    def __del__(self, put: Any = finalizer_queue.put) -> None:
        task = getattr(self, "_task", None)
        if task is not None:
            put(task)
