"""The descriptors of connections with a ring, on their way to a child that is being started: all in one socket.

    parent   Queue.put(fds)          puts them into the queue of a socket pair; the child inherits the other socket
             Process.start returns   closes both sockets here (`child_descriptors.py`)
    child    take(duplicate, number) empties the queue at its first connection, and returns the descriptors of each

A connection with a ring has two descriptors, the pipe's and the ring's. Linux sends at most 253 descriptors in one
message, so a fork server takes no more for one child; the queue of a socket holds as many as there are. The kernel
closes those that nobody takes when the last process closes the socket, so a child that is killed while it starts
leaves none.
"""

from __future__ import annotations

import _socket
import errno
import os
import socket
from array import array
from collections.abc import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NUMBER = 4  # bytes of the number that precedes the descriptors of a connection


class Queue:
    """The parent's side, for one child."""

    def __init__(self) -> None:
        from multiprocessing.reduction import DupFd  # Windows has none, and no channel

        # Not the objects of the module socket: they are made of numbers, which a signal handler that raises loses.
        self._ours, self._childs = _socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._number = 0
        # One object for all connections: the starter of a process refuses a descriptor that it is given twice.
        self._duplicate = DupFd(self._childs.fileno())

    def put(self, fds: Sequence[int]) -> tuple[Any, int] | None:
        """Add the descriptors of one connection; return the arguments of `take`, or None if there is no room."""
        try:
            number = self._number.to_bytes(_NUMBER, "little")
            self._ours.sendmsg([number], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))])
        except OSError:  # the queue is full, or too many descriptors of this user are in queues
            return None
        self._number += 1
        return self._duplicate, self._number - 1

    def close(self) -> None:
        """Close both sockets. The descriptors stay in the queue if the child has inherited its socket."""
        self._ours.close()
        self._childs.close()


# The descriptors of this child's connections, by number. A process is started once, so it has one queue.
_arrived: dict[int, list[int]] | None = None


def take(duplicate: Any, number: int, count: int) -> list[int]:
    """In the child: return the *count* descriptors that its parent has put under this number."""
    global _arrived
    if _arrived is None:
        _arrived = _empty(duplicate.detach(), count)
    fds = _arrived.pop(number, [])
    if len(fds) == count:
        return fds
    for fd in fds:
        os.close(fd)
    raise OSError(errno.EMFILE, "this process has no descriptor left for a connection that its parent gave it")


def _empty(fd: int, most: int) -> dict[int, list[int]]:
    arrived: dict[int, list[int]] = {}
    # With its kind, which Python would otherwise ask for by calls that a sandbox may refuse.
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd) as queue:
        queue.setblocking(False)
        while True:
            try:
                message, fds, _, _ = socket.recv_fds(queue, _NUMBER, most, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return arrived
            if not message:
                return arrived
            arrived[int.from_bytes(message, "little")] = fds
