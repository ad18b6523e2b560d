"""Points: every place of a scene at which a signal handler may run, and a signal that is pending there.

CPython runs the handlers of signals in the main thread only, and only where the interpreter looks: when a function
begins, when a call returns, at the end of each turn of a loop, and in C code that looks itself. A point is an
instruction after which it looks. The signal becomes pending just before that instruction, as if it had come then, and
the interpreter itself runs the handler: at the place, and with the frames and the exception table, of a real signal.
While the signal is blocked it does not come: it stays pending until the first point at which it is not.

    sys.settrace   an event before each instruction --> count it; is it the one?  --> the signal is pending
    the instruction runs: the interpreter looks, and calls the handler
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import dis
import functools
import os
import signal
import sys
from collections.abc import Callable, Container
from types import CodeType, FrameType
from typing import Any

__all__ = ["SIGNAL", "Interrupted", "Place", "Points", "notes_ignored"]

SIGNAL = signal.SIGUSR2
#: File, function, and the position of the instruction in it.
Place = tuple[str, str, int]

_NAMES = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "BEFORE_WITH", "FOR_ITER", "SEND", "WITH_EXCEPT_START"}
_LOOKS = bytes(
    name in _NAMES or (name.startswith(("JUMP_BACKWARD", "POP_JUMP_BACKWARD")) and not name.endswith("NO_INTERRUPT"))
    for name in dis.opname
)
# Signals during an import leave half of a module, with the standard library as with us.
_LEFT_OUT = ("<frozen ", os.path.dirname(os.path.abspath(__file__)) + os.sep + "points.py")


class Interrupted(BaseException):
    """Raised by the handler, like `KeyboardInterrupt`."""


def notes_ignored(notes: list[str]) -> Callable[[sys.UnraisableHookArgs], None]:
    """Return a hook that notes the exceptions of destructors and callbacks. It is no part of the scene."""

    def note(it: sys.UnraisableHookArgs) -> None:
        notes.append(f"ignored: {type(it.exc_value).__name__}: {it.exc_value} in {it.object!r:.60}")

    return note


class _Trigger:
    """Its negation makes the signal pending. An operator, since the interpreter would look after a call."""

    __neg__ = staticmethod(functools.partial(_thread.interrupt_main, SIGNAL))


_trigger: Any = _Trigger()


class Points:
    """
    Counts the points of a call in `run`; at those whose numbers are in *at*, calls *handle* with the place.

    Before that it calls *tell*, since the program may hang afterwards.
    """

    def __init__(
        self,
        at: Container[int] = (),
        handle: Callable[[Place], None] | None = None,
        tell: Callable[[Points], None] | None = None,
    ) -> None:
        self.places: list[Place] = []
        self.handled: list[str] = []  # the frames in which the handler ran
        self.frames: list[Place] = []
        self.lines: list[tuple[str, int]] = []  # the innermost lines of each
        self._at, self._handle, self._tell = at, handle, tell
        self._pending = False
        self._too_early = False
        self._pid = os.getpid()
        self._code: dict[CodeType, bytes] = {}

    def run(self, function: Callable[[], object]) -> BaseException | None:
        """Call *function* and return its exception."""
        before = signal.signal(SIGNAL, self._on_signal)
        sys._getframe().f_trace_opcodes = True  # CPython 3.12 asks when the function is set
        try:
            sys.settrace(self._begin)
            function()
        except BaseException as error:
            sys.settrace(None)
            return error
        finally:
            sys.settrace(None)
            signal.signal(SIGNAL, before)
            self._handle = None  # it may refer to the objects of the scene
        return None

    def _begin(self, frame: FrameType, event: str, argument: object) -> Any:
        if os.getpid() != self._pid:
            sys.settrace(None)  # a forked child
            return None
        if not (left_out := frame.f_code.co_filename.startswith(_LEFT_OUT)):
            frame.f_trace = self._trace  # first: CPython 3.13 asks for it when the next is set
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if self._too_early:
            self._too_early = False
            -_trigger  # noqa: B018 - as in `_trace`
        return None if left_out else self._trace

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if event != "opcode":
            return self._trace
        code = self._code.get(frame.f_code)
        if code is None:
            code = self._code[frame.f_code] = frame.f_code.co_code
        at = frame.f_lasti
        if not _LOOKS[code[at]] or self._pid != os.getpid():
            return self._trace
        self.places.append((frame.f_code.co_filename, frame.f_code.co_qualname, at))
        self._pending |= len(self.places) - 1 in self._at
        if self._pending and SIGNAL not in _signal.pthread_sigmask(signal.SIG_BLOCK, ()):
            self._pending = False
            -_trigger  # noqa: B018 - no call from here to the end, where the interpreter would look
        return self._trace

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        assert frame is not None
        if os.getpid() != self._pid:
            return
        if frame.f_code is Points._trace.__code__:
            return  # the instruction has not looked: it is no point
        if frame.f_code is Points._begin.__code__:
            self._too_early = True  # the instruction is a call, and its function has still to look: CPython 3.12
            return
        stack = []
        lines = []
        at: FrameType | None = frame
        while at is not None and at.f_code is not Points.run.__code__:
            stack.append(f"{os.path.basename(at.f_code.co_filename)}:{at.f_lineno} {at.f_code.co_qualname}")
            self.frames.append((at.f_code.co_filename, at.f_code.co_qualname, at.f_lasti))
            lines.append((at.f_code.co_filename, at.f_lineno or 0))
            at = at.f_back
        self.lines += lines[:3]
        self.handled.append(" < ".join(stack[:6]))
        if self._tell is not None:
            sys.settrace(None)  # what it calls is no part of the scene
            self._tell(self)
            sys.settrace(self._begin)
        if self._handle is not None:
            self._handle(self.places[-1])
