"""Handles: memory of `cudaMalloc` by the driver's 64-byte handle. The receiver sees the whole allocation."""

from __future__ import annotations

from typing import Any

from mp_cuda import cuda_driver
from mp_cuda.pointer import AllocationInfo

__all__ = ["close", "export", "open", "skip"]

LAZY_PEER_ACCESS = 1
_known: dict[tuple[int, int], bytes] = {}


def export(allocation: AllocationInfo) -> tuple[bytes, Any]:
    # The id is part of the key because a reused address has another handle.
    key = allocation.device, allocation.buffer_id
    handle = _known.get(key)
    if handle is None:
        if len(_known) > 4096:
            _known.clear()
        handle = _known[key] = cuda_driver.bytes_of(cuda_driver.call("cuIpcGetMemHandle", allocation.base))
    return handle, None


def open(device: int, handle: bytes, extra: Any) -> tuple[int, Any]:
    given = cuda_driver.handle_from("CUipcMemHandle", handle)
    return int(cuda_driver.call("cuIpcOpenMemHandle", given, LAZY_PEER_ACCESS)), None


def skip(extra: Any) -> None:
    pass


def close(ptr: int, state: Any) -> None:
    cuda_driver.call("cuIpcCloseMemHandle", ptr)


@cuda_driver.after_fork
def _forget() -> None:
    _known.clear()
