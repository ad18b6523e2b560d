"""Holders: which processes hold how much memory of which device, read from the numbers that each of them keeps.

A process that sends or receives device memory has a memfd with them (`native/holders.c`), found by its descriptors in
/proc. Memory that a process has open only for the next message is not held.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from mp_core.memory.process_list import memfds_of, open_memfd

_HEAD = struct.Struct("=8sII")
_ROW = struct.Struct("=16sQQQQ")
_MAGIC = b"mpcuda1\0"


class DeviceHolder(NamedTuple):
    """What one process holds of one device."""

    pid: int
    device: str
    """The device's UUID."""
    own_bytes: int
    """Of its own allocations that other processes have, or may still receive."""
    own_allocations: int
    held_bytes: int
    """Of allocations of other processes that its arrays use."""
    held_allocations: int


def list_holders(pids: Iterable[int]) -> list[DeviceHolder]:
    """Return what these processes hold; nothing is written to their numbers."""
    return [holder for pid in pids for path in memfds_of(pid, "mp-cuda-holders") for holder in _read(pid, path)]


def _read(pid: int, path: str) -> list[DeviceHolder]:
    try:
        with open(open_memfd(path), "rb", buffering=0) as file:
            data = file.read() or b""
    except OSError:
        return []  # closed meanwhile
    if len(data) < _HEAD.size:
        return []
    magic, owner, count = _HEAD.unpack_from(data)
    if magic != _MAGIC or owner != pid or len(data) < _HEAD.size + count * _ROW.size:
        return []  # a forked child has its parent's
    rows = [_ROW.unpack_from(data, _HEAD.size + i * _ROW.size) for i in range(count)]
    return [DeviceHolder(pid, uuid.hex(), *numbers) for uuid, *numbers in rows if any(numbers)]
