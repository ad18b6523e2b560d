"""A system with POSIX's threads and sockets."""

from __future__ import annotations

import os
import socket
import stat
import sys

__all__ = ["NAME", "NO_SOCKET", "UNRELATED", "get_thread_name", "peer", "set_thread_name"]

NAME = sys.platform

#: The family of a connection that is no socket, and the pid of a peer that may be any process.
NO_SOCKET = -1
UNRELATED = -1


def set_thread_name(name: bytes) -> None:
    """Do nothing: POSIX has no names of threads."""


def get_thread_name() -> bytes:
    """Return an empty name."""
    return b""


def peer(fd: int) -> tuple[int, int]:
    """
    Return the address family of a connection, and the pid of its peer: 0 if it is unknown, -1 if it may be any process.

    A socket with a name was made by a listener, so its peer may be a program without these packages.
    """
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return NO_SOCKET, 0
    blocking = os.get_blocking(fd)
    end = socket.socket(fileno=fd)
    try:
        names = [end.getsockname()]
        try:
            names.append(end.getpeername())
        except OSError:
            pass  # the peer has gone
        return end.family, UNRELATED if any(names) else 0
    finally:
        end.detach()
        os.set_blocking(fd, blocking)  # a default timeout makes new sockets non-blocking
