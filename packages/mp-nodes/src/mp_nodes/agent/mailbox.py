"""Mailboxes: messages between the driver and a rank, which its agent passes on.

    driver --Mail--> engine --Mail--> agent --socket--> rank        and back the same way

A rank has one if `fn` has a `Mailbox` among its arguments: the rank gets a `Connection` in its place. The messages are
bytes, which driver and rank pickle as they like.

- The rank dies: its end of the socket is closed, both threads of the agent end, and the agent reports its end.
- The agent dies: the rank reads end-of-file. It dies with its agent anyway, by its death pipe.
- The rank does not read: its messages wait in the agent's memory. The driver limits how many there are.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from mp_core.system.pickled_call import PickledCall
from mp_nodes.protocol import Mail
from mp_spawn.calls.payload import InheritedFd, per_rank_object


class Mailbox:
    """Stand among the arguments for the rank's own connection to the driver."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Its own end is the last of the objects beside the pickle; see `NodePayload.payloads`.
        return _opened, (PickledCall(per_rank_object, -1),)


def _opened(end: InheritedFd) -> Connection:
    return Connection(end.detach())


class PostOffice:
    """The agent's ends of the mailboxes of its ranks."""

    def __init__(self) -> None:
        self._ours: list[Connection] = []
        self._outgoing: list[queue.SimpleQueue[bytes | None]] = []

    def open(self) -> int:
        """Make the mailbox of the next rank and return the descriptor for it, which the caller closes."""
        ours, theirs = socket.socketpair()
        self._ours.append(Connection(ours.detach()))
        self._outgoing.append(queue.SimpleQueue())
        return theirs.detach()

    def begin(self, first: int, tell: Callable[[Any], None]) -> None:
        """Pass messages on: *tell* sends one to the driver, and *first* is the number of the first rank."""
        for index, (ours, outgoing) in enumerate(zip(self._ours, self._outgoing, strict=True)):
            for target, args in ((_read, (ours, first + index, tell)), (_write, (ours, outgoing))):
                threading.Thread(target=target, args=args, name="mp-spawn mailbox", daemon=True).start()

    def send(self, index: int, data: bytes) -> None:
        """Queue a message for the rank *index* of this node."""
        self._outgoing[index].put(data)

    def close(self) -> None:
        """End the threads. Idempotent."""
        for ours, outgoing in zip(self._ours, self._outgoing, strict=True):
            outgoing.put(None)
            with contextlib.suppress(OSError), socket.socket(fileno=ours.fileno()) as shut:
                shut.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads or writes
                shut.detach()


def _read(ours: Connection, rank: int, tell: Callable[[Any], None]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            tell(Mail(rank, ours.recv_bytes()))


def _write(ours: Connection, outgoing: queue.SimpleQueue[bytes | None]) -> None:
    with contextlib.suppress(OSError, ValueError):
        while (data := outgoing.get()) is not None:
            ours.send_bytes(data)
