"""Connections whose messages skip the pipe: `pipe()` makes a pair of them.

Note [A connection with a ring]
-------------------------------
A `ChannelConnection` is a `multiprocessing.connection.Connection`: it has the same descriptor of the same kind of pipe,
and closing, duplicating and inheriting it mean the same. Its messages pass through a ring in shared memory beside the
pipe (`libshm/src/channel/channel.c`), and the pipe itself carries at most one byte, which wakes a reader that sleeps or
selects. Both ends are made by one call, so both have the ring, and a connection that is sent to another process takes
the descriptor of the ring's memory along:

    ForkingPickler(ChannelConnection) --> (rebuild, (descriptor of the pipe, of the memory, side, readable, writable))

The ring of a pair that `pipe()` makes is made when it is needed (`lazy_ring.c`). Where there can be none then
(no memfd, half of the descriptors in use), both ends are ordinary connections: their methods call those of
multiprocessing, and their pickles are those of ordinary connections. `make_pair` makes the ring at once, for queues:
they need to know it, since over an ordinary pipe they need their locks and the feeder thread.

``MP_CHANNEL=0`` turns channels off: no `ChannelConnection` is made. Connections of `Listener` and `Client` are ordinary
ones: their peer may be any program.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Coroutine, Sequence
from multiprocessing import connection as _connection
from multiprocessing import context
from multiprocessing.connection import Connection

from mp_core.channels import connections
from mp_core.children import child_descriptors
from mp_core.sharing import backend, by_value
from mp_core.system import imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ChannelConnection(backend.Channel, Connection):  # type: ignore[misc]
    """A connection whose messages pass through a ring in shared memory; see Note [A connection with a ring]."""

    _awaited: Any = None
    _senders: Any = None

    def arecv(self) -> Coroutine[Any, Any, Any]:
        """Receive an object, in a coroutine; as `recv`."""
        return imports.load("mp_core.channels.coroutines").receive(self)  # type: ignore[no-any-return]

    def asend(self, obj: Any) -> Coroutine[Any, Any, None]:
        """Send an object, in a coroutine; as `send`."""
        return imports.load("mp_core.channels.coroutines").send(self, obj)  # type: ignore[no-any-return]

    def _recv_bytes(self, maxsize: int | None = None) -> io.BytesIO:
        if self._is_ordinary():
            return Connection._recv_bytes(self, maxsize)  # type: ignore[attr-defined, no-any-return]
        buffer = io.BytesIO()
        buffer.write(self.recv_bytes(maxsize))
        return buffer


def make_pair(duplex: bool, lazy: bool = False) -> tuple[Any, Any] | None:
    """Return two ends of a new channel; None where there can be no ring. If *lazy*, it is made when it is needed."""
    made = backend.make_channel(ChannelConnection, duplex, lazy)
    return None if isinstance(made, int) else made


def pipe(duplex: bool = True) -> tuple[Any, Any]:
    """Return two connections, as `multiprocessing.Pipe` does; the second one only sends if *duplex* is false."""
    return make_pair(duplex, True) or _connection.Pipe(duplex)


def reduce_channel(connection: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Pickle a connection with the descriptor of its ring."""
    from multiprocessing.reduction import DupFd  # Windows has none, and no channel

    parts = connection._parts()
    if parts is None:
        return vars(_connection)["reduce_connection"](connection)  # type: ignore[no-any-return]
    fd, memory, *form = parts
    if child_descriptors.trial.under_way:
        return _rebuild, ()
    popen = context.get_spawning_popen()
    passed = None if popen is None else child_descriptors.pass_on(popen, (fd, memory))
    if passed is not None:
        return _rebuild_passed, (*passed, *form)
    return _rebuild, (DupFd(fd), DupFd(memory), *form)


def _rebuild(pipe: Any, memory: Any, side: int, readable: bool, writable: bool) -> Any:
    fds = pipe.detach(), memory.detach()
    for fd in fds:
        child_descriptors.close_on_exec(fd)
    return _open(fds, side, readable, writable)


def _rebuild_passed(duplicate: Any, number: int, side: int, readable: bool, writable: bool) -> Any:
    return _open(child_descriptors.taken(duplicate, number, 2), side, readable, writable)


def _open(fds: Sequence[int], side: int, readable: bool, writable: bool) -> Any:
    return checked(backend.open_channel(ChannelConnection, *fds, side, readable, writable))


def checked(opened: Any) -> Any:
    """Return what `open_channel` has returned, unless it is an error."""
    if isinstance(opened, int):
        backend.check(opened, "the ring of a received connection")
    return opened


connections.add(ChannelConnection, reduce_channel)
backend.setup_channels(Connection, by_value.find_out, sys.is_finalizing)
