"""Allocation: memory from the driver itself, which other processes can always open."""

from __future__ import annotations

from mp_cuda.driver import cuda_driver, finalizer_queue
from mp_cuda.driver.functions import free_memory
from mp_cuda.errors import DeviceMemoryError, DriverError
from mp_cuda.sharing.exports import collect_lingering


def _free(device: int, addresses: list[int]) -> None:
    cuda_driver.check_codes("cuMemFree", free_memory(device, tuple(addresses)))


class Allocation(finalizer_queue.Finalized):
    """*nbytes* bytes on *device*, from `ptr`, freed after the last reference to this object is gone."""

    __slots__ = ("device", "nbytes", "ptr")

    def __init__(self, nbytes: int, device: int) -> None:
        self.device, self.nbytes = device, nbytes
        with cuda_driver.guard(device):
            try:
                self.ptr = int(cuda_driver.call_with_room(collect_lingering, "cuMemAlloc", nbytes))
            except DriverError as error:
                if error.code != cuda_driver.OUT_OF_MEMORY:
                    raise
                left, total = cuda_driver.call("cuMemGetInfo")
                raise DeviceMemoryError(
                    f"cannot allocate {nbytes} bytes on device {device}: {left} of {total} bytes are free"
                ) from None
        self._leave(device, _free, self.ptr, True)  # after all work that this process has given to the device
