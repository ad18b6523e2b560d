"""The report of a rank to its parent, one for each rank: how `fn` ended, through an inherited pipe.

    +------+------+------+-------------+--------------+------ - - ------+------ - - ------+
    | mpsp | kind | time | text length | blob length  | text (UTF-8)    | blob (a pickle) |
    +------+------+------+-------------+--------------+------ - - ------+------ - - ------+

The parent drains the pipe while it waits, so a report of any size gets through. A rank that is killed
half-way leaves an incomplete report, which is ignored. The parent cannot wait for end-of-file: children of the
rank may also hold the pipe.
"""

from __future__ import annotations

import enum
import os
import struct
import time
from typing import NamedTuple

from mp_spawn.payload import InheritedFd, OwnedFd

__all__ = ["Inbox", "Kind", "Report", "Reporter"]

_HEADER = struct.Struct("!4sBdQQ")
_MAGIC = b"mpsp"
_CHUNK = 1 << 20


class Kind(enum.IntEnum):
    """How `fn` ended."""

    RETURNED = 1
    RAISED = 2
    LEFT = 3  # by sys.exit with another value than a plain exit code


class Report(NamedTuple):
    """The report of a rank."""

    kind: Kind
    at: float
    text: str
    blob: bytes


class Reporter:
    """
    The rank's end of the pipe.

    A program may close all descriptors that it finds, and open files, which get their numbers. So the pipe is known by
    device and inode; if the descriptor is gone, the report goes through the parent's end of the pipe, at the path
    *parents_end*.
    """

    def __init__(self, end: InheritedFd, parents_end: str | None = None) -> None:
        self._end = end
        self._pipe = _identity(end.fd)
        self._parents_end = parents_end
        self._rank = os.getpid()

    def send(self, kind: Kind, text: str = "", blob: bytes = b"") -> None:
        """
        Write the report.

        A parent that has closed its end is no error. A child that `fn` has forked, and that has returned from `fn`,
        sends nothing.

        >>> inbox = Inbox()
        >>> inbox.fd, w = os.pipe()
        >>> Reporter(InheritedFd(w)).send(Kind.RETURNED, blob=b"42")
        >>> inbox.read().blob
        b'42'
        >>> os.close(w)
        """
        if os.getpid() != self._rank:
            return
        encoded = text.encode(errors="backslashreplace")
        header = _HEADER.pack(_MAGIC, kind, time.monotonic(), len(encoded), len(blob))
        fd = self._end.fd if _identity(self._end.fd) == self._pipe else self._open_again()
        if fd is None:
            return
        try:
            for part in (header + encoded, blob):
                rest = memoryview(part)
                while rest:
                    rest = rest[os.write(fd, rest[:_CHUNK]) :]
        except BrokenPipeError:
            pass

    def _open_again(self) -> int | None:
        """Open the pipe by the parent's end of it; None if that is not to be had."""
        if self._pipe is None or self._parents_end is None:
            return None
        try:
            fd = os.open(self._parents_end, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return None
        if _identity(fd) == self._pipe:
            return fd
        os.close(fd)
        return None


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        st = os.fstat(fd)
    except OSError:
        return None
    return st.st_dev, st.st_ino


class Inbox(OwnedFd):
    """The parent's end of the pipe."""

    def __init__(self) -> None:
        super().__init__()
        self.report: Report | None = None
        self._buffer = bytearray()
        self._size = _HEADER.size

    def get_ready(self) -> None:
        """
        Let reads not block, and the pipe not end when the rank closes its descriptor: it may open the pipe again.

        A pipe that was opened for reading and writing has a writer as long as a reader.
        """
        try:
            both = os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            os.set_blocking(self.fd, False)
            return
        self.close()
        self.fd = both

    def read(self) -> Report | None:
        """
        Read what is in the pipe; return the report once it is complete, else None.
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
        Parse the buffer; return False if there is nothing more to wait for.
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
