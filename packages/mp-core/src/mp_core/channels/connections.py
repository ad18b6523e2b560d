"""Connections of multiprocessing, extended: how they send, close, and are pickled.

Importing `multiprocessing.connection` calls `install`, if mp_core is installed (`install.py`). So this module imports
nothing from a module that imports connections: that may be in the middle of its own import. It imports all that a
message needs, since a process that has changed its root cannot import it later.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from multiprocessing import connection as _connection
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler

from mp_core.children import inheritance
from mp_core.messages import buffers  # noqa: F401
from mp_core.sharing import by_value, forks
from mp_core.sharing.backend import plain_data, sent
from mp_core.system import fan_out, machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The reducer of each class of connections; Windows also has a class for pipes.
_reducers: dict[type, Any] = {
    getattr(_connection, kind): vars(_connection)[reducer]
    for kind, reducer in (("Connection", "reduce_connection"), ("PipeConnection", "reduce_pipe_connection"))
    if hasattr(_connection, kind)
}


def install() -> None:
    """Extend the connections of multiprocessing; calling it again does nothing."""
    if hasattr(Connection, "_mp_shares"):
        return
    for kind in _reducers:
        ForkingPickler.register(kind, _reduce)
    forks.register(before=inheritance.before_fork)
    _extend_send()
    _extend_recv_bytes_into()
    if machine.has_libshm():
        _extend_close()


def add(kind: type, reducer: Callable[[Any], Any]) -> None:
    """Register the *reducer* of another kind of connection, whose pickle also carries the installation."""
    _reducers[kind] = reducer
    ForkingPickler.register(kind, _reduce if hasattr(Connection, "_mp_shares") else reducer)


def _reduce(connection: Any) -> Any:
    return inheritance.with_state(*_reducers[type(connection)](connection))


fan_out.declare(_reduce, lambda connection: "by reference")


def _extend_send() -> None:
    """Let `Connection.send` discard the in-flight references of a message that fails, or send it by value."""
    send: Any = Connection.send

    is_standard = send.__module__ == Connection.__module__

    def undoing_send(self: Any, obj: Any) -> None:
        data = plain_data(obj) if is_standard else None
        if data is not None:  # it has no references to discard
            self._check_closed()
            self._check_writable()
            self._send_bytes(data)
            return
        shares = self._mp_shares
        if shares is None:
            shares = by_value.find_out(self)
        sent(not shares, send, self, obj)

    Connection.send = functools.wraps(send)(undoing_send)  # type: ignore[method-assign]
    Connection._mp_shares = None  # type: ignore[attr-defined]


def _extend_recv_bytes_into() -> None:
    """Let `Connection.recv_bytes_into` fill a buffer of any dimensions, as `send_bytes` sends one."""
    receive: Any = Connection.recv_bytes_into

    def recv_bytes_into(self: Any, buf: Any, offset: int = 0) -> Any:
        with memoryview(buf) as whole:
            if whole.ndim == 1:
                return receive(self, whole, offset)
            # The standard method takes the length of the first axis for that of the buffer.
            with whole.cast("B") if whole.nbytes else memoryview(bytearray()) as flat:
                return receive(self, flat, offset)

    Connection.recv_bytes_into = functools.wraps(receive)(recv_bytes_into)  # type: ignore[method-assign]


def _extend_close() -> None:
    """Let each end of a pipe look, when it is closed, whether a reader is left; see `unread.py`."""
    from mp_core.channels.unread import close_reader, look_before_closing_writer

    close: Any = Connection._close  # type: ignore[attr-defined]

    # The names are bound here, because the last connections are closed while modules are taken down, of which
    # `unread` needs several: then it is too late.
    def closing(self: Any, close: Any = close, finalizing: Any = sys.is_finalizing) -> None:
        if not finalizing():
            if self._writable:
                look_before_closing_writer(self._handle)
            elif close_reader(self._handle):
                return
        close(self)

    Connection._close = closing  # type: ignore[attr-defined]
