"""`Meeting`: node 0's listener, until every other node has come and proved who it is.

Note [Unproven peers]
----------------
Everybody who reaches the port can connect. Until a peer has proved that it has the key, it costs a descriptor and up to
400 bytes, and no thread: one loop serves all. There are at most `MOST_UNPROVEN` of them.

- A peer has `TO_PROVE` seconds. When all places are taken, a new peer gets that of the oldest, if that has had
  `AT_LEAST` seconds, which is enough for a node; before that, new ones wait in the kernel's queue. So 300 silent peers
  delay a node by two seconds. A node whose connection was closed before its proof was read comes again.
- No descriptor is left: there are no more places than those that are taken, and a pause if there are none. A peer has
  gone before it was accepted: the listener goes on.
- A line about them appears once a minute at most, with their number.

A node that has come is silent until node 0 sends it an empty message, when all have come. If its connection ends before
that, it may come again.

The signals of this process are read in the same loop: nobody else would, before there are ranks to send them to.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from typing import NamedTuple

from mp_nodes.job_place import AS_IT_COMES, JobPlace
from mp_nodes.protocol import EngineError
from mp_nodes.transport import handshake
from mp_nodes.transport.handshake import WrongKeyError
from mp_nodes.transport.wire import Wire
from mp_spawn.output.messages import tell
from mp_spawn.ranks.signals import Forwarding, raise_if_ending

MOST_UNPROVEN = 32
# Seconds.
TO_PROVE = 10.0
AT_LEAST = 0.25
PAUSE = 0.1
BEFORE_NOTICE = 2.0
BETWEEN_LINES = 60.0
LOOK = 0.5


class Arrival(NamedTuple):
    """A node that has proved who it is."""

    node_rank: int
    ranks: int
    wire: Wire
    name: str
    address: str


class _Unproven:
    """A peer that has proved nothing yet."""

    def __init__(self, peer: socket.socket, address: str) -> None:
        self.socket = peer
        self.address = address
        self.since = time.monotonic()
        self.first = handshake.begin()
        self.came = b""


class Meeting:
    """
    Node 0's listener.

    Parameters
    ----------
    place : JobPlace
        Of node 0.
    signals : Forwarding, optional
        The signals to this process, of which one that ends it ends the wait with `Ended`.
    server : socket.socket, optional
        The socket that listens, if `claim` has made it.
    """

    def __init__(self, place: JobPlace, signals: Forwarding | None = None, server: socket.socket | None = None) -> None:
        self._place = place
        self._signals = signals
        self._server = server
        # When a node came or went last.
        self._changed = time.monotonic()
        self._found: dict[int, Arrival] = {}
        # The oldest first.
        self._unproven: list[_Unproven] = []
        self._most = MOST_UNPROVEN
        self._turned_away = 0
        self._tell_at = self._listen_at = 0.0
        self._listening = False

    def all(self) -> list[Arrival]:
        """
        Wait for all nodes, or for enough of them; return them by number.

        Raise `EngineError` if the port is taken or nodes have not come in time, and `Ended`.
        """
        server = self._server or _listener(self._place)
        with server, selectors.DefaultSelector() as self._selector:
            try:
                server.setblocking(False)
                self._meet(server)
            except BaseException:
                for arrival in self._found.values():
                    arrival.wire.close()
                raise
            finally:
                for peer in self._unproven:
                    peer.socket.close()
        found = [self._found[node_rank] for node_rank in sorted(self._found)]
        for arrival in found:
            with contextlib.suppress(OSError):  # its reader will report it
                arrival.wire.send(b"")
        return found

    def _meet(self, server: socket.socket) -> None:
        if self._signals is not None and self._signals.fd >= 0:
            self._selector.register(self._signals.fd, selectors.EVENT_READ, self._signals)
        started = time.monotonic()
        noticed = False
        while missing := sorted({*range(1, self._place.nnodes)} - self._found.keys()):
            now = time.monotonic()
            waited = now - started
            where = f"{self._place.host}:{self._place.port}"
            limit, last_call = self._place.conf.join_timeout, self._place.conf.last_call_timeout
            if len(self._found) + 1 >= self._place.least and (now - self._changed > last_call or waited > limit):
                return
            if waited > limit:
                raise EngineError(f"nodes {missing} of {self._place.nnodes} have not come to {where} in {waited:.0f} s")
            if waited > BEFORE_NOTICE and not noticed:
                noticed = True
                tell(f"mp-spawn: waiting at {where} for nodes {missing}")
            while self._unproven and now - self._unproven[0].since > TO_PROVE:
                self._turn_away(self._unproven[0], f"no proof in {TO_PROVE:.0f} s")
            self._listen(server, now)
            pause = self._listen_at - now
            for key, _ in self._selector.select(min(LOOK, pause) if pause > 0 else LOOK):
                if key.fileobj is server:
                    self._accept(server)
                elif isinstance(key.data, _Unproven):
                    self._hear(key.data)
                elif isinstance(key.data, Arrival):
                    self._on_hangup(key.data)
                else:
                    key.data.handle(raise_if_ending)

    def _listen(self, server: socket.socket, now: float) -> None:
        """Listen, or do not for a while."""
        if self._listening and now < self._listen_at:
            self._selector.unregister(server)
        elif not self._listening and now >= self._listen_at:
            self._selector.register(server, selectors.EVENT_READ)
        self._listening = now >= self._listen_at

    def _accept(self, server: socket.socket) -> None:
        if self._unproven and len(self._unproven) >= self._most:
            oldest = self._unproven[0]
            self._listen_at = oldest.since + AT_LEAST
            if time.monotonic() < self._listen_at:
                return
            self._turn_away(oldest, "no proof before others came")
        try:
            end, address = server.accept()
        except (BlockingIOError, ConnectionError):
            return  # it has gone
        except OSError:
            # Most likely EMFILE: there are no more places than this.
            self._most = len(self._unproven)
            self._listen_at = 0.0 if self._unproven else time.monotonic() + PAUSE
            return
        peer = _Unproven(end, address[0])
        self._unproven.append(peer)
        self._most = min(MOST_UNPROVEN, self._most + 1)  # the descriptors may be back
        try:
            end.setblocking(False)
            self._selector.register(end, selectors.EVENT_READ, peer)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.send(peer.first)
        except OSError as error:
            self._turn_away(peer, type(error).__name__)

    def _hear(self, peer: _Unproven) -> None:
        if peer.socket.fileno() < 0:
            return  # it was turned away in this round
        try:
            came = peer.socket.recv(handshake.MOST + 1 - len(peer.came))
            peer.came += came
            if not came:
                raise WrongKeyError("it has gone")
            introduction = handshake.introduction_in(peer.came)
            if introduction is not None:
                self._let_in(peer, introduction)
        except BlockingIOError:
            return
        except WrongKeyError as error:
            with contextlib.suppress(OSError):
                peer.socket.send(handshake.REFUSED)
            self._turn_away(peer, str(error))
        except OSError as error:
            self._turn_away(peer, type(error).__name__)

    def _let_in(self, peer: _Unproven, introduction: handshake.Introduction) -> None:
        """Make a node of a peer whose proof is right."""
        answer, seals = handshake.accept(self._place.key, peer.first, introduction)
        peer.socket.send(answer)
        peer.socket.setblocking(True)
        self._unproven.remove(peer)
        number = introduction.node_rank
        if number == AS_IT_COMES:
            number = next(free for free in range(1, self._place.nnodes + 1) if free not in self._found)
        arrival = Arrival(number, introduction.ranks, Wire(peer.socket, seals), introduction.name, peer.address)
        if not 0 < arrival.node_rank < self._place.nnodes or arrival.node_rank in self._found:
            tell(
                f"mp-spawn: a second node {number} at {arrival.address} is turned away"
                if number < self._place.nnodes
                else f"mp-spawn: one node more than {self._place.nnodes}, at {arrival.address}, is turned away"
            )
            self._selector.unregister(peer.socket)
            arrival.wire.close()
            return
        self._selector.modify(peer.socket, selectors.EVENT_READ, arrival)
        self._found[arrival.node_rank] = arrival
        self._changed = time.monotonic()

    def _on_hangup(self, arrival: Arrival) -> None:
        """Forget a node that has come: until all have come it is silent, so its connection has ended."""
        self._selector.unregister(arrival.wire)
        del self._found[arrival.node_rank]
        self._changed = time.monotonic()
        arrival.wire.close()
        tell(f"mp-spawn: node {arrival.node_rank} at {arrival.address} has gone again; waiting for it")

    def _turn_away(self, peer: _Unproven, reason: str) -> None:
        self._unproven.remove(peer)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.socket)
        peer.socket.close()
        self._turned_away += 1
        now = time.monotonic()
        if now >= self._tell_at:
            self._tell_at = now + BETWEEN_LINES
            count, self._turned_away = self._turned_away, 0
            peers = "a peer" if count == 1 else f"{count} peers"
            tell(f"mp-spawn: {peers} without the key turned away, the last one at {peer.address} ({reason})")


def claim(place: JobPlace) -> socket.socket | None:
    """Listen where the nodes meet; return None if that is another machine, or another node listens there already."""
    try:
        return _listener(place)
    except EngineError as error:
        if getattr(error.__cause__, "errno", None) in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            return None
        raise


def _listener(place: JobPlace) -> socket.socket:
    host, port = place.host, place.port
    try:
        return socket.create_server((host, port), family=_family(host, port))
    except OSError as error:
        raise EngineError(
            f"node 0 cannot listen on {host}:{port}: {error.strerror}; give --master-addr and --master-port"
        ) from error


def _family(host: str, port: int) -> socket.AddressFamily:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
