"""The protocol of an engine: what places agents on nodes and carries messages between them and the driver.

Note [Driver, agent, engine]
----------------------------
    driver    the program that calls run() or start_processes(); driver.py
    agent     one on each node: runs the launcher for the node's ranks, and tells the driver how they end; agent.py
    engine    places the agents and carries bytes: a file each, local.py, ray.py, environment.py

The agent knows nothing of the engine, the engine nothing of ranks. All decisions are the driver's: an agent whose rank
has failed says so (`Failing`) and waits for `End`, so that all nodes are given the same grace period.

Note [Heartbeat]
----------------
Driver and agent send each other a message every `BEAT` seconds. After a silence of `NODE_LOST_AFTER` seconds the driver
reports the node's ranks as lost, and ends the others. After one of `DRIVER_LOST_AFTER` seconds the agent kills its
ranks. A driver or an agent that was itself stopped for so long first listens again, since messages may be waiting.

The limits follow from the promise that 5 seconds after the last sign of life the error has been raised, and no rank of
a dead driver runs. The driver sees a silent node 3.1 s after its last message at the latest, and has 1.9 s to end the
ranks of the other nodes by SIGTERM: 0.2 to 0.6 s, measured with 27 runnable processes for each processor. If these take
longer, the log has named the node and its ranks at once. The agent sends no SIGTERM, so it can wait longer for the
driver, whose code may hold the interpreter lock.

In the other direction, a process may be stopped, or get no processor, for the limit less `BEAT` and the time of a
message: more than 2 seconds. The longest silence of a running agent was 0.7 s, with 40 ranks that compute on 2
processors and 16 runnable processes for each.

Note [Clocks]
-------------
Failures are ordered by time, and each node has its own `time.monotonic`. The driver sends its time in each `Ping`, and
the agent adds its own in `Pong`; the pair with the shortest round trip gives the difference of the clocks, to within
half of that round trip.
"""

from __future__ import annotations

import itertools
import platform
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from mp_spawn.errors import Failure

BEAT = 0.5
NODE_LOST_AFTER = 3.0
DRIVER_LOST_AFTER = 3.5
# Until the ranks of a node have started: modules are imported and memory is reserved, on a busy machine for seconds.
LOST_WHILE_STARTING = 15.0


class EngineError(RuntimeError):
    """
    The engine cannot start the ranks: the cluster is too small, is missing, or its nodes differ.

    Examples
    --------
    >>> issubclass(mp.engines.EngineError, RuntimeError)
    True
    """


class Node(NamedTuple):
    """
    A node of a job.

    Parameters
    ----------
    name, address : str
        Its name, different from that of the other nodes, and its address, if it has one.
    ranks : range
        The ranks that run there.

    Examples
    --------
    >>> str(mp.engines.Node("a", "10.0.0.1", range(0, 2)))
    'a at 10.0.0.1'
    """

    name: str
    address: str
    ranks: range

    def __str__(self) -> str:
        return f"{self.name} at {self.address}" if self.address else self.name


# ---- from the driver to an agent -------------------------------------------------------------------------------------


class Start(NamedTuple):
    """The job of one node. The bytes of its *buffers* and *blocks* follow, see node_payload.py."""

    node: Node
    shipment: Any
    #: The environment of each of the node's ranks.
    env: Sequence[Mapping[str, str]]
    #: The driver's main module, folder and sys.path.
    main: Mapping[str, Any]
    wants_result: bool
    daemon: bool
    threads_per_rank: int | None
    spread: bool
    #: How often the ranks have been started before, and may be again by the agent, one by one.
    restarts: int
    max_restarts: int
    faulthandler: bool
    own_group: bool
    #: Whether each rank is a program of the command.
    is_program: bool
    #: Seconds from SIGTERM to SIGKILL.
    time_to_end: float
    #: How many of the devices in the agent's CUDA_VISIBLE_DEVICES each rank gets; 0 leaves the variable.
    gpus_per_rank: float
    #: How many events of a timeline each process keeps; 0 without a timeline.
    events: int
    #: That of the ranks' random numbers.
    seed: Any = None


class Ping(NamedTuple):
    """A heartbeat of the driver, with its time."""

    at: float


class Signal(NamedTuple):
    """Send a signal to all ranks."""

    signum: int


class End(NamedTuple):
    """
    End the ranks. The ends of *casualties* of another failure are no failures of their own. Ranks that *were_told* by a
    signal are sent no SIGTERM.
    """

    grace_period: float
    casualties: bool
    were_told: bool = False


class Show(NamedTuple):
    """Answer with `Shown`."""


class Ack(NamedTuple):
    """So many bytes of output have been written."""

    nbytes: int


class Mail(NamedTuple):
    """A message for a rank with a `Mailbox`, or from it."""

    rank: int
    data: bytes


class Leave(NamedTuple):
    """The job is over: the agent may end."""

    code: int


# ---- from an agent to the driver -------------------------------------------------------------------------------------


class Hello(NamedTuple):
    """The first message: a name of the machine, an address, a free port, and `versions`."""

    host: str
    address: str
    port: int
    versions: Mapping[str, str]


class Beat(NamedTuple):
    """A heartbeat of the agent."""


class Pong(NamedTuple):
    """The answer to a `Ping`: the driver's time and the agent's."""

    sent: float
    at: float


class Started(NamedTuple):
    """The ranks run; their pids."""

    pids: list[int]


class Restarted(NamedTuple):
    """A rank has failed and is started again."""

    failure: Failure
    pid: int


class Printed(NamedTuple):
    """A piece of output of a rank; no bytes for its end."""

    rank: int
    stream: str
    data: bytes


class Shown(NamedTuple):
    """The Python stacks of the node's ranks that still run, by rank; no text where they cannot be asked for."""

    stacks: dict[int, str]


class Recorded(NamedTuple):
    """The events of one process of the node, for the driver's timeline: a file's name and its compressed contents."""

    name: str
    data: bytes


class Failing(NamedTuple):
    """A rank has failed for good; the agent waits for `End`."""


class Signalled(NamedTuple):
    """The agent's process has been sent a signal that is meant for the job."""

    signum: int


class Row(NamedTuple):
    """How a rank ended, for tables."""

    rank: int
    pid: int
    exit_code: int | None
    seconds: float


class Ended(NamedTuple):
    """All ranks of the node have ended."""

    #: Each failure, and the pickled exception; the exceptions themselves are left out.
    failures: list[tuple[Failure, bytes]]
    past: list[Failure]
    #: The pickled result of each rank that has returned one.
    results: dict[int, bytes]
    rows: list[Row]


class Refused(NamedTuple):
    """The agent could not start the ranks."""

    reason: str


class Lost(NamedTuple):
    """
    Comes instead of a message when the engine knows that an agent has died.

    To an agent: the driver does not believe its connection.
    """

    reason: str


# ---- the engine ------------------------------------------------------------------------------------------------------


class Agents(Protocol):
    """Agents that have been placed, one on each node, and the way to them."""

    nodes: list[Node]

    def start(self, starts: Mapping[int, Start], parts: list[memoryview]) -> None:
        """Send agents, by index, their jobs, and each the same *parts*. It does not wait for them."""

    def send(self, node: int, message: Any) -> None:
        """Send a message to an agent, in order; it neither waits nor raises if the agent has died."""

    def receive(self, timeout: float) -> list[tuple[int, Any]]:
        """Return the messages that have come, with the index of the node; wait up to *timeout* seconds for one."""

    def drop(self, node: int) -> None:
        """End an agent that is lost, without waiting; there will be no more messages from it."""

    def replace(self, node: int) -> None:
        """
        Begin to place an agent for the ranks of a lost node elsewhere, without waiting.

        It gets the same index. `nodes` has its name when its `Hello` comes. Raise `EngineError` if there is no place.
        """

    def close(self, code: int) -> None:
        """Give the nodes back. Agents that still run are ended. *code* is the exit code of the job."""


class Engine(Protocol):
    """A way to other nodes."""

    def place(self, nprocs: int) -> Agents:
        """Place agents for that many ranks. Without room, raise `EngineError` with what was asked and is there."""


def spread(nprocs: int, nodes: int) -> list[range]:
    """
    Return the ranks of each node, as even as the numbers allow; neighbours are on one node.

    >>> spread(5, 2)
    [range(0, 2), range(2, 5)]
    """
    cuts = [node * nprocs // nodes for node in range(nodes + 1)]
    return [range(a, b) for a, b in itertools.pairwise(cuts)]


def versions() -> dict[str, str]:
    """
    Return the versions that driver and agents must have in common.

    >>> sorted(versions())
    ['Python', 'mp-core', 'mp-spawn']
    """
    from mp_core import __version__

    python = ".".join(platform.python_version_tuple()[:2])
    # The packages have one version number, and mp-spawn requires the same of mp-core.
    return {"Python": python, "mp-core": __version__, "mp-spawn": __version__}
