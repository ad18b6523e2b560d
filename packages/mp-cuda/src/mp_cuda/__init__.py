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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mp_cuda.arrays.array import DeviceArray, empty, from_host
    from mp_cuda.arrays.dtype import DType
    from mp_cuda.driver.cuda_driver import device_count, is_available
    from mp_cuda.driver.diagnostics import device_report
    from mp_cuda.driver.policy import set_policy
    from mp_cuda.driver.stream import Stream
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
    from mp_cuda.libraries.conversion import as_device_array
    from mp_cuda.libraries.reduce import Shared, share
    from mp_cuda.libraries.registration import init_reductions, register, unregister
    from mp_cuda.sharing.event import Event
    from mp_cuda.sharing.exports import ipc_collect, ipc_stats, wait_released

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
    "arrays.array": "DeviceArray empty from_host",
    "arrays.dtype": "DType",
    "driver.cuda_driver": "device_count is_available",
    "driver.diagnostics": "device_report",
    "driver.policy": "set_policy",
    "driver.stream": "Stream",
    "errors": "BindingsNotInstalledError DeviceMemoryError DeviceNotVisibleError DriverError ForkError MpCudaError "
    "NotShareableError ProducerGoneError StaleHandleError",
    "libraries.conversion": "as_device_array",
    "libraries.reduce": "Shared share",
    "libraries.registration": "init_reductions register unregister",
    "sharing.event": "Event",
    "sharing.exports": "ipc_collect ipc_stats wait_released",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:  # with it, a type checker would accept any name

    def __getattr__(name: str) -> object:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module 'mp_cuda' has no attribute {name!r}")
        if module == "arrays.array":
            _importlib.import_module("mp_cuda.libraries.reduce")  # registers the reducer of DeviceArray
        value = getattr(_importlib.import_module(f"mp_cuda.{module}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


del TYPE_CHECKING  # a name of this module is public
