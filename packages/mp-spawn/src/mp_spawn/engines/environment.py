"""The engine `Environment`: one mp-spawn on each node, started by Slurm, MPI or by hand; they meet at node 0.

Note [Who is let in]
--------------------
Node 0 listens on one address, until all nodes have come. Each connection proves that it knows the key, and node 0
proves it to the other end (multiprocessing's challenge, which sends an HMAC and never the key), before one byte from it
is unpickled. Until then a peer can send 256 bytes and has 10 seconds. The connections are not encrypted: use a network
on which nobody listens, as for MPI and torchrun.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
from multiprocessing import AuthenticationError, connection
from typing import Any

from mp_spawn.engines import local
from mp_spawn.engines.connection import ConnectedAgents, serve
from mp_spawn.engines.job_place import JobPlace
from mp_spawn.engines.protocol import Agents, EngineError, Node, spread

__all__ = ["Environment", "join_job"]

TO_AUTHENTICATE = 10
# Seconds between the first node and the last one.
TO_MEET = 300.0
BEFORE_NOTICE = 2.0


class Environment:
    """
    The nodes of a job that another launcher has started, seen from node 0.

    Parameters
    ----------
    place : JobPlace
        Of node 0.
    wait : float
        Seconds to wait for the other nodes.
    """

    def __init__(self, place: JobPlace, wait: float = TO_MEET) -> None:
        self._place = place
        self._wait = wait

    def place(self, nprocs: int) -> Agents:
        """Wait for the other nodes, and start an agent on this one."""
        if nprocs < self._place.nnodes:
            raise EngineError(
                f"asked for {nprocs} ranks on {self._place.nnodes} nodes; give -n one rank a node or more"
            )
        found = self._meet()
        own, process = local.start_agent()
        hosts = [socket.gethostname(), *(host for _, host, _ in found)]
        names = [host if hosts.count(host) == 1 else f"{host}-{index}" for index, host in enumerate(hosts)]
        addresses = [self._place.host, *(address for _, _, address in found)]
        nodes = [Node(*each) for each in zip(names, addresses, spread(nprocs, len(names)), strict=True)]
        return _JobAgents([own, *(each for each, _, _ in found)], nodes, process)

    def _meet(self) -> list[tuple[Any, str, str]]:
        """
        Return the connections to the other nodes by node rank, with the name and address of each host.
        """
        nnodes, _, host, port, key = self._place
        try:
            server = socket.create_server((host, port), family=_family(host, port))
        except OSError as error:
            raise EngineError(
                f"node 0 cannot listen on {host}:{port}: {error.strerror}; give --master-addr and --master-port"
            ) from error
        came: queue.SimpleQueue[tuple[int, Any, str, str]] = queue.SimpleQueue()
        found: dict[int, tuple[Any, str, str]] = {}
        started = time.monotonic()
        noticed = False
        with server:
            threading.Thread(target=_accept, args=(server, key, came), name="mp-spawn listener", daemon=True).start()
            try:
                while len(found) < nnodes - 1:
                    with contextlib.suppress(queue.Empty):
                        node_rank, peer, name, address = came.get(timeout=0.5)
                        if not 0 < node_rank < nnodes or node_rank in found:
                            print(f"mp-spawn: a second node {node_rank} at {address} is turned away", file=sys.stderr)
                            peer.close()
                        else:
                            found[node_rank] = peer, name, address
                    waited = time.monotonic() - started
                    missing = sorted({*range(1, nnodes)} - found.keys())
                    if missing and waited > self._wait:
                        raise EngineError(
                            f"nodes {missing} of {nnodes} have not come to {host}:{port} in {waited:.0f} s"
                        )
                    if missing and waited > BEFORE_NOTICE and not noticed:
                        noticed = True
                        print(f"mp-spawn: waiting at {host}:{port} for nodes {missing}", file=sys.stderr)
            except BaseException:
                for peer, _, _ in found.values():
                    peer.close()
                raise
            finally:
                server.shutdown(socket.SHUT_RDWR)  # wakes the listener
        return [found[node_rank] for node_rank in range(1, nnodes)]


class _JobAgents(ConnectedAgents):
    """The agents at the other end of the connections, the first of which is a child of this process."""

    def __init__(self, connections: list[Any], nodes: list[Node], process: Any) -> None:
        super().__init__(connections, nodes)
        self._processes = [process]

    def replace(self, node: int) -> None:
        """Start another agent on this node: the launcher that has started the nodes has given no others."""
        connection, process = local.start_agent()
        self._processes.append(process)
        name = f"{self.nodes[0].name}-again-{len(self._processes) - 1}"
        self._put_in_place(node, connection, Node(name, self.nodes[0].address, self.nodes[node].ranks))

    def close(self, code: int) -> None:
        """Close the connections and reap the agent of this node."""
        super().close(code)
        local.reap(self._processes)


def _family(host: str, port: int) -> socket.AddressFamily:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]


def _accept(server: socket.socket, key: bytes, came: Any) -> None:
    """
    Authenticate every peer in a thread of its own: one that is silent delays none.
    """
    while True:
        try:
            peer, address = server.accept()
        except OSError:
            return
        threading.Thread(target=_let_in, args=(peer, address[0], key, came), name="mp-spawn peer", daemon=True).start()


def _let_in(peer: socket.socket, address: str, key: bytes, came: Any) -> None:
    opened = _connection(peer)
    try:
        connection.deliver_challenge(opened, key)
        connection.answer_challenge(opened, key)
        node_rank, _, name = opened.recv_bytes(1000).decode().partition(" ")
        _set_timeout(opened, 0)
        came.put((int(node_rank), opened, name, address))
    except (AuthenticationError, OSError, EOFError, ValueError) as error:
        print(f"mp-spawn: a peer at {address} is turned away ({type(error).__name__})", file=sys.stderr)
        opened.close()


def _connection(peer: socket.socket) -> Any:
    peer.setblocking(True)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened = connection.Connection(peer.detach())
    _set_timeout(opened, TO_AUTHENTICATE)
    return opened


def _set_timeout(opened: Any, seconds: int) -> None:
    """
    Limit each read and write of a connection, which has no timeout of its own; 0 for no limit.
    """
    with socket.socket(fileno=os.dup(opened.fileno())) as duplicate:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            duplicate.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))


def join_job(place: JobPlace, wait: float = TO_MEET) -> int:
    """
    Be a node other than node 0: run the ranks that node 0 asks for, and return its exit code.
    """
    opened = _come(place, time.monotonic() + wait)
    # srun and mpirun signal every node; node 0 hears it from each and forwards it once. A handler, and not SIG_IGN,
    # which the ranks would inherit.
    came: queue.SimpleQueue[int] = queue.SimpleQueue()
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
        signum = getattr(signal, name)
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, lambda signum, frame: came.put(signum))
    return serve(opened, came)


def _come(place: JobPlace, deadline: float) -> Any:
    """
    Connect to node 0, which may start later than this node.
    """
    while True:
        try:
            peer = socket.create_connection((place.host, place.port), timeout=TO_AUTHENTICATE)
            opened = _connection(peer)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise EngineError(f"node 0 does not answer at {place.host}:{place.port}: {error}") from error
            time.sleep(0.2)
    try:
        connection.answer_challenge(opened, place.key)
        connection.deliver_challenge(opened, place.key)
        opened.send_bytes(f"{place.node_rank} {socket.gethostname()}".encode())
    except (AuthenticationError, OSError, EOFError) as error:
        opened.close()
        raise EngineError(
            f"node 0 at {place.host}:{place.port} has another key, or is no mp-spawn ({type(error).__name__})"
        ) from error
    _set_timeout(opened, 0)
    return opened
