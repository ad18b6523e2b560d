"""The resource tracker of `multiprocessing` on macOS: left alone when the interpreter exits.

Since CPython 3.12.2 the finalizer of the tracker waits for the tracker's process, which ends when every process has
closed its pipe. Where a child still has the pipe, the parent waits for ever (CPython issue 88887). The tracker ends by
itself when the last process has gone, so nothing has to wait for it.
"""

from __future__ import annotations

import atexit

from mp_core.system import machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def is_left_alone() -> bool:
    """Return whether the tracker has to be left alone on this platform and Python."""
    return machine.system() == "darwin" and machine.python_version() >= (3, 12, 2)


def install() -> None:
    """Register the step at exit, where it is needed."""
    if is_left_alone():
        atexit.unregister(_leave_alone)
        atexit.register(_leave_alone)


def _leave_alone() -> None:
    from multiprocessing import resource_tracker

    kind: Any = resource_tracker.ResourceTracker
    if hasattr(kind, "__del__"):
        del kind.__del__
