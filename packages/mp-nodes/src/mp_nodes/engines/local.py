"""The engine `Local`: agents in processes of this machine. It shows a program on several nodes without having them."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys

from mp_core.timeline.recorder import RUN
from mp_nodes.protocol import Agents, Node, spread
from mp_nodes.transport.connection import ConnectedAgents, serve
from mp_nodes.transport.wire import Wire
from mp_spawn.jobs.job import OF_A_FORK, at_least, check_room
from mp_spawn.ranks.process_handle import kill, reap

TO_END = 5.0
PROGRAM = "import sys; sys.path[:] = {path!r}; from mp_nodes.engines import local; local.main({fd})"


class Local:
    """
    Nodes that are processes of this machine, to try a program for several nodes on one.

    Each node has its own session of shared memory, as on machines of their own.

    Parameters
    ----------
    nodes : int
        The number of nodes.

    Examples
    --------
    >>> mp.run(divmod, args=(2,), nprocs=4, engine=mp.engines.Local(nodes=2))
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """

    def __init__(self, nodes: int = 1) -> None:
        at_least("nodes", nodes, 1, "the number of nodes")
        self.nodes = nodes

    def place(self, nprocs: int) -> Agents:
        """Start an agent for each node."""
        check_room(nprocs, OF_A_FORK)
        names = [f"local-{index}" for index in range(min(self.nodes, nprocs))]
        places = zip(names, spread(nprocs, len(names)), strict=True)
        return start_agents([Node(name, "", ranks) for name, ranks in places])


class _LocalAgents(ConnectedAgents):
    """Agents that are children of this process."""

    def __init__(self, wires: list[Wire], nodes: list[Node], processes: list[subprocess.Popen[bytes]]) -> None:
        super().__init__(wires, nodes)
        #: All that have been started, and the present one of each index.
        self.processes = processes
        self._by_index = list(processes)

    def drop(self, node: int) -> None:
        super().drop(node)
        kill(self._by_index[node])

    def replace(self, node: int) -> None:
        """Start an agent with another name."""
        wire, process = start_agent()
        self.processes.append(process)
        self._by_index[node] = process
        name = f"local-{len(self.processes) - 1}"
        self._put_in_place(node, wire, self.nodes[node]._replace(name=name))

    def close(self, code: int) -> None:
        """Close the connections and reap the agents."""
        super().close(code)
        end(self.processes)


def start_agents(nodes: list[Node]) -> Agents:
    wires: list[Wire] = []
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in nodes:
            wire, process = start_agent()
            wires.append(wire)
            processes.append(process)
    except BaseException:
        for wire in wires:
            wire.close()
        end(processes)
        raise
    return _LocalAgents(wires, nodes, processes)


def start_agent() -> tuple[Wire, subprocess.Popen[bytes]]:
    """Start an agent in a child; return the connection to it and its process."""
    ours, theirs = socket.socketpair()
    with theirs:
        program = PROGRAM.format(path=sys.path, fd=theirs.fileno())
        # The events of a timeline come by messages, as from machines of their own.
        environment = {name: value for name, value in os.environ.items() if name not in ("MP_TIMELINE", RUN)}
        process = subprocess.Popen(
            [sys.executable, "-c", program], pass_fds=[theirs.fileno()], start_new_session=True, env=environment
        )
    return Wire(ours), process


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait for the agents, and kill those that do not end."""
    for process in processes:
        if reap(process, TO_END) is None:
            kill(process)
            reap(process, math.inf)


def main(fd: int) -> None:
    """Run an agent: the program of the child."""
    code = serve(Wire(socket.socket(fileno=fd)))
    sys.exit(code)
