"""DataLoader: batches that are left in the queue when its workers end.

Note [Batches that nobody reads]
--------------------------------
A DataLoader that is left before its end has batches in its queue. Nobody reads them, and a message that is not read
keeps its memory until the session ends. So after the workers have ended, the process that started them reads what is
left and drops it. A worker that was killed may have written a part of a message; that part is ignored.
"""

from __future__ import annotations

import functools
import os
import struct
import sys
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

__all__ = ["install"]

_installed = False


def install() -> bool:
    """Let DataLoader drop the batches that are left; return False while its module is not imported."""
    global _installed
    if _installed:
        return True
    module: Any = sys.modules.get("torch.utils.data.dataloader")
    kind = getattr(module, "_MultiProcessingDataLoaderIter", None)
    if kind is None:
        return False
    _installed = True
    shutdown = kind._shutdown_workers

    def _shutdown_workers(self: Any) -> None:
        ended = getattr(self, "_shutdown", True)
        shutdown(self)
        if not ended and getattr(self, "_shutdown", False):
            _drop_messages(self._worker_result_queue)

    kind._shutdown_workers = functools.wraps(shutdown)(_shutdown_workers)
    return True


def _drop_messages(queue: Any) -> None:
    """Receive and drop what a queue still has; no other process may read it any more."""
    try:
        data = _read(queue._reader.fileno())
    except (OSError, AttributeError):
        return  # the queue is closed
    for message in _messages(data):
        try:
            ForkingPickler.loads(message)
        except Exception:
            pass  # its memory is free all the same


def _read(fd: int) -> bytes:
    os.set_blocking(fd, False)
    parts = []
    try:
        while part := os.read(fd, 1 << 16):
            parts.append(part)
    except BlockingIOError:
        pass
    finally:
        os.set_blocking(fd, True)
    return b"".join(parts)


def _messages(data: bytes) -> Iterator[bytes]:
    """Split what a `Connection` has written: a size of 4 bytes, or -1 and a size of 8 bytes, before each message."""
    at = 0
    while len(data) - at >= 4:
        (size,) = struct.unpack_from("!i", data, at)
        at += 4
        if size == -1:
            if len(data) - at < 8:
                return
            (size,) = struct.unpack_from("!Q", data, at)
            at += 8
        if size < 0 or len(data) - at < size:
            return
        yield data[at : at + size]
        at += size
