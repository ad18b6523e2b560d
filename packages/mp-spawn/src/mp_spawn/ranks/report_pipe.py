"""The report of a rank to its parent, one for each rank: how `fn` ended, through an inherited pipe.

    +------+------+------+-------------+--------------+------ - - ------+------ - - ------+
    | mpsp | kind | time | text length | blob length  | text (UTF-8)    | blob (a pickle) |
    +------+------+------+-------------+--------------+------ - - ------+------ - - ------+

The parent drains the pipe while it waits, so a report of any size gets through. A rank that is killed
half-way leaves an incomplete report, which is ignored. The parent cannot wait for end-of-file: children of the
rank may also hold the pipe.

Where descriptors are scarce, one file takes the reports of all ranks, each at a place of its own. A rank writes its
header last, and the parent reads it when the rank has ended.
"""

from __future__ import annotations

import enum
import os
import struct
import time
from typing import Any, NamedTuple

from mp_core.memory.mapped_buffers import memory_file
from mp_core.system.descriptor import hold_both_ends
from mp_spawn.calls.payload import InheritedFd, OwnedFd, open_path

_HEADER = struct.Struct("!4sBdQQ")
_MAGIC = b"mpsp"
_CHUNK = 1 << 20
# Bytes from one place in a file of reports to the next. What is not written takes no room.
_PLACE = 1 << 36


class Kind(enum.IntEnum):
    """How `fn` ended."""

    RETURNED = 1
    RAISED = 2
    LEFT = 3  # by sys.exit with another value than a plain exit code
    INTERRUPTED = 4  # by a KeyboardInterrupt; it dies of SIGINT when its threads and functions at exit have ended


class Report(NamedTuple):
    kind: Kind
    at: float
    text: str
    blob: bytes


class Reporter:
    """
    The rank's end of the pipe.

    A program may close all descriptors that it finds, and open files, which get their numbers. So the pipe is known by
    device and inode; if the descriptor is gone, the report goes through the parent's end of the pipe, at the path
    *parents_end*. With *at*, it is a file, in which the report has that place.
    """

    def __init__(self, end: InheritedFd, parents_end: str | None = None, at: int | None = None) -> None:
        self._end = end
        self._pipe = _identity(end.fd)
        self._parents_end = parents_end
        self._at = at
        self._rank = os.getpid()

    def send(self, kind: Kind, text: str = "", blob: bytes = b"") -> bool:
        """
        Write the report; return False if there is no way to the parent.

        A parent that has closed its end is no error. A child that `fn` has forked, and that has returned from `fn`,
        sends nothing.

        >>> inbox = Inbox()
        >>> inbox.fd, w = os.pipe()
        >>> Reporter(InheritedFd(w)).send(Kind.RETURNED, blob=b"42")
        True
        >>> inbox.read().blob
        b'42'
        >>> os.close(w)
        """
        if os.getpid() != self._rank:
            return False
        encoded = text.encode(errors="backslashreplace")
        header = _HEADER.pack(_MAGIC, kind, time.monotonic(), len(encoded), len(blob))
        fd = self._end.fd if _identity(self._end.fd) == self._pipe else self._open_again()
        if fd is None:
            return False
        if self._at is not None:
            _write_at(fd, self._at + len(header), encoded + blob)
            _write_at(fd, self._at, header)
            return True
        try:
            for part in (header + encoded, blob):
                rest = memoryview(part)
                while rest:
                    rest = rest[os.write(fd, rest[:_CHUNK]) :]
        except BrokenPipeError:
            pass
        return True

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


def _write_at(fd: int, at: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest[:_CHUNK], at)
        at, rest = at + written, rest[written:]


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
        if not hold_both_ends(self.fd):
            os.set_blocking(self.fd, False)

    def read(self) -> Report | None:
        """Read what is in the pipe; return the report once it is complete, else None."""
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
        """Parse the buffer; return False if there is nothing more to wait for."""
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


class ReportFile(OwnedFd):
    """The file for the reports of all ranks, which takes one descriptor here, and none in the fork server."""

    def __init__(self) -> None:
        super().__init__()
        self.fd = memory_file()

    def __reduce__(self) -> tuple[Any, ...]:
        return open_path, (f"/proc/{os.getpid()}/fd/{self.fd}",)


class FileInbox(Inbox):
    """The parent's view of one report in the file."""

    def __init__(self, file: ReportFile, number: int) -> None:
        super().__init__()
        self.at = number * _PLACE
        self._file: ReportFile | None = file

    def read(self) -> Report | None:
        """
        Return the report if it is complete, else None.

        >>> file = ReportFile()
        >>> inbox = FileInbox(file, 1)
        >>> inbox.read()
        >>> Reporter(file, at=inbox.at).send(Kind.RAISED, "Error", b"42")
        True
        >>> inbox.read().text, inbox.read().blob
        ('Error', b'42')
        """
        if self._file is not None and self.report is None:
            self._buffer = bytearray()
            self._size = _HEADER.size
            while data := os.pread(self._file.fd, min(_CHUNK, self._missing()), self.at + len(self._buffer)):
                self._buffer += data
                if not self._missing() and not self._parse():
                    break
        return self.report

    def _missing(self) -> int:
        return self._size - len(self._buffer)

    def close(self) -> None:
        """Leave the file, which is closed when all have left it. Idempotent."""
        self._file = None
