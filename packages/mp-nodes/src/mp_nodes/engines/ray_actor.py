"""The agent as an actor of Ray. Only this module imports ray at its top; the workers of a Ray cluster import it."""

from __future__ import annotations

import os
import time
from typing import Any

import ray

from mp_nodes.agent.agent import Agent
from mp_nodes.protocol import BEAT, Printed, Start

#: Where each buffer of an object belongs, (part, offset), and the object.
Piece = tuple[list[tuple[int, int]], Any]
# Objects that are on their way while one is copied, see Note [Pieces] in ray_agents.py.
AHEAD = 2
# Seconds.
TOGETHER = 0.002


class RayAgent:
    """
    Hands the messages of the driver to an agent, and those of the agent to the driver, which asks for them.

    Each way has a thread of its own (a concurrency group), in which Ray keeps the order of the calls.
    """

    def __init__(self, address: str, threads: int) -> None:
        # Ray sets it to the processors of the actor, which are those of all its ranks.
        os.environ["OMP_NUM_THREADS"] = str(threads)
        # Ray takes many seconds to end the workers of a raylet that was killed.
        self._agent = Agent(address, guardian="its raylet")

    @ray.method(concurrency_group="poll")  # type: ignore[untyped-decorator, unused-ignore]
    def poll(self) -> list[Any]:
        """Return the messages for the driver; wait for the first one, and briefly for output that follows it."""
        self._agent.hear()
        messages = self._agent.outbox.take(BEAT)
        if messages and isinstance(messages[0], Printed):
            # A call costs the driver as long.
            time.sleep(TOGETHER)
            messages += self._agent.outbox.take(0.0)
        return messages

    @ray.method(concurrency_group="send")  # type: ignore[untyped-decorator, unused-ignore]
    def send(self, message: Any) -> None:
        self._agent.receive(message)

    @ray.method(concurrency_group="start")  # type: ignore[untyped-decorator, unused-ignore]
    def start(self, start: Start, pieces: list[Piece]) -> None:
        """Fetch the pieces of the parts, copy each into its place, and start the ranks."""
        try:
            _ask_for(pieces[:AHEAD])
            payload = self._agent.prepare(start)
            for number, (places, piece) in enumerate(pieces, AHEAD):
                _ask_for(pieces[number : number + 1])
                for (part, offset), data in zip(places, ray.get(piece), strict=True):
                    payload.write(part, offset, memoryview(data).cast("B"))
            self._agent.begin(start, payload)
        except Exception as error:
            self._agent.refuse(error)


def _ask_for(pieces: list[Piece]) -> None:
    """Have Ray fetch objects to this node, without waiting."""
    if pieces:
        ray.wait([piece for _, piece in pieces], num_returns=len(pieces), timeout=0, fetch_local=True)
