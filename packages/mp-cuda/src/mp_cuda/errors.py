"""Errors of mp_cuda."""

from __future__ import annotations


class MpCudaError(RuntimeError):
    """
    The base class of all errors of mp_cuda.

    Examples
    --------
    >>> issubclass(mp_cuda.MpCudaError, RuntimeError)
    True
    """


class BindingsNotInstalledError(MpCudaError, ImportError):
    """
    The Python bindings of CUDA are not installed, or cannot be imported.

    They come with cuda-python, which is an extra: CuPy, numba-cuda and torch for CUDA bring it as well.

    Examples
    --------
    >>> issubclass(mp_cuda.BindingsNotInstalledError, ImportError)
    True
    """


class DriverError(MpCudaError):
    """
    The CUDA driver refused a call.

    Parameters
    ----------
    call : str
        The driver function.
    name : str
        The error's name.
    code : int
        The error's number.

    Examples
    --------
    >>> print(mp_cuda.DriverError("cuMemAlloc", "CUDA_ERROR_INVALID_VALUE", 1))
    cuMemAlloc failed: CUDA_ERROR_INVALID_VALUE (1)
    """

    def __init__(self, call: str, name: str, code: int) -> None:
        super().__init__(call, name, code)
        self.call, self.name, self.code = call, name, code

    def __str__(self) -> str:
        return f"{self.call} failed: {self.name} ({self.code})"


class DeviceMemoryError(MpCudaError, MemoryError):
    """
    A device does not have enough free memory; also a `MemoryError`.

    Examples
    --------
    >>> issubclass(mp_cuda.DeviceMemoryError, MemoryError)
    True
    """


class ForkError(MpCudaError):
    """
    CUDA was initialised before this process was forked, so it cannot be used here; start the process with spawn.

    Examples
    --------
    >>> issubclass(mp_cuda.ForkError, mp_cuda.MpCudaError)
    True
    """


class NotShareableError(MpCudaError, TypeError):
    """
    Another process cannot open this memory; the text says why and what to do. Also a `TypeError`.

    Examples
    --------
    >>> issubclass(mp_cuda.NotShareableError, TypeError)
    True
    """


class UnknownPointerError(NotShareableError):
    """The driver does not know this pointer."""


class StaleHandleError(MpCudaError):
    """
    A message was already received by all its receivers, or its sender has revoked it.

    Examples
    --------
    >>> issubclass(mp_cuda.StaleHandleError, mp_cuda.MpCudaError)
    True
    """


class ProducerGoneError(MpCudaError):
    """
    The process that owns the memory has ended, and the memory with it.

    Examples
    --------
    >>> issubclass(mp_cuda.ProducerGoneError, mp_cuda.MpCudaError)
    True
    """


class DeviceNotVisibleError(MpCudaError):
    """
    The memory is on a device that this process does not see; check ``CUDA_VISIBLE_DEVICES``.

    Examples
    --------
    >>> issubclass(mp_cuda.DeviceNotVisibleError, mp_cuda.MpCudaError)
    True
    """
