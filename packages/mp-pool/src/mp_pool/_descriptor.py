"""`Descriptor`: descriptors of this process that a forked child closes, so that the end of this process is seen."""

from __future__ import annotations

import os
import socket

__all__ = ["Descriptor", "close_in_children", "keep_in_children"]

# Descriptors that a forked child must close: otherwise the end of this process would not end its workers. By identity.
_own: dict[int, socket.socket | Descriptor] = {}


class Descriptor:
    """A descriptor of this process only, closed once."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        close_in_children(self)

    def fileno(self) -> int:
        """Return the number, -1 if it is closed."""
        return self.fd

    def close(self) -> None:
        """Close it. Idempotent."""
        keep_in_children(self)
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def close_in_children(each: socket.socket | Descriptor) -> None:
    """Have every child that is forked from now on close it."""
    _own[id(each)] = each


def keep_in_children(each: socket.socket | Descriptor) -> None:
    """Undo `close_in_children`."""
    _own.pop(id(each), None)


def _close_in_child() -> None:
    for each in list(_own.values()):
        each.close()
    _own.clear()


os.register_at_fork(after_in_child=_close_in_child)
