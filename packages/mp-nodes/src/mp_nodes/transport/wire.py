"""`Wire`: the records between a driver and an agent, which over TCP carry the proof of who wrote them.

Note [Records]
--------------
    kind, length (8 bytes)  ·  up to 1 MiB of bytes  ·  over TCP: a seal of 32 bytes

A message is one record or more, and so is a part of an array. Between machines every record is
sealed: HMAC-SHA256 over its number, its header and its bytes, with a key for this connection and this direction, which
handshake.py derives. The number is not sent; each end counts. So a record that was changed, repeated, left out, moved
or sent back to its writer does not fit, and neither does one of another connection. The seal is compared before anybody
looks at the bytes: a message is unpickled, and a part is used, when all of its records have fitted.

- A length is known before its seal is. So it is limited to 1 MiB, and a longer message grows by records that fitted.
- The stream ends in the middle: that is the end of the connection, as if the peer had died. A job that has ended well
  ends by messages (`Ended`, `Leave`), so that nothing can be cut off unseen.
- Records that are delayed or cut off end the job by the limits of Note [Heartbeat]. No seal helps against that.
- The first record that does not fit is the last one that is read: the numbers differ from then on.

The bytes are not encrypted. HMAC-SHA256 has 1.8 GB/s where the processor has instructions for SHA-256, as servers since
2019 have; keyed BLAKE2b had 0.9 GB/s on the same one.

The socket pairs of agents on this machine have no seal: a socket pair has no name, so no other user can connect to it.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import struct
from typing import Any, NamedTuple

CHUNK = 1 << 20
SEAL = 32
_HEADER = struct.Struct("!B3xI")
_NUMBER = struct.Struct("!Q")
# The kinds of records.
MORE, LAST, PART = 1, 2, 3


class TamperedError(Exception):
    """A record does not come from the holder of the key, or not unchanged."""


class Seals(NamedTuple):
    """The keys of one connection: for what this end writes, and for what it reads."""

    own: bytes
    theirs: bytes


class Wire:
    """
    One end of a connection. One thread may write while another one reads.

    Parameters
    ----------
    end : socket.socket
        Which the wire owns from now on.
    seals : Seals, optional
        The keys; without them nothing is sealed, see Note [Records].
    """

    def __init__(self, end: socket.socket, seals: Seals | None = None) -> None:
        self._socket = end
        self._sealed = SEAL if seals else 0
        # Each is copied for a record: half of the work for a short one is done once.
        self._own = hmac.new(seals.own, digestmod="sha256") if seals else None
        self._theirs = hmac.new(seals.theirs, digestmod="sha256") if seals else None
        self._written = self._read = 0

    def send(self, message: bytes) -> None:
        view = memoryview(message)
        for start in range(0, len(view) or 1, CHUNK):
            piece = view[start : start + CHUNK]
            self._put(LAST if start + CHUNK >= len(view) else MORE, piece)

    def send_part(self, part: memoryview) -> None:
        """Write a part, whose size the reader knows."""
        for start in range(0, part.nbytes, CHUNK):
            self._put(PART, part[start : start + CHUNK])

    def receive(self) -> bytes | bytearray:
        """Read a message. Raise `EOFError` when the peer has closed the connection, and `TamperedError`."""
        kind, came = self._take_message()
        while kind == MORE:
            kind, more = self._take_message()
            came += more
        return came

    def receive_into(self, place: memoryview) -> int:
        """Read one record of a part into the beginning of *place*; return its size. Nobody may use the bytes before."""
        size = min(CHUNK, place.nbytes)
        header = self._take_header()
        # The size is known, so nothing is written that does not belong here.
        if _HEADER.unpack(header) != (PART, size):
            raise self._tampered()
        self._fill(place[:size])
        self._check(header, place[:size], self._exactly(self._sealed))
        return size

    def wait(self, seconds: float | None) -> None:
        """Limit each read and write to so many seconds, after which it raises `TimeoutError`; None for no limit."""
        self._socket.settimeout(seconds)

    def fileno(self) -> int:
        """Return the descriptor, to wait for."""
        return self._socket.fileno()

    def shut_down(self) -> None:
        """Wake the threads that use the connection: for both ends it is over."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end. Idempotent."""
        self._socket.close()

    def _put(self, kind: int, piece: memoryview) -> None:
        header = _HEADER.pack(kind, piece.nbytes)
        parts: list[Any] = [header, piece]
        if self._own is not None:
            parts.append(_seal(self._own, self._written, header, piece))
            self._written += 1
        total = sum(memoryview(part).nbytes for part in parts)
        sent = self._socket.sendmsg(parts)
        while sent < total:
            parts = _after(parts, sent)
            total -= sent
            sent = self._socket.sendmsg(parts)

    def _take_message(self) -> tuple[int, bytearray]:
        header = self._take_header()
        kind, size = _HEADER.unpack(header)
        if kind not in (MORE, LAST) or size > CHUNK:
            raise self._tampered()
        came = self._exactly(size + self._sealed)
        self._check(header, memoryview(came)[:size], came[size:])
        del came[size:]
        return kind, came

    def _take_header(self) -> bytearray:
        return self._exactly(_HEADER.size)

    def _exactly(self, size: int) -> bytearray:
        came = bytearray(size)
        self._fill(memoryview(came))
        return came

    def _fill(self, place: memoryview) -> None:
        while place:
            size = self._socket.recv_into(place, 0, socket.MSG_WAITALL)
            if size == 0:
                raise EOFError
            place = place[size:]

    def _check(self, header: bytearray, piece: memoryview, seal: bytearray) -> None:
        if self._theirs is not None:
            expected = _seal(self._theirs, self._read, header, piece)
            if not hmac.compare_digest(expected, seal):
                raise self._tampered()
        self._read += 1

    def _tampered(self) -> TamperedError:
        """Read no more: what follows could be anything. Return the error; the other direction stays, to tell it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)
        return TamperedError(
            f"record {self._read} of the connection was not written by the other mp-spawn, or was changed on the way; "
            "it has not been used. Look for a program that listens on node 0's port or relays it, and choose another "
            "--master-port and a new key"
        )


def _seal(keyed: hmac.HMAC, number: int, header: bytes | bytearray, piece: memoryview) -> bytes:
    seal = keyed.copy()
    seal.update(_NUMBER.pack(number) + header)
    seal.update(piece)
    return seal.digest()


def _after(parts: list[Any], sent: int) -> list[Any]:
    """
    Return what is left of *parts* after so many bytes.

    >>> [bytes(part) for part in _after([b"abc", b"", b"de"], 4)]
    [b'e']
    """
    left = []
    for part in parts:
        whole = memoryview(part)
        view = whole[sent:]
        sent = max(0, sent - whole.nbytes)
        if view.nbytes:
            left.append(view)
    return left
