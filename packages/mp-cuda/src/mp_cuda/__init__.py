"""CUDA device arrays and events between processes, without torch and without a copy.

    empty, from_host, as_device_array     arrays on a device: ours, or another library's
    queue.put(array)                      the receiver has the same memory
    share(array, stream=..., receivers=n) exported now, in this thread
    Event, Stream                         order, within a process and between processes
    ipc_collect, wait_released, ipc_stats what others still have
    register, init_reductions             whose arrays travel: CuPy, numba, cuda.core, torch

Importing this package touches neither the driver nor the bindings; what is behind the names comes when they are used.
"""

# What this module needs for itself has an underscore: its other names are public.
import importlib as _importlib
import typing as _typing

from mp_core._version import __version__ as __version__

if _typing.TYPE_CHECKING:
    from mp_cuda.array import DeviceArray, empty, from_host
    from mp_cuda.collect import ipc_collect, ipc_stats, wait_released
    from mp_cuda.driver import device_count, is_available
    from mp_cuda.dtype import DType
    from mp_cuda.errors import (
        DeviceMemoryError,
        DeviceNotVisibleError,
        DriverError,
        ForkError,
        MpCudaError,
        NotShareableError,
        ProducerGoneError,
        StaleHandleError,
    )
    from mp_cuda.event import Event
    from mp_cuda.interface import as_device_array
    from mp_cuda.libraries import init_reductions, register, unregister
    from mp_cuda.policy import set_policy
    from mp_cuda.reduce import Shared, share
    from mp_cuda.situation import situation
    from mp_cuda.stream import Stream

__all__ = [
    "DType",
    "DeviceArray",
    "DeviceMemoryError",
    "DeviceNotVisibleError",
    "DriverError",
    "Event",
    "ForkError",
    "MpCudaError",
    "NotShareableError",
    "ProducerGoneError",
    "Shared",
    "StaleHandleError",
    "Stream",
    "as_device_array",
    "device_count",
    "empty",
    "from_host",
    "init_reductions",
    "ipc_collect",
    "ipc_stats",
    "is_available",
    "register",
    "set_policy",
    "share",
    "situation",
    "unregister",
    "wait_released",
]

_HOMES = {
    "array": "DeviceArray empty from_host",
    "collect": "ipc_collect ipc_stats wait_released",
    "driver": "device_count is_available",
    "dtype": "DType",
    "errors": "DeviceMemoryError DeviceNotVisibleError DriverError ForkError MpCudaError NotShareableError "
    "ProducerGoneError StaleHandleError",
    "event": "Event",
    "interface": "as_device_array",
    "libraries": "init_reductions register unregister",
    "policy": "set_policy",
    "reduce": "Shared share",
    "situation": "situation",
    "stream": "Stream",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


if not _typing.TYPE_CHECKING:  # a type checker that saw this would take any name for granted

    def __getattr__(name: str) -> _typing.Any:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module 'mp_cuda' has no attribute {name!r}")
        if home == "array":
            _importlib.import_module("mp_cuda.reduce")  # whoever has an array can send it
        value = getattr(_importlib.import_module(f"mp_cuda.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
