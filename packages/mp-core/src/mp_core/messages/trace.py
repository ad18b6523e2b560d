"""`MP_TRACE=1`: each message notes the function and line of the program that sends it.

`python -m mp_all top` shows the line of the oldest message that no process has received. The line is found when the
message is pickled, from the frames of the calling thread. `Queue.put` pickles in a thread of its own, which does not
have the caller's frames, so the line is found in `put` and remembered until that thread pickles the object.

Without MP_TRACE=1 nothing is replaced.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque
from multiprocessing import process, queues
from multiprocessing.reduction import ForkingPickler
from types import CodeType, FrameType
from typing import Any

from mp_core.sharing import forks
from mp_core.sharing.backend import LINE_SIZE, only_atoms, set_message_line
from mp_core.system import packages
from mp_core.system.errors import OURS

# Frames of these packages send on behalf of a program.
LIBRARIES = OURS | {"multiprocessing", "concurrent", "pickle", "threading", "importlib"}
MOST_WAITING = 10_000


def install() -> None:
    """Let `ForkingPickler.dumps` and `Queue.put` note the line that sends; calling it again does nothing."""
    dumps: Any = vars(ForkingPickler)["dumps"].__func__
    if getattr(dumps, "_traces", False):
        return
    inside = _Inside()

    def tracing_dumps(cls: type[ForkingPickler], obj: Any, protocol: int | None = None) -> Any:
        if inside.dumps:
            return dumps(cls, obj, protocol)
        inside.dumps = True
        set_message_line(calling_line() or _waiting.take(obj) or library_line())
        try:
            return dumps(cls, obj, protocol)
        finally:
            set_message_line(None)
            inside.dumps = False

    tracing_dumps._undoes = tracing_dumps._traces = True  # type: ignore[attr-defined]
    ForkingPickler.dumps = classmethod(tracing_dumps)  # type: ignore[assignment]
    only_atoms(True)  # messages with memory are not written in C, which knows no line

    for kind in (queues.Queue, queues.JoinableQueue):  # each has a put of its own
        _trace_put(kind)


def _trace_put(kind: Any) -> None:
    put: Any = vars(kind)["put"]

    @functools.wraps(put)
    def tracing_put(self: Any, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        line = calling_line()
        if line:
            _waiting.add(obj, line)
        try:
            put(self, obj, block, timeout)
        except BaseException:
            _waiting.take(obj)
            raise

    kind.put = tracing_put


class _Inside(threading.local):
    """Whether this thread is pickling a message already: an object may pickle others."""

    dumps = False


class _Waiting:
    """The lines of objects in queues that are not pickled yet, by the identity of the object."""

    def __init__(self) -> None:
        self._begin()
        # A child has none of the parent's objects to pickle, and another thread may hold the lock at the fork.
        forks.register(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lines: dict[int, deque[str]] = {}
        self._lock = threading.Lock()

    def add(self, obj: Any, line: str) -> None:
        with self._lock:
            if len(self._lines) < MOST_WAITING:  # a queue that is closed early leaves its lines
                self._lines.setdefault(id(obj), deque()).append(line)

    def take(self, obj: Any) -> str:
        with self._lock:
            lines = self._lines.get(id(obj))
            if not lines:
                return ""
            line = lines.popleft()
            if not lines:
                del self._lines[id(obj)]
            return line


_waiting = _Waiting()


def calling_line() -> str:
    """
    Return function, file and line of the innermost caller that is no library of messages; "" if there is none.

    >>> calling_line().endswith(")")
    True
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _is_library(frame) and not frame.f_code.co_filename.startswith("<frozen"):
            # The first frame of a process that spawn has started is a string of multiprocessing's.
            started = frame.f_code.co_filename == "<string>" and process.parent_process() is not None
            return "" if started else describe(frame)
        frame = frame.f_back
    return ""


def library_line() -> str:
    """Return the same for the innermost frame outside of this package: a pool sends its results itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(("mp_core", "multiprocessing.red")):
        frame = frame.f_back
    return describe(frame) if frame is not None else ""


def _is_library(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in LIBRARIES or package in packages.registered()


def describe(frame: FrameType) -> str:
    """Return ``function (file:line)`` of a frame, with the end of a path that is too long."""
    return _describe(frame.f_code, frame.f_lineno)


@functools.lru_cache(1000)
def _describe(code: CodeType, line: int) -> str:
    at = f"{code.co_filename}:{line}"
    name = code.co_qualname[-50:]
    room = LINE_SIZE - 1 - len(name) - 3
    return f"{name} ({at if len(at) <= room else '...' + at[-(room - 3) :]})"
