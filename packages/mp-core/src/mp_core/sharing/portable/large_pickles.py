"""Large bytes in a pickle: they travel in blocks, and the unpickler reads them from there.

`native/messages/pickle_writer.c`, Note [A divided pickle], says how.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pickle import PickleBuffer

from mp_core.sharing.portable.messages import by_value, tracked_copy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["LARGE", "PickleReader", "PickleWriter", "copy_large"]

#: Bytes; fewer stay in the pickle.
LARGE = 1 << 18

_NARROW, _WIDE = b"BX", b"\x8d\x8e\x96"


class PickleWriter:
    """The file to which a pickler writes: large bytes go into blocks."""

    __slots__ = ("_last", "_on_failure", "_places", "_stream")

    def __init__(self, on_failure: Callable[[int, int], object]) -> None:
        self._on_failure = on_failure
        self._stream, self._last = io.BytesIO(), b""
        self._places: list[tuple[int, int, bytes]] = []

    def write(self, piece: Any) -> int:
        """Take the next bytes of the pickle."""
        if type(piece) is not bytes:
            piece = piece.raw() if type(piece) is PickleBuffer else memoryview(piece).cast("B")
        nbytes = len(piece)
        if nbytes >= LARGE and (width := self._announced(nbytes)) and not by_value():
            handle = tracked_copy(piece, nbytes)
            if isinstance(handle, bytes):
                self._places.append((self._stream.tell(), width, handle))
                return nbytes
            self._on_failure(-handle, nbytes)
        self._last = (self._last + bytes(piece[-9:]))[-9:]
        return self._stream.write(piece)

    def take(self) -> tuple[bytes, list[tuple[int, int, bytes]]]:
        """Return (stream, places), and begin the next pickle."""
        taken = self._stream.getvalue(), self._places
        self._stream, self._last, self._places = io.BytesIO(), b"", []
        return taken

    def _announced(self, nbytes: int) -> int:
        """Return the bytes of the length if the last bytes are the beginning of a piece of *nbytes*, otherwise 0."""
        last = self._last.rjust(9, b"\0")
        if last[4] in _NARROW and int.from_bytes(last[5:], "little") == nbytes:
            return 4
        return 8 if last[0] in _WIDE and int.from_bytes(last[1:], "little") == nbytes else 0


class PickleReader:
    """The file from which an unpickler reads a divided pickle."""

    def __init__(self, stream: bytes, pieces: list[tuple[int, int, Any]]) -> None:
        parts: list[memoryview] = []
        whole, at = memoryview(stream), 0
        for position, width, memory in pieces:
            view = memoryview(memory).cast("B")
            length = whole[max(position - width, 0) : position]
            if not at <= position <= len(whole) or int.from_bytes(length, "little") != view.nbytes:
                raise ValueError(f"the message is damaged: no piece of {view.nbytes} bytes belongs at {position}")
            parts += [whole[at:position], view]
            at = position
        self._parts = [part for part in (*parts, whole[at:]) if part.nbytes]
        self._next = 0
        self._at = 0

    def _some(self, most: int) -> memoryview:
        """Return up to *most* bytes of the current part, and go on."""
        if self._next == len(self._parts):
            return memoryview(b"")
        part = self._parts[self._next][self._at : self._at + most]
        self._at += part.nbytes
        if self._at == self._parts[self._next].nbytes:
            self._next, self._at = self._next + 1, 0
        return part

    def readinto(self, memory: Any) -> int:
        """Fill *memory*; return how many bytes there were."""
        into, done = memoryview(memory).cast("B"), 0
        while done < into.nbytes and (part := self._some(into.nbytes - done)):
            into[done : done + part.nbytes] = part
            done += part.nbytes
        return done

    def read(self, count: int = -1) -> bytes:
        """Return *count* bytes; fewer at the end."""
        parts = []
        while count and (part := self._some(count if count > 0 else 1 << 62)):
            parts.append(part)
            count -= part.nbytes if count > 0 else 0
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def readline(self) -> bytes:
        """Return the bytes up to the next end of a line; only old protocols and damage ask for it."""
        line = io.BytesIO()
        while (letter := self.read(1)) and line.write(letter) and letter != b"\n":
            pass
        return line.getvalue()


def copy_large(memory: Any) -> bytes | int:
    """Copy the memory of an object into a block for the receiver of this message; return its handle, or -errno."""
    with memoryview(memory) as view:
        return tracked_copy(view, view.nbytes)
