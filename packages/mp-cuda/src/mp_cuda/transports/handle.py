"""Handles: memory of `cudaMalloc` by the driver's 64-byte handle. The receiver sees the whole allocation."""

from __future__ import annotations

from typing import Any

from mp_cuda._functions import close_memory, memory_handle, open_memory
from mp_cuda.pointer import AllocationInfo

__all__ = ["close", "export", "open", "skip"]


def export(allocation: AllocationInfo) -> tuple[bytes, None]:
    return memory_handle(allocation.device, allocation.base), None


def open(device: int, handle: bytes, extra: bytes | None) -> tuple[int, Any]:
    return open_memory(device, handle), None


def skip(extra: bytes) -> None:
    pass


def close(device: int, memories: list[tuple[int, Any]]) -> tuple[int, ...]:
    return close_memory(device, tuple(ptr for ptr, _ in memories))
