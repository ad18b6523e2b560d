"""CUDA device arrays and events between processes, without torch and without a copy.

    empty, from_host, as_device_array      arrays on a device: allocated here, or of another library
    queue.put(array)                       the receiver has the same memory
    share(array, stream=..., receivers=n)  export now, in this thread
    Event, Stream                          ordering, within a process and between processes
    ipc_collect, wait_released, ipc_stats  memory that other processes still use
    register, init_reductions              send arrays of CuPy, numba, cuda.core and torch

Importing this package touches neither the driver nor the bindings. Each name imports its module at first use.
"""

# Names for internal use have an underscore: all other names are public.
import importlib as _importlib

from mp_core import __version__ as __version__

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from mp_cuda.array import DeviceArray, empty, from_host
    from mp_cuda.conversion import as_device_array
    from mp_cuda.cuda_driver import device_count, is_available
    from mp_cuda.diagnostics import device_report
    from mp_cuda.dtype import DType
    from mp_cuda.errors import (
        BindingsNotInstalledError,
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
    from mp_cuda.exports import ipc_collect, ipc_stats, wait_released
    from mp_cuda.libraries import init_reductions, register, unregister
    from mp_cuda.policy import set_policy
    from mp_cuda.reduce import Shared, share
    from mp_cuda.stream import Stream

__all__ = [
    "BindingsNotInstalledError",
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
    "device_report",
    "empty",
    "from_host",
    "init_reductions",
    "ipc_collect",
    "ipc_stats",
    "is_available",
    "register",
    "set_policy",
    "share",
    "unregister",
    "wait_released",
]

_NAMES = {
    "array": "DeviceArray empty from_host",
    "conversion": "as_device_array",
    "diagnostics": "device_report",
    "cuda_driver": "device_count is_available",
    "dtype": "DType",
    "errors": "BindingsNotInstalledError DeviceMemoryError DeviceNotVisibleError DriverError ForkError MpCudaError "
    "NotShareableError ProducerGoneError StaleHandleError",
    "event": "Event",
    "exports": "ipc_collect ipc_stats wait_released",
    "libraries": "init_reductions register unregister",
    "policy": "set_policy",
    "reduce": "Shared share",
    "stream": "Stream",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:  # with it, a type checker would accept any name

    def __getattr__(name: str) -> object:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module 'mp_cuda' has no attribute {name!r}")
        if module == "array":
            _importlib.import_module("mp_cuda.reduce")  # registers the reducer of DeviceArray
        value = getattr(_importlib.import_module(f"mp_cuda.{module}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


del TYPE_CHECKING  # a name of this module is public
