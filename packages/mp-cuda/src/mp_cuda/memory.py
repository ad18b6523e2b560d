"""Memory of our own: allocated by the driver, so that it can always be opened elsewhere; freed by the janitor."""

from __future__ import annotations

from typing import Any

from mp_cuda import driver, janitor
from mp_cuda.errors import DeviceMemoryError, DriverError

__all__ = ["Allocation"]

OUT_OF_MEMORY = 2


class _Free:
    """Free an allocation, once nothing that this process has given to the device can still use it."""

    after_work = True

    def __init__(self, device: int, ptr: int) -> None:
        self.device, self.ptr = device, ptr

    def finish(self) -> None:
        with driver.guard(self.device):
            driver.call("cuMemFree", self.ptr)


class Allocation:
    """*nbytes* bytes on *device*, from `ptr`, until the last reference to this object goes."""

    __slots__ = ("__weakref__", "_chore", "device", "nbytes", "ptr")

    def __init__(self, nbytes: int, device: int) -> None:
        self.device, self.nbytes = device, nbytes
        with driver.guard(device):
            try:
                self.ptr = int(driver.call("cuMemAlloc", nbytes))
            except DriverError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
                self.ptr = self._after_collecting(nbytes, device)
        self._chore = _Free(device, self.ptr)
        janitor.expect()

    def _after_collecting(self, nbytes: int, device: int) -> int:
        """Memory that others have released may not have been freed yet."""
        from mp_cuda.collect import ipc_collect

        ipc_collect()
        try:
            return int(driver.call("cuMemAlloc", nbytes))
        except DriverError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            left, total = driver.call("cuMemGetInfo")
            raise DeviceMemoryError(
                f"cannot allocate {nbytes} bytes on device {device}: {left} of {total} bytes are free"
            ) from None

    def __del__(self, drop: Any = janitor.drop) -> None:
        chore = getattr(self, "_chore", None)
        if chore is not None:
            drop(chore)
