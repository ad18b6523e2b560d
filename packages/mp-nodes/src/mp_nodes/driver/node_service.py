"""`NodeService`: one rank on each node that exchanges messages with the driver. A node that is lost ends no other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from mp_nodes import protocol
from mp_nodes.agent.mailbox import Mailbox
from mp_nodes.driver.engine_context import EngineContext
from mp_nodes.driver.node_state import NodeState
from mp_nodes.driver.plan import Plan
from mp_nodes.engines.by_name import engine_for
from mp_nodes.protocol import Agents, Node

#: The index of a node, and: "started", None · "mail", the bytes · "lost", the reason. At the end: -1, "over", an
#: exception or None.
Event = tuple[int, str, Any]


class NodeService(EngineContext):
    """
    Run ``fn(rank, connection, *args)`` once on each of the nodes that have room for *size* processes together.

    *hear* is called with each `Event` by the thread of the heartbeat, so it must return at once.

    Attributes
    ----------
    sizes : list of int
        The number of processes that each node has room for.
    """

    def __init__(
        self, engine: Any, fn: Callable[..., Any], args: tuple[Any, ...], size: int, hear: Callable[[Event], None]
    ) -> None:
        self._hear = hear
        plan = Plan.of(engine_for(engine), fn, (Mailbox(), *args), size)
        super().__init__(dataclasses.replace(plan, divides_devices=False))

    def send(self, node: int, data: bytes) -> None:
        """Send a message to the rank on a node, in order; for one that is lost it does nothing."""
        if not self._states[node].ended:
            self._agents.send(node, protocol.Mail(node, data))

    def _lay_out(self, agents: Agents) -> list[Node]:
        self.sizes = [len(node.ranks) for node in agents.nodes]
        self._plan = dataclasses.replace(self._plan, nprocs=len(agents.nodes), groups=len(agents.nodes))
        return [node._replace(ranks=range(index, index + 1)) for index, node in enumerate(agents.nodes)]

    def _take(self, index: int, state: NodeState, message: Any) -> None:
        if state.ended:
            return  # after "lost" comes nothing
        super()._take(index, state, message)
        match message:
            case protocol.Started():
                self._hear((index, "started", None))
            case protocol.Mail(_, data):
                self._hear((index, "mail", data))
            case protocol.Failing():
                self._agents.send(index, protocol.End(0.0, True))
            case protocol.Refused(reason):
                self._refusal = None
                self._hear((index, "lost", f"it cannot start its rank: {reason}"))

    def _judge(self, state: NodeState, ended: protocol.Ended) -> None:
        state.ended = True
        reasons = [failure.describe() for failure, _ in ended.failures]
        self._hear((self._states.index(state), "lost", ", ".join(reasons) or "its rank has ended"))

    def _node_lost(self, state: NodeState, reason: str) -> None:
        state.ended = True
        index = self._states.index(state)
        self._agents.drop(index)
        self._hear((index, "lost", reason))

    def _failed(self) -> None: ...

    def _conclude(self) -> None:
        self._hear((-1, "over", self._refusal))
