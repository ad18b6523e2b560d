"""The substitute for the compiled module where libshm does not run: arrays can be made, and none can be sent.

CUDA's memory goes between processes only on Linux, and there libshm runs.
"""

from __future__ import annotations

from typing import Any, NoReturn

from mp_cuda.errors import MpCudaError

__all__ = [
    "Array",
    "Event",
    "Link",
    "Mapping",
    "Received",
    "Reference",
    "Source",
    "Table",
    "address_range",
    "buffer_id",
    "close_memory",
    "count_own",
    "destroy_events",
    "export_alone",
    "forget",
    "free_events",
    "free_memory",
    "memory_handle",
    "open_memory",
    "pointer_attributes",
    "rebuild",
    "receive_table",
    "set_hooks",
    "set_process",
    "synchronize",
    "use_codec",
]


class Array:
    """The base of `mp_cuda.DeviceArray`."""

    __slots__ = ("_owner", "_stream", "device", "dtype", "ptr", "readonly", "shape", "strides")

    def __init__(
        self,
        ptr: int,
        shape: tuple[int, ...],
        dtype: Any,
        device: int,
        *,
        strides: tuple[int, ...] | None = None,
        readonly: bool = False,
        owner: Any = None,
        stream: int | None = None,
    ) -> None:
        from mp_cuda.layout import row_major

        self.ptr, self.shape, self.dtype, self.device = ptr, shape, dtype, device
        self.strides = row_major(shape, dtype.itemsize) if strides is None else strides
        self.readonly, self._owner, self._stream = readonly, owner, stream


class _Never:
    """There are none where nothing is shared."""

    __slots__ = ()

    def __init__(self, *args: Any) -> None:
        _refuse()


class Event(_Never):
    __slots__ = ()


class Link(_Never):
    __slots__ = ()


class Mapping(_Never):
    __slots__ = ()


class Received(_Never):
    __slots__ = ()


class Reference(_Never):
    __slots__ = ()


class Source(_Never):
    __slots__ = ()


class Table(_Never):
    __slots__ = ()


def _refuse() -> NoReturn:
    raise MpCudaError(
        "device arrays cannot be sent without libshm, which is switched off or does not run here: send "
        "array.copy_to_host()"
    )


_hooks: dict[str, Any] = {}


def set_hooks(**hooks: Any) -> None:
    """Set what the functions here call of the Python modules."""
    _hooks.update(hooks)


def set_process(pid: int, nonce: bytes) -> None:
    """Do nothing: no message names this process."""


def use_codec(type: type, reducer: Any) -> None:
    """Do nothing: the reducer refuses to send."""


def _refused(*args: Any) -> NoReturn:
    """Raise `MpCudaError`."""
    _refuse()


count_own = export_alone = receive_table = rebuild = _refused
buffer_id = pointer_attributes = address_range = memory_handle = open_memory = close_memory = _refused


def _call(device: int, name: str, *numbers: tuple[int, ...]) -> tuple[int, ...]:
    driver = _hooks["start_driver"]()
    driver.cuCtxPushCurrent(driver.CUcontext(_hooks["context"](device)))
    try:
        return tuple(int(getattr(driver, name)(*number)[0]) for number in numbers)
    finally:
        driver.cuCtxPopCurrent()


def free_memory(device: int, addresses: tuple[int, ...]) -> tuple[int, ...]:
    """Free allocations."""
    return _call(device, "cuMemFree", *((address,) for address in addresses))


def destroy_events(device: int, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Destroy events."""
    return _call(device, "cuEventDestroy", *((number,) for number in numbers))


def synchronize(device: int) -> None:
    """Wait for all work of a device."""
    (code,) = _call(device, "cuCtxSynchronize", ())
    if code:
        _hooks["driver_failed"]("cuCtxSynchronize", code)


def free_events() -> int:
    """Return 0: there is no pool."""
    return 0


def forget() -> None:
    """Do nothing: there is nothing to forget."""
