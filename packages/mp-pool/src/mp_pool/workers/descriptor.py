"""`Descriptor`: descriptors of this process that a forked child closes, so that the end of this process is seen."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Descriptor", "close_in_children", "keep_in_children"]

# Descriptors that a forked child must close: otherwise the end of this process would not end its workers. By identity.
_own: dict[int, Any] = {}


class Descriptor:
    """
    A descriptor of this process only, closed once.

    It is made before the descriptor, as `own = Descriptor(); own.fd = os.pidfd_open(pid)`: a signal handler that raises
    between the two statements then leaves no number that nobody closes.
    """

    def __init__(self) -> None:
        self.fd = -1
        close_in_children(self)

    def fileno(self) -> int:
        """Return the number, -1 if it is closed."""
        return self.fd

    def close(self) -> None:
        """Close it. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
        keep_in_children(self)


def close_in_children(each: Any) -> None:
    """Have every child that is forked from now on close it."""
    _own[id(each)] = each


def keep_in_children(each: Any) -> None:
    """Undo `close_in_children`."""
    _own.pop(id(each), None)


def _close_in_child() -> None:
    for each in list(_own.values()):
        each.close()
    _own.clear()


os.register_at_fork(after_in_child=_close_in_child)
