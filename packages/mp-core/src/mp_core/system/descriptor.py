"""`Descriptor`: the owner of a descriptor, which is closed once; and what a forked child closes."""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What a forked child must close: otherwise the end of this process would not end its workers. By identity.
_own: dict[int, Any] = {}


class Descriptor:
    """
    A descriptor that this process has opened, and closes with the object.

    It can be made before the descriptor, as `own = Descriptor(); own.fd = os.pidfd_open(pid)`: a signal handler that
    raises between the two statements then leaves no number that nobody closes. With *closed_in_children*, every child
    that is forked closes it.
    """

    fd = _pid = -1

    def __init__(self, fd: int = -1, *, closed_in_children: bool = False) -> None:
        self._pid = os.getpid()
        self.fd = fd
        if closed_in_children:
            close_in_children(self)

    def fileno(self) -> int:
        """Return the number, -1 if it is closed."""
        return self.fd

    def give_up(self) -> int:
        """Return the descriptor, which somebody else closes from now on."""
        fd, self.fd = self.fd, -1
        return fd

    def close(self) -> None:
        """Close it. Idempotent."""
        fd, self.fd = self.fd, -1  # no call before that of `close`: a signal handler raises after one
        if fd >= 0:
            os.close(fd)
        keep_in_children(self)

    def __del__(self) -> None:
        # A forked child may have closed the number itself, and use it for another file.
        if self.fd >= 0 and os.getpid() == self._pid:
            self.close()


class AboveStandardStreams:
    """While it lasts, no new descriptor has the number of a closed standard stream, which it would be to a child."""

    def __init__(self) -> None:
        self._held: list[Descriptor] = []

    def __enter__(self) -> None:
        try:
            while not self._held or self._held[-1].fd < 3:
                self._held.append(Descriptor())
                self._held[-1].fd = os.open("/", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # there are no more, for what follows either
            pass
        self._held.pop().close()

    def __exit__(self, *_: object) -> None:
        for each in self._held:
            each.close()


def inheritable() -> frozenset[int]:
    """
    Return the descriptors above 2 that the programs inherit which this process starts: a shell's ``<(...)``, or a lock.

    >>> all(fd > 2 for fd in inheritable())
    True
    """
    found = set()
    try:
        for fd in map(int, os.listdir("/dev/fd")):  # macOS has it as well
            try:
                if fd > 2 and os.get_inheritable(fd):
                    found.add(fd)
            except OSError:
                pass  # that of the folder
    except OSError:
        pass
    return frozenset(found)


def hold_both_ends(fd: int) -> bool:
    """Have the number *fd* of a pipe's reading end stand for both ends, and not block; return False without /proc."""
    both = Descriptor()
    try:
        both.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    os.dup2(both.fd, fd, inheritable=False)
    both.close()
    return True


def close_in_children(each: Any) -> None:
    """Have every child that is forked from now on close it."""
    _own[id(each)] = each


def keep_in_children(each: Any) -> None:
    """Undo `close_in_children`."""
    _own.pop(id(each), None)


def _close_in_child() -> None:
    for each in list(_own.values()):
        try:
            each.close()
        except OSError:
            pass  # the program has closed its number
    _own.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def readable(fd: int, timeout: float | None) -> bool:
    """
    Wait up to *timeout* seconds, for ever if None, until *fd* is readable. Any number: select stops at 1024.

    >>> read, write = os.pipe()
    >>> readable(read, 0), os.write(write, b"x"), readable(read, 0)
    (False, 1, True)
    >>> os.close(read), os.close(write)
    (None, None)
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))
