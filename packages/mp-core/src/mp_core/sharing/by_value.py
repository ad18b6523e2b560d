"""Messages sent by value, because the receiver cannot share memory or the program asked for it.

Note [Which receivers can share]
--------------------------------
    a pipe, a socketpair                      yes: both ends were made in one process and inherited
    AF_INET, AF_INET6, AF_VSOCK, ...          no: the other end may be another machine
    AF_UNIX, peer in another mount namespace  no: it cannot see the runtime folder
    AF_UNIX, peer has not loaded this library
      and is no relative of ours, or another
      program that we have started            no: it may have no library to receive with
    AF_UNIX, nothing is known about the peer  yes; the receiver's error says so if that is wrong

A message by value is the pickle that multiprocessing alone would make: arrays in NumPy's own form, and no name of these
packages. The answer is stored in the connection object, not under its descriptor's number, which another connection may
get later. Another process that receives the connection decides again.
"""

from __future__ import annotations

import os
import socket
from multiprocessing.connection import Connection

from mp_core.sharing import backend
from mp_core.system import settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def set_sharing(enabled: bool, connection: Connection[Any, Any] | None = None) -> None:
    """
    Let messages share memory, or send everything by value.

    By value means as with ``multiprocessing`` alone: NumPy pickles the arrays, including those in shared memory, and
    the receiver needs none of these packages. A `Block`, a `Lease` and device memory have no value form, and sending
    them is a `TypeError`.

    Messages over TCP always go by value, as do messages over a local socket whose peer certainly cannot share.
    ``MP_SHARE=0`` in the environment turns sharing off from the start.

    Parameters
    ----------
    enabled : bool
        False to send by value, True to share again.
    connection : Connection, optional
        Affects only messages sent with the ``send`` of this object. If None, the setting is for all messages of this
        process, and of children that it starts from now on.

    Raises
    ------
    TypeError
        *connection* is not a connection.
    ValueError
        *connection* goes over a network, so it cannot share.
    RuntimeError
        *connection* is given, and `install` was not called.

    Examples
    --------
    >>> ours, theirs = mp.Pipe()
    >>> mp.set_sharing(False, ours)
    >>> ours.send(mp.shared.ones(3))
    >>> mp.is_shared(theirs.recv())
    False
    """
    if connection is None:
        backend.share(bool(enabled))
        return
    channel = _checked(connection, "set_sharing")
    if not hasattr(Connection, "_mp_shares"):
        raise RuntimeError("set_sharing for one connection needs mp_core.install(), which importing mp_all calls")
    if enabled and backend.peer(channel.fileno())[0] not in (_NO_SOCKET, socket.AF_UNIX):
        raise ValueError(f"{channel!r} goes over a network, where memory cannot be shared; leave it by value")
    channel._mp_shares = bool(enabled)


def get_sharing(connection: Connection[Any, Any] | None = None) -> bool:
    """
    Return whether messages may share memory.

    Parameters
    ----------
    connection : Connection, optional
        A connection; if None, the setting of this process is returned.

    Returns
    -------
    bool
        False if they go by value.

    Raises
    ------
    TypeError
        *connection* is not a connection.

    Examples
    --------
    >>> mp.get_sharing()
    True
    """
    everywhere: bool = backend.share(None)
    if connection is None:
        return everywhere
    channel = _checked(connection, "get_sharing")
    shares = getattr(channel, "_mp_shares", None)
    return everywhere and (find_out(channel) if shares is None else shares)


def _checked(connection: Any, who: str) -> Any:
    if not isinstance(connection, Connection):
        raise TypeError(f"{who} takes a multiprocessing Connection, not {type(connection).__name__}")
    return connection


# ---- the other end of a connection -----------------------------------------------------------------------------------

_NO_SOCKET = -1


def find_out(connection: Any) -> bool:
    """Find out whether the receiver at the other end can share memory, and store the answer in the connection."""
    if connection._handle is None:
        return True  # closed: sending will raise
    family, pid = backend.peer(connection._handle)
    shares = family == _NO_SOCKET or (family == socket.AF_UNIX and _can_share(pid))
    connection._mp_shares = shares
    return shares


def _can_share(pid: int) -> bool:
    """Return False if the process certainly cannot share; a reused pid makes messages slower, never wrong."""
    if pid in (0, os.getpid()):
        return True
    if pid < 0:
        return False  # any process: nothing tells whether it has the packages
    try:
        ours, theirs = os.stat("/proc/self/ns/mnt"), os.stat(f"/proc/{pid}/ns/mnt")
        if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino):
            return False
        if _descends(os.getpid(), pid) or (_descends(pid, os.getpid()) and _is_of_multiprocessing(pid)):
            return True
        # The library may be another installation's: its name is the same in all of them.
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
            return backend.library_name() in maps.read()
    except OSError:
        return True  # nothing is known


def _is_of_multiprocessing(pid: int) -> bool:
    """Tell whether a descendant was forked, or started by multiprocessing, and so has the packages that we have."""
    with open("/proc/self/cmdline", "rb") as ours, open(f"/proc/{pid}/cmdline", "rb") as theirs:
        line = theirs.read()
        return line == ours.read() or any(word in line for word in _OF_MULTIPROCESSING)


_OF_MULTIPROCESSING = (
    b"from multiprocessing.spawn import",
    b"from multiprocessing.forkserver import",
    b"--multiprocessing",
)


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1 and pid != ancestor:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # pid (name) state ppid; the name may hold anything, even brackets.
            pid = int(stat.read().rpartition(b")")[2].split()[1])
    return pid == ancestor


if not settings.shares():  # a child may have taken over its parent's setting before this import
    backend.share(False)
