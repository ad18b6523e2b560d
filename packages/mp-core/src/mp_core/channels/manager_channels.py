"""Calls to a manager's server through channels: `SyncManager`, which `mp_all.Manager()` starts.

Note [A proxy's connection becomes a channel]
---------------------------------------------
A proxy connects to its server's socket, and both prove that they have the key. The first request on the connection asks
for a channel as well, which the server makes:

    proxy     (None, "accept_connection", (name,))  -->  sent as "accept_channel"
    server    ("#RETURN", form of the channel)      <--  with two descriptors; None: the socket stays in use
    proxy     True, once it has opened the channel  -->  False: it has none, the socket stays in use

A byte carries the descriptors, and is sent and read even if they cannot be: the socket's messages follow it.

From then on requests and results pass through the ring. The channel has a socket pair of its own, whose end each side
sees when the other dies. Connections for one request (create, incref, decref) stay as they are, and so does each
connection of a client that never asks: a plain `multiprocessing` program that knows address and key.

A proxy knows by its *serializer* that its server understands. The serializer goes with the proxy to other processes,
and its pickle imports this module, so that a process with nothing else of ours knows it as well.

Requests and results in a channel have a number. A signal handler that raises, or a Ctrl-C, ends a call before its
result has come, and the program may go on: the next call first sends a ping, and drops all that comes before the answer
to it. In multiprocessing it would return that result as its own, and each later call that of the one before. If no
answer comes, since the server is still at it (a `get` of an empty queue), the next call begins with a new connection,
served by another thread; what the old one gets later is lost. Through a socket, which an interrupt may leave in the
middle of a message, it always does. The calls of a handler that returns, in the middle of another call, have a
connection of their own.

- The server dies before it answers: the proxy's `recv` raises `EOFError`, as ever.
- The proxy's process dies with the descriptors in flight: the kernel closes them with the socket.
- The process forks: the child's proxies connect anew, as they do with sockets.
"""

from __future__ import annotations

import _socket
import errno
import os
import socket
import struct
import sys
import threading
import time
from _thread import start_new_thread
from multiprocessing import connection, managers
from multiprocessing.connection import Connection

from mp_core.channels import channel_connections
from mp_core.children.inheritance import with_state
from mp_core.sharing import backend, by_value
from mp_core.system.handler_errors import is_of_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_managers: Any = managers
# Seconds for the result of an interrupted call.
LATE_RESULT = 1.0
# A request that a server answers when it has answered all before.
PING = ()
_ROOM = socket.CMSG_SPACE(2 * struct.calcsize("i"))  # for two descriptors


class _Serializer(str):
    """The name of a pair of listener and client whose connections may become channels."""

    def __reduce__(self) -> tuple[Any, ...]:
        return with_state(_serializer, ())  # a child may have no connection but that of a proxy


def _serializer() -> str:
    return SERIALIZER


class _ClientConnection(Connection):
    """A client's connection to a server, which becomes a channel when a proxy asks for requests to be accepted."""

    _way: tuple[Any, ...] = ()  # to the server
    _accept: tuple[Any, ...] = ()  # the request to accept others, once it was sent
    _channel: Any = None
    _number = 0  # of the last request
    _caller: Any = None  # the frame of the call whose result may be on its way
    _handle: Any
    _inner: Any = None  # the connection of a signal handler's calls in the middle of that

    def send(self, obj: Any) -> None:
        self._ask(obj, sys._getframe(1))

    def _ask(self, obj: Any, caller: Any) -> None:
        if type(obj) is tuple and obj[:2] == (None, "accept_connection") and not self._accept:
            self._accept = obj
            super().send((None, "accept_channel", *obj[2:]))
            return
        if self._caller is not None:
            if _runs(self._caller):
                self._inner = self._inner or self._connect_too()
                self._inner._ask(obj, caller)
                return
            self._catch_up()
        if self._inner is not None:
            self._drop_inner()
        if not self._accept:
            super().send(obj)
            return
        self._caller = caller
        self._number += 1
        try:
            if self._channel is None:
                super().send(obj)
            else:
                self._channel.send((self._number, obj))
        except Exception as error:
            if self._channel is not None and not is_of_handler(error):
                self._caller = None  # it cannot be pickled, or the server has gone
            raise

    def recv(self) -> Any:
        return self._take(sys._getframe(1))

    def _take(self, caller: Any) -> Any:
        if self._inner is not None and caller is not self._caller:
            return self._inner._take(caller)
        if self._caller is None:
            return self._change() if self._accept else super().recv()
        channel, expected = self._channel, self._number
        try:
            number, result = (expected, super().recv()) if channel is None else channel.recv()
            while number not in (expected, None):
                number, result = channel.recv()
        except Exception as error:
            if channel is not None and not is_of_handler(error):
                self._caller = None  # it has come, and cannot be unpickled
            raise
        self._caller = None
        return result

    def _catch_up(self) -> None:
        """Take what an interrupted call has left, all of it; or have another connection."""
        channel, give_up_at = self._channel, time.monotonic() + LATE_RESULT
        if channel is not None:
            self._number += 1
            channel.send((self._number, PING))
        while channel is not None and channel.poll(max(0.0, give_up_at - time.monotonic())):
            try:
                number, _ = channel.recv()
            except (EOFError, OSError):
                raise
            except Exception as error:  # it cannot be unpickled
                if is_of_handler(error):
                    raise
                continue
            if number == self._number:
                self._caller = None
                return
        fresh = self._connect_too()
        self.close()
        self._handle, fresh._handle = fresh._handle, None
        self._channel, fresh._channel = fresh._channel, None
        self._caller = None

    def _connect_too(self) -> _ClientConnection:
        """Return another connection whose requests are accepted."""
        fresh: _ClientConnection = _client(*self._way)
        _managers.dispatch(fresh, *self._accept)
        return fresh

    def _drop_inner(self) -> None:
        inner, self._inner = self._inner, None
        inner.close()

    def _change(self) -> Any:
        kind, form = super().recv()
        if kind != "#RETURN" or form is None:
            return kind, form
        channel = None
        try:
            channel = _receive_channel(self, *form)
        except OSError:
            pass  # no descriptor or no memory
        super().send(channel is not None)
        if channel is not None:
            channel._mp_shares = by_value.find_out(self)
            self._channel = channel
        return kind, None

    def close(self) -> None:
        if self._inner is not None:
            self._drop_inner()
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        super().close()


def _runs(frame: Any) -> bool:
    """Tell whether the code of *frame* has been interrupted by the code that asks, and not left."""
    asking: Any = sys._getframe(1)
    while asking is not None and asking is not frame:
        asking = asking.f_back
    return asking is not None


def _client(address: Any, family: str | None = None, authkey: bytes | None = None) -> Any:
    found: Any = connection.Client(address, family, authkey)
    ours = _ClientConnection(found._handle)
    ours._way = address, family, authkey
    found._handle = None
    return ours


def _receive_channel(conn: Any, side: int, readable: bool, writable: bool) -> Any:
    """Receive the two descriptors of a channel over *conn* and open it; `OSError` if they do not arrive."""
    # The descriptors are closed if a signal handler raises before `open_channel`, which is C, has taken them.
    received: list[Any] = []
    try:
        try:
            carrier = _socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, os.dup(conn.fileno()))
            try:
                received = carrier.recvmsg(1, _ROOM, socket.MSG_CMSG_CLOEXEC)[1]
            finally:
                carrier.close()
        except OSError:
            os.read(conn.fileno(), 1)  # otherwise the byte would be taken for a part of the next message
            raise
        fds = _descriptors(received)
        if len(fds) != 2:
            raise OSError(errno.EMFILE, "the descriptors of a channel to a manager did not arrive")
        received = []
        opened = backend.open_channel(channel_connections.ChannelConnection, *fds, side, readable, writable)
    except BaseException:
        if received:
            # In a thread, where no handler of a second signal interrupts it.
            try:
                start_new_thread(_close, (received,))
            except RuntimeError as refusal:  # there can be no more threads
                if not is_of_handler(refusal):
                    _close(received)
        raise
    return channel_connections.checked(opened)


def _close(received: list[Any]) -> None:
    for fd in _descriptors(received):
        os.close(fd)


def _descriptors(ancillary: list[Any]) -> list[int]:
    return [fd for _, _, data in ancillary for fd in struct.unpack(f"{len(data) // 4}i", data)]


class _Served:
    """A server's end of a channel, whose results have the numbers of their requests."""

    def __init__(self, channel: Any) -> None:
        self._channel, self.close = channel, channel.close
        self._number: int | None = None

    def recv(self) -> Any:
        while True:
            self._number = None  # of a request that cannot be unpickled
            self._number, request = self._channel.recv()
            if request != PING:
                return request
            self.send(None)

    def send(self, result: Any) -> None:
        self._channel.send((self._number, result))


class _Server(_managers.Server):  # type: ignore[misc]
    public = (*_managers.Server.public, "accept_channel")

    def accept_channel(self, conn: Any, name: str) -> None:
        """Serve a thread of a client through a channel, or through its connection where there can be no channel."""
        pair = channel_connections.make_pair(True)
        if pair is None:
            self.accept_connection(conn, name)
            return
        ours, theirs = pair
        with ours:
            with theirs:
                fd, memory, *form = theirs._parts()
                conn.send(("#RETURN", tuple(form)))
                try:
                    with socket.fromfd(conn.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as carrier:
                        socket.send_fds(carrier, [b"\0"], [fd, memory])
                except OSError:
                    os.write(conn.fileno(), b"\0")  # the proxy waits for the byte, and finds no descriptors
            opened = conn.recv()
            if opened:
                ours._mp_shares = by_value.find_out(conn)
            threading.current_thread().name = name
            self.serve_client(_Served(ours) if opened else conn)


class SyncManager(managers.SyncManager):
    """A manager whose proxies call it through channels; see Note [A proxy's connection becomes a channel]."""

    _Server = _Server

    def __init__(self, *, ctx: Any) -> None:
        super().__init__(serializer=SERIALIZER, ctx=ctx)


SERIALIZER = _Serializer("mp_core channels")
_managers.listener_client[SERIALIZER] = (connection.Listener, _client)
