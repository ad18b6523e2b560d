"""Memory of `cudaMalloc`, by the driver's handle of 64 bytes. The receiver sees the whole allocation."""

from __future__ import annotations

from typing import Any

from mp_cuda import driver
from mp_cuda.pointer import Extent

__all__ = ["close", "export", "open", "skip"]

PEER_ACCESS_WHEN_NEEDED = 1
_known: dict[tuple[int, int], bytes] = {}


def export(extent: Extent) -> tuple[bytes, Any]:
    # Keyed by the id of the allocation: an address that is used again has another handle.
    key = extent.device, extent.buffer_id
    handle = _known.get(key)
    if handle is None:
        if len(_known) > 4096:
            _known.clear()
        handle = _known[key] = driver.bytes_of(driver.call("cuIpcGetMemHandle", extent.base))
    return handle, None


def open(device: int, handle: bytes, extra: Any) -> tuple[int, Any]:
    given = driver.handle_from("CUipcMemHandle", handle)
    return int(driver.call("cuIpcOpenMemHandle", given, PEER_ACCESS_WHEN_NEEDED)), None


def skip(extra: Any) -> None:
    pass


def close(ptr: int, state: Any) -> None:
    driver.call("cuIpcCloseMemHandle", ptr)


@driver.after_fork
def _forget() -> None:
    _known.clear()
