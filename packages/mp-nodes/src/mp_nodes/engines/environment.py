"""The engine `Environment`: one mp-spawn on each node, started by Slurm, MPI or by hand; they meet at node 0.

Note [Who is let in]
--------------------
Node 0 listens on one address, until all nodes have come (meeting.py). Each node proves that it has the key, and node 0
proves it to the node (handshake.py). After that each record of the connection carries a proof of its own (wire.py): a
program that has bound the port first can relay the handshake and write what it wants. Nothing is unpickled before it
has been proved. The connections are not encrypted: use a network on which nobody listens, as for MPI and torchrun.
"""

from __future__ import annotations

import itertools
import queue
import signal
import socket
import time
from typing import Any

from mp_nodes.engines import local
from mp_nodes.job_place import AS_IT_COMES, JobPlace
from mp_nodes.protocol import Agents, EngineError, Node, spread
from mp_nodes.transport import handshake
from mp_nodes.transport.connection import ConnectedAgents, serve
from mp_nodes.transport.handshake import WrongKeyError
from mp_nodes.transport.meeting import Arrival, Meeting
from mp_nodes.transport.wire import TamperedError, Wire
from mp_spawn.ranks.signals import FORWARDED, Forwarding

# Seconds for node 0 to prove who it is.
TO_PROVE = 15.0
# For that, however late it is.
AT_LEAST = 1.0
# A node is told by node 0 when all have come, and waits for it a little longer than node 0 waits for them.
LONGER = 15.0
AGAIN = 0.2
# So often in a row node 0 may be too busy with peers without the key.
MOST_SILENT = 3
WHAT_TO_CHECK = (
    "All nodes need the same key, in MP_SPAWN_KEY or --key-file, and the same --rdzv-id; and no other program may "
    "listen at node 0's port (--master-port)"
)


class Environment:
    """
    The nodes of a job that another launcher has started, seen from node 0.

    Parameters
    ----------
    place : JobPlace
        Of node 0.
    ranks : int, optional
        The number of ranks on this node, if every node tells its own.
    signals : Forwarding, optional
        The signals to this process, for which somebody must look during the wait for the nodes.
    server : socket.socket, optional
        The socket that listens, if there is one already.
    """

    def __init__(
        self,
        place: JobPlace,
        ranks: int = 0,
        signals: Forwarding | None = None,
        server: socket.socket | None = None,
    ) -> None:
        self._place = place
        self._ranks = ranks
        self._signals = signals
        self._server = server

    def place(self, nprocs: int) -> Agents:
        """Wait for the other nodes, and start an agent on this one."""
        if not self._ranks and nprocs < self._place.nnodes:
            raise EngineError(
                f"asked for {nprocs} ranks on {self._place.nnodes} nodes; give -n one rank a node or more"
            )
        found = Meeting(self._place, self._signals, self._server).all()
        ranks = self._spread(nprocs, found)
        own, process = local.start_agent()
        hosts = [socket.gethostname(), *(arrival.name for arrival in found)]
        names = [host if hosts.count(host) == 1 else f"{host}-{index}" for index, host in enumerate(hosts)]
        addresses = [self._place.host, *(arrival.address for arrival in found)]
        nodes = [Node(*each) for each in zip(names, addresses, ranks, strict=True)]
        return _JobAgents([own, *(arrival.wire for arrival in found)], nodes, process)

    def _spread(self, nprocs: int, found: list[Arrival]) -> list[range]:
        """Return the ranks of each node."""
        if not self._ranks:
            return spread(nprocs, 1 + len(found))
        if without := [arrival for arrival in found if not arrival.ranks]:
            for arrival in found:
                arrival.wire.close()
            raise EngineError(
                f"the node at {without[0].address} has -n, which counts the ranks of all nodes, and node 0 counts by "
                "node; give every node -n, or every node --nproc-per-node"
            )
        ends = list(itertools.accumulate((self._ranks, *(arrival.ranks for arrival in found)), initial=0))
        return [range(*pair) for pair in itertools.pairwise(ends)]


class _JobAgents(ConnectedAgents):
    """The agents at the other end of the connections, the first of which is a child of this process."""

    def __init__(self, wires: list[Wire], nodes: list[Node], process: Any) -> None:
        super().__init__(wires, nodes)
        self._processes = [process]

    def replace(self, node: int) -> None:
        """Start another agent on this node: the launcher that has started the nodes has given no others."""
        wire, process = local.start_agent()
        self._processes.append(process)
        name = f"{self.nodes[0].name}-again-{len(self._processes) - 1}"
        self._put_in_place(node, wire, Node(name, self.nodes[0].address, self.nodes[node].ranks))

    def close(self, code: int) -> None:
        """Close the connections and reap the agent of this node."""
        super().close(code)
        local.end(self._processes)


def join_job(place: JobPlace, ranks: int = 0) -> int:
    """
    Run the ranks that node 0 asks for on this other node, and return the exit code of the job.

    *ranks* is their number, if every node tells its own.
    """
    wire = _come(place, ranks, time.monotonic() + place.conf.join_timeout)
    # srun and mpirun signal every node; node 0 hears it from each and forwards it once. A handler, and not SIG_IGN,
    # which the ranks would inherit.
    came: queue.SimpleQueue[int] = queue.SimpleQueue()
    for signum in sorted({*FORWARDED} - {signal.SIGCONT, signal.SIGTSTP}):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, lambda signum, frame: came.put(signum))
    return serve(wire, came)


def _come(place: JobPlace, ranks: int, deadline: float) -> Wire:
    """Connect to node 0, which may start later than this node; return when all nodes have come."""
    where = f"node 0 at {place.host}:{place.port}"
    number = AS_IT_COMES if place.node_rank is None else place.node_rank
    silent = 0
    while True:
        try:
            left = max(AT_LEAST, deadline - time.monotonic())
            peer = socket.create_connection((place.host, place.port), timeout=min(TO_PROVE, left))
        except OSError as error:
            if time.monotonic() > deadline:
                raise EngineError(f"{where} does not answer: {error}") from error
            time.sleep(AGAIN)
            continue
        try:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire = Wire(peer, handshake.enter(peer, place.key, number, ranks, socket.gethostname()))
            break
        except WrongKeyError as error:
            peer.close()
            raise EngineError(f"{where} is not believed: {error}. {WHAT_TO_CHECK}") from error
        except TimeoutError as error:
            peer.close()
            silent += 1
            if silent == MOST_SILENT or time.monotonic() > deadline:
                raise EngineError(f"{where} is not believed: it does not say who it is. {WHAT_TO_CHECK}") from error
        except (EOFError, OSError) as error:
            # It had too many others to serve, see Note [Unproven peers].
            peer.close()
            if time.monotonic() > deadline:
                raise EngineError(f"{where} closes each connection. {WHAT_TO_CHECK}") from error
            time.sleep(AGAIN)
    try:
        wire.wait(place.conf.join_timeout + LONGER)
        wire.receive()
        wire.wait(None)
    except TamperedError as error:
        wire.close()
        raise EngineError(f"{where} is not believed: {error}") from error
    except (EOFError, OSError) as error:
        wire.close()
        again = "" if number == AS_IT_COMES else f" Does another node have --node-rank {number}?"
        raise EngineError(f"{where} has ended the job before its start; it says why.{again}") from error
    return wire
