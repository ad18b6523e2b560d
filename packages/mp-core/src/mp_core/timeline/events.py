"""The events of a run, as `timeline.c` writes them: a file for each process, and the reader of these files."""

from __future__ import annotations

import struct
from typing import NamedTuple

# Kinds of events, and what a, b and c are.
TASK = 1  # its number at the worker, bytes of the arguments, bytes of the result; name: the function
GET = 2  # the ring, the message, its bytes
PUT = 3  # the same
LOCK = 4  # waiting for it; b: 1 for a semaphore; name: of a condition, an event, a barrier
PLACE = 5  # waiting for a place in a bounded queue; a: its ring
COPY = 6  # bytes; b: of copies into shared memory, the same number for the same bytes at the same address
PICKLE = 7  # bytes of device memory in the message
IDLE = 8  # a worker waits for a task
START = 9  # a process was started; a: its pid; name: its name
ANSWER = 10  # the pool has a result; pid of the worker, number, position of the item in the call; items
LOST = 11  # a worker died in a task; the same, and the name of the function
MADE = 12  # a queue was made; a: its ring, b: its size; name: the line of the program
BLOCKS = 13  # what a task has in blocks; its number at the worker, bytes that are shared, bytes copied for the message

# Flags.
WAITED = 1  # GET, PUT
INTO = 2  # COPY: into shared memory; PICKLE: pickling, not unpickling; BLOCKS: of the result
MESSAGE = 4  # GET, PUT: there was one
FAILED = 8  # TASK: it raised
RETRIED = 16  # LOST: it is run again
OF_POOL = 32  # GET, PUT: it is a task or a result
TERMINATED = 64  # LOST: the pool was terminated

#: The bytes of the strings of a file.
NAMED_STRINGS = 1 << 16

_HEADER = struct.Struct("<8sIIIIQQqQIIQI")
_HEADER_BYTES = 4096
#: Two nodes may have processes of one pid: those of node n have n times this added, more than a pid of Linux can be.
NODE_PIDS = 10_000_000
_OF_PROCESSES = (START, ANSWER, LOST)  # a is a pid
_OF_RINGS = (GET, PUT, PLACE, MADE)  # a is a ring
_EVENT = struct.Struct("<QQQQQIIIHH")
_MAGIC = b"mptline1"


class Event(NamedTuple):
    """One event; times are nanoseconds of the clock of the timeline's owner."""

    start: int
    duration: int
    a: int
    b: int
    c: int
    name: str
    thread: int
    items: int
    kind: int
    flags: int

    @property
    def end(self) -> int:
        return self.start + self.duration


class ProcessEvents(NamedTuple):
    """
    The contents of the file of one process; *ended* is 0 if it has not said so, *lost* counts the oldest events, and
    *idle* is since when it has waited for a task, or 0.
    """

    pid: int
    parent: int
    name: str
    began: int
    ended: int
    lost: int
    events: list[Event]
    idle: int


def nbytes_of(events: int) -> int:
    """Return the size of the file for so many events."""
    return _HEADER_BYTES + NAMED_STRINGS + events * _EVENT.size


def read(data: bytes) -> ProcessEvents | None:
    """
    Return what the file of a process has; None for another file, also one whose process was killed before the header.

    >>> read(b"nothing")
    """
    if len(data) < _HEADER_BYTES or data[: len(_MAGIC)] != _MAGIC:
        return None
    _, pid, parent, capacity, strings, began, ended, offset, written, _, own, idle, node = _HEADER.unpack_from(data)
    texts: dict[int, str] = {0: ""}

    def text(at: int) -> str:
        if at not in texts:
            start = _HEADER_BYTES + at
            (length,) = struct.unpack_from("<I", data, start)
            texts[at] = data[start + 4 : start + 4 + length].decode(errors="replace")
        return texts[at]

    # In a full ring the process may have been killed while it replaced the oldest event.
    first = 0 if written < capacity else written - capacity + (not ended)
    events = []
    for number in range(first, written):
        at = _HEADER_BYTES + strings + (number & (capacity - 1)) * _EVENT.size
        start, duration, a, b, c, name, thread, items, kind, flags = _EVENT.unpack_from(data, at)
        if node:
            thread += node * NODE_PIDS
            a += node * NODE_PIDS if kind in _OF_PROCESSES else node << 64 if kind in _OF_RINGS and a else 0
        events.append(Event(start + offset, duration, a, b, c, text(name), thread, items, kind, flags))
    last = ended and ended + offset
    pid, parent = (number + node * NODE_PIDS for number in (pid, parent))
    return ProcessEvents(pid, parent, text(own), began + offset, last, first, events, idle and idle + offset)


def of_node(data: bytes, node: int, offset: int) -> bytes:
    """Return the contents of a file of a *node* whose clock is so many ns before the owner's."""
    if len(data) < _HEADER_BYTES or data[: len(_MAGIC)] != _MAGIC:
        return data
    fields = list(_HEADER.unpack_from(data))
    fields[7], fields[12] = offset, node
    return _HEADER.pack(*fields) + data[_HEADER.size :]
