"""Driver: the CUDA driver, loaded at first use, with checked calls, contexts, devices and fork handling.

All calls go through `cuda.bindings.driver`. The fields of its structures change between releases, so this module uses
only its functions, `getPtr()` and `int(pointer)`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from mp_cuda.driver import at_exit
from mp_cuda.errors import BindingsNotInstalledError, DeviceNotVisibleError, DriverError, ForkError, MpCudaError

HANDLE_SIZE = 64
OUT_OF_MEMORY, NOT_INITIALIZED, NOT_READY = 2, 3, 600

_driver: Any = None
_forked = False
_lock = threading.RLock()
_contexts: dict[int, Any] = {}
_numbers: dict[int, int] = {}
"""The addresses of the contexts, by device."""
_uuids: list[bytes] = []
_hooks: list[Callable[[], None]] = []


def bindings() -> Any:
    """Return `cuda.bindings.driver` with the driver initialised. Raise `ForkError`, `DriverError` or `MpCudaError`."""
    if _driver is None:
        _start()
    elif _forked:
        raise _fork_error()
    return _driver


def _start() -> None:
    global _driver
    with _lock:
        if _driver is not None:
            return
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise BindingsNotInstalledError(
                f"arrays on devices need the CUDA bindings, which cannot be imported ({error}): "
                'pip install "mp-all[cuda]", or mp-all[cu12] for a driver of CUDA 12'
            ) from error
        try:
            (status,) = driver.cuInit(0)
        except RuntimeError as error:
            raise MpCudaError(f"no CUDA driver could be loaded: {error}") from error
        if int(status) == NOT_INITIALIZED:  # the parent initialised CUDA before the fork
            raise _fork_error()
        _check(driver, "cuInit", status)
        _driver = driver
        at_exit.schedule(started)


def started() -> bool:
    """Return whether mp_cuda has initialised the driver in this process."""
    return _driver is not None and not _forked


def _fork_error() -> ForkError:
    return ForkError(
        "Cannot re-initialize CUDA in forked subprocess: it was initialised before the fork. Start the process with "
        "the 'spawn' or 'forkserver' method, or use CUDA in the parent only after the fork"
    )


def _check(driver: Any, name: str, status: Any) -> None:
    code = int(status)
    if code:
        raise DriverError(name, getattr(status, "name", "") or str(status), code)


def call(name: str, *args: Any) -> Any:
    """Call the driver function *name*. Return None, one value or a tuple; raise `DriverError` if it fails."""
    driver = bindings()
    try:
        status, *values = getattr(driver, name)(*args)
    except RuntimeError as error:  # this driver has no such function
        raise MpCudaError(
            f"{name}: {error}; the CUDA driver is too old for it: install a newer driver, or do without the feature "
            "that needs it"
        ) from error
    if status:
        _check(driver, name, status)
    return values[0] if len(values) == 1 else tuple(values) if values else None


def call_with_room(make_room: Callable[[], object], name: str, *args: Any) -> Any:
    """Call the driver function *name*, and once more after *make_room* if it is out of memory."""
    try:
        return call(name, *args)
    except DriverError as error:
        if error.code != OUT_OF_MEMORY:
            raise
    make_room()
    return call(name, *args)


def is_done(query: str, handle: Any) -> bool:
    """Return what *query*, a driver function, says of a stream's or event's work."""
    try:
        call(query, handle)
    except DriverError as error:
        if error.code != NOT_READY:
            raise
        return False
    return True


def is_available() -> bool:
    """
    Tell whether this process can use a CUDA driver with at least one device. Never raises.

    Returns
    -------
    bool
        Also False after a fork from a process that had used CUDA.

    Examples
    --------
    >>> mp_cuda.is_available() in (True, False)
    True
    """
    try:
        return device_count() > 0
    except RuntimeError:
        return False


def device_count() -> int:
    """
    Count the devices that this process sees.

    Returns
    -------
    int
        0 or more.

    Raises
    ------
    MpCudaError
        There is no driver.

    Examples
    --------
    >>> mp_cuda.device_count()                                                   # doctest: +SKIP
    1
    """
    return int(call("cuDeviceGetCount"))


def context_of(device: int) -> Any:
    """
    Return the primary context of *device*.

    All libraries on the runtime API use it, and handles of other processes must be opened in it. It is retained once
    and never released.
    """
    context = _contexts.get(device)
    if context is None:
        with _lock:
            if device not in _contexts:
                _contexts[device] = call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", device))
            context = _contexts[device]
    return context


class guard:
    """Make the primary context of *device* current in a `with` block, and restore the previous one afterwards."""

    __slots__ = ("_device", "_pushed")

    def __init__(self, device: int) -> None:
        self._device = device
        self._pushed = False

    def __enter__(self) -> None:
        current = int(call("cuCtxGetCurrent"))  # first: it raises in a forked child
        if current != _numbers.get(self._device):
            context = context_of(self._device)
            number = _numbers[self._device] = int(context)
            if current != number:
                call("cuCtxPushCurrent", context)
                self._pushed = True

    def __exit__(self, *_: object) -> None:
        if self._pushed:
            call("cuCtxPopCurrent")
            self._pushed = False


@functools.cache
def memory_of(device: int) -> int:
    return int(call("cuDeviceTotalMem", call("cuDeviceGet", device)))


def current_device() -> int:
    """Return the ordinal of the device whose context is current in this thread, or 0 if no context is."""
    return int(call("cuCtxGetDevice")) if int(call("cuCtxGetCurrent")) else 0


def check_codes(name: str, codes: tuple[int, ...]) -> None:
    """Raise the `DriverError` of the first call of the function *name* that has failed."""
    for code in filter(None, codes):
        failed(name, code)


def failed(name: str, code: int) -> None:
    """Raise the `DriverError` of a call of the function *name*, if *code* is not 0."""
    _check(bindings(), name, bindings().CUresult(code))


def bytes_of(structure: Any, size: int = HANDLE_SIZE) -> bytes:
    return ctypes.string_at(int(structure.getPtr()), size)


def handle_from(name: str, data: bytes) -> Any:
    """Make the structure *name* of the bindings from *data*. `ValueError` if *data* is not 64 bytes."""
    if len(data) != HANDLE_SIZE:
        raise ValueError(f"a CUDA handle is bytes-like of size {HANDLE_SIZE}, not {len(data)}")
    structure = getattr(bindings(), name)()
    ctypes.memmove(int(structure.getPtr()), data, HANDLE_SIZE)
    return structure


def _all_uuids() -> list[bytes]:
    if not _uuids:
        # Only the second version distinguishes the partitions of a device (MIG).
        ask = "cuDeviceGetUuid_v2" if hasattr(bindings(), "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        _uuids[:] = [bytes_of(call(ask, call("cuDeviceGet", i)), 16) for i in range(device_count())]
    return _uuids


def uuid_of(device: int) -> bytes:
    """Return the 16 bytes that identify a device in every process, whatever its ordinal there."""
    uuids = _all_uuids()
    if not 0 <= device < len(uuids):
        raise DeviceNotVisibleError(f"there is no device {device}: this process sees {len(uuids)}")
    return uuids[device]


def ordinal_of(uuid: bytes) -> int:
    """Return the ordinal in this process of the device with *uuid*."""
    try:
        return _all_uuids().index(uuid)
    except ValueError:
        raise DeviceNotVisibleError(
            f"the memory is on the device with UUID {uuid.hex()}, which is none of the {len(_uuids)} that this "
            "process sees; check CUDA_VISIBLE_DEVICES in both processes"
        ) from None


def after_fork(hook: Callable[[], None]) -> Callable[[], None]:
    """Call *hook* in a forked child whose parent had initialised CUDA. It must not call the driver."""
    _hooks.append(hook)
    return hook


def _in_child() -> None:
    global _forked, _lock
    _lock = threading.RLock()
    if _driver is None:
        return
    _forked = True
    for hook in _hooks:
        hook()


os.register_at_fork(after_in_child=_in_child)
