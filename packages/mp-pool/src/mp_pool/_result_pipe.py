"""`ResultPipe`: reads the messages of one worker from its pipe, as far as they have come."""

from __future__ import annotations

import os

from mp_pool._descriptor import Descriptor
from mp_pool.wire import HEADER

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Frame", "ResultPipe"]

_CHUNK = 1 << 16  # bytes of one read: as much as a pipe has, and little enough for malloc to keep
_LARGE = 1 << 16  # bytes of a result that is read into memory of its own

Frame = tuple[int, int, "Any"]  # number of the task, kind, data


class ResultPipe(Descriptor):
    """The parent's end of the pipe, which does not block."""

    def __init__(self) -> None:
        super().__init__()
        self.hung_up = False
        self._partial = b""
        self._large: tuple[int, int, bytearray] | None = None
        self._filled = 0

    def read(self) -> list[Frame]:
        """
        Return the complete messages so far. Only one thread reads.
        """
        frames: list[Frame] = []
        for _ in range(64):  # a limit, so that the other workers get their turn
            if self._large is not None:
                if not self._read_large(frames):
                    break
                continue
            try:
                data = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                break
            if not data:
                self.hung_up = True
                break
            short = len(data) < 4096
            self._parse(self._partial + data if self._partial else data, frames)
            if short:
                break  # there is probably no more; otherwise poll reports it
        return frames

    def _parse(self, data: bytes, frames: list[Frame]) -> None:
        at, end, first = 0, len(data), HEADER.size
        unpack = HEADER.unpack_from
        while end - at >= first:
            number, length, kind = unpack(data, at)
            stop = at + first + length
            if stop > end:
                if length > _LARGE:
                    whole = bytearray(length)
                    self._filled = end - at - first
                    whole[: self._filled] = data[at + first :]
                    self._large = (number, kind, whole)
                    at = end
                break
            frames.append((number, kind, data[at + first : stop]))
            at = stop
        self._partial = data[at:]

    def _read_large(self, frames: list[Frame]) -> bool:
        """
        Read more of a long result; return False if there is nothing to read.
        """
        assert self._large is not None
        number, kind, whole = self._large
        try:
            with memoryview(whole) as view, view[self._filled :] as rest:
                size = os.readv(self.fd, [rest])
        except BlockingIOError:
            return False
        if size == 0:
            self.hung_up = True
            return False
        self._filled += size
        if self._filled == len(whole):
            self._large = None
            frames.append((number, kind, whole))
        return True
