"""Handles: memory of `cudaMalloc` by the driver's 64-byte handle. The receiver sees the whole allocation."""

from __future__ import annotations

from typing import Any

from mp_cuda import cuda_driver
from mp_cuda.pointer import AllocationInfo

__all__ = ["close", "export", "open", "skip"]

LAZY_PEER_ACCESS = 1


def export(allocation: AllocationInfo) -> tuple[bytes, None]:
    return cuda_driver.bytes_of(cuda_driver.call("cuIpcGetMemHandle", allocation.base)), None


def open(device: int, handle: bytes, extra: bytes | None) -> tuple[int, Any]:
    given = cuda_driver.handle_from("CUipcMemHandle", handle)
    return int(cuda_driver.call("cuIpcOpenMemHandle", given, LAZY_PEER_ACCESS)), None


def skip(extra: bytes) -> None:
    pass


def close(ptr: int, state: Any) -> None:
    cuda_driver.call("cuIpcCloseMemHandle", ptr)
