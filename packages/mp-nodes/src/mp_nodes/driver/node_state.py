"""`NodeState`: the driver's knowledge about a node."""

from __future__ import annotations

import time

from mp_nodes import protocol
from mp_nodes.protocol import Node
from mp_spawn.errors import Failure

# Seconds for an agent that has been placed to say hello.
TO_GREET = 60.0
# The exit code of a rank whose real one nobody can know, as multiprocessing has it.
UNKNOWN = 255


class NodeState:
    """The driver's knowledge about a node."""

    def __init__(self, node: Node, restarts: int = 0) -> None:
        self.node = node
        # How often its ranks have been started again, at most.
        self.restarts = restarts
        self.pids = [0] * len(node.ranks)
        self.heard = time.monotonic()
        self.ended = False
        self.is_lost = False
        self.hello: protocol.Hello | None = None
        # Those of its ranks that still run, once it has answered.
        self.stacks: dict[int, str] | None = None
        # The agent's clock less ours, and the round trip with which that was measured.
        self.clock = 0.0
        self._round_trip = float("inf")

    def again(self, restarts: int) -> NodeState:
        """Return the state of the same node, whose agent is about to start its ranks once more."""
        state = NodeState(self.node, restarts)
        state.hello, state.clock, state._round_trip = self.hello, self.clock, self._round_trip
        return state

    def measure(self, pong: protocol.Pong, now: float) -> None:
        """Compare the clocks; see Note [Clocks]."""
        if now - pong.sent < self._round_trip:
            self._round_trip = now - pong.sent
            self.clock = pong.at - (pong.sent + now) / 2

    def take_events(self, name: str, data: bytes) -> None:
        """Take the events of a process into the timeline."""
        from mp_core.timeline.remote import receive

        receive(self.node.name, name, data, self.clock, self._round_trip / 2)

    def check_versions(self) -> None:
        """Raise `EngineError` if the node has other versions than this program."""
        assert self.hello is not None
        ours, theirs = protocol.versions(), self.hello.versions
        other = [f"{name} {theirs.get(name)} and not {ours[name]}" for name in ours if theirs.get(name) != ours[name]]
        if other:
            raise protocol.EngineError(
                f"node {self.node} has {', '.join(other)}; install the same versions on all nodes"
            )

    def lost(self, reason: str) -> list[Failure]:
        """Return the failures of its ranks if it is lost. They count from its last sign of life."""
        text = f"was lost with its node {self.node}: {reason}"
        return [
            Failure(rank, pid, text, exit_code=UNKNOWN, at=self.heard, node=str(self.node), lost=True)
            for rank, pid in zip(self.node.ranks, self.pids, strict=True)
        ]

    def limit(self) -> float:
        """Return after how many seconds of silence it is lost."""
        if self.hello is None:
            return TO_GREET
        return protocol.NODE_LOST_AFTER if self.pids[0] else protocol.LOST_WHILE_STARTING
