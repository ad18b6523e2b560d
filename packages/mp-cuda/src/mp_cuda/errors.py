"""What can go wrong, by name."""

from __future__ import annotations

__all__ = [
    "DeviceMemoryError",
    "DeviceNotVisibleError",
    "DriverError",
    "ForkError",
    "MpCudaError",
    "NotShareableError",
    "ProducerGoneError",
    "StaleHandleError",
]


class MpCudaError(RuntimeError):
    """What all errors of mp_cuda have in common."""


class DriverError(MpCudaError):
    """
    The CUDA driver refused a call: *call* is its name, *name* the error's and *code* its number.

    >>> DriverError("cuMemAlloc", "CUDA_ERROR_INVALID_VALUE", 1).code
    1
    """

    def __init__(self, call: str, name: str, code: int) -> None:
        super().__init__(call, name, code)
        self.call, self.name, self.code = call, name, code

    def __str__(self) -> str:
        return f"{self.call} failed: {self.name} ({self.code})"


class DeviceMemoryError(MpCudaError, MemoryError):
    """A device has not enough memory left."""


class ForkError(MpCudaError):
    """CUDA was initialised before this process was forked, so it cannot be used here."""


class NotShareableError(MpCudaError, TypeError):
    """This memory cannot be opened by another process; the message says why and what to do."""


class StaleHandleError(MpCudaError):
    """A message was received before, by as many as it was meant for, or it was taken back by its sender."""


class ProducerGoneError(MpCudaError):
    """The process that owns the memory has ended, and the memory with it."""


class DeviceNotVisibleError(MpCudaError):
    """The memory lives on a device that this process does not see; see CUDA_VISIBLE_DEVICES."""
