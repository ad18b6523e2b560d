"""A rank's one report to its parent: how `fn` ended, through an inherited pipe.

    +------+------+------+-------------+--------------+------ - - ------+------ - - ------+
    | mpsp | kind | time | text length | blob length  | text (UTF-8)    | blob (a pickle) |
    +------+------+------+-------------+--------------+------ - - ------+------ - - ------+

The parent drains the pipe while it waits, so a report of any size gets through; a rank that is killed
half-way leaves a short one, which is none. There is no end-of-file to wait for: children of the rank may hold
the pipe, too.
"""

from __future__ import annotations

import enum
import os
import struct
import time
from typing import NamedTuple

__all__ = ["Inbox", "Kind", "Report", "Reporter"]

_HEADER = struct.Struct("!4sBdQQ")
_MAGIC = b"mpsp"
_CHUNK = 1 << 20


class Kind(enum.IntEnum):
    """How `fn` ended."""

    RETURNED = 1
    RAISED = 2
    LEFT = 3  # sys.exit with something that is not a plain exit code


class Report(NamedTuple):
    """What a rank said."""

    kind: Kind
    at: float
    text: str
    blob: bytes


class Reporter:
    """The rank's end of the pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rank = os.getpid()

    def send(self, kind: Kind, text: str = "", blob: bytes = b"") -> None:
        """
        Write the report. A parent that no longer listens is no error; a child that `fn` has forked, and that has run
        out of `fn`, has no report to make.

        >>> r, w = os.pipe()
        >>> Reporter(w).send(Kind.RETURNED, blob=b"42")
        >>> Inbox(r).read().blob
        b'42'
        >>> os.close(w)
        """
        if os.getpid() != self._rank:
            return
        encoded = text.encode(errors="backslashreplace")
        header = _HEADER.pack(_MAGIC, kind, time.monotonic(), len(encoded), len(blob))
        try:
            for part in (header + encoded, blob):
                rest = memoryview(part)
                while rest:
                    rest = rest[os.write(self._fd, rest[:_CHUNK]) :]
        except BrokenPipeError:
            pass


class Inbox:
    """The parent's end of the pipe; it owns *fd* and never blocks."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.report: Report | None = None
        self._buffer = bytearray()
        self._size = _HEADER.size

    def read(self) -> Report | None:
        """
        Take what is in the pipe; the report when it is complete, else None.
        """
        while self.fd >= 0 and self.report is None:
            try:
                data = os.read(self.fd, max(1, min(_CHUNK, self._size - len(self._buffer))))
            except BlockingIOError:
                break
            self._buffer += data
            if not data or (len(self._buffer) >= self._size and not self._parse()):
                self.close()
        return self.report

    def _parse(self) -> bool:
        """
        Take the buffer apart; False when there is nothing more to wait for.
        """
        magic, kind, at, text_size, blob_size = _HEADER.unpack_from(self._buffer)
        if magic != _MAGIC or kind not in set(Kind):
            return False
        self._size = _HEADER.size + text_size + blob_size
        if len(self._buffer) < self._size:
            return True
        end = _HEADER.size + text_size
        text = self._buffer[_HEADER.size : end].decode()
        self.report = Report(Kind(kind), at, text, bytes(memoryview(self._buffer)[end:]))
        self._buffer = bytearray()
        return False

    def close(self) -> None:
        """Close the pipe; twice is fine."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
