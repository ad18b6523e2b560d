"""
`RayAgents`: the actors of a job on a Ray cluster, as the driver has them.

Note [Pieces]
-------------
The parts of a shipment cross the network in objects of `PIECE` bytes, large parts in several and small ones together,
and an agent has `AHEAD` of them on their way while it copies one:

- If an object has not come after 10 seconds, Ray asks for it again and sends all of it again, though the first transfer
  goes on (Ray's issue 56523). An object of 1 GiB took longer than that on a busy machine and crossed up to three times.
- The transfer of the next pieces and the copy of one take place at the same time.
- A node's copy of a piece in Ray's store is free to be evicted as soon as it has been copied.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mp_nodes.protocol import EngineError, Hello, Leave, Lost, Node, Start
from mp_spawn.output.messages import tell

# Bytes of an object in Ray's store, and buffers in it.
PIECE = 16 << 20
MOST = 1000
# Seconds for a message that is ready to arrive; for the agents to leave.
TO_FETCH = 1.0
TO_LEAVE = 2.0
# Seconds for a cluster to answer while a job ends. Ray's calls wait without end when its control service has died.
TO_ANSWER = 15.0
# How many nodes to try for a replacement actor: Ray does not tell which have room.
CANDIDATES = 8


def named(node: Mapping[str, Any], alive: Sequence[Mapping[str, Any]], ranks: range) -> Node:
    """Return the node as Ray describes it. A cluster on one machine, as for a test, has several of one name."""
    host = node["NodeManagerHostname"]
    alone = [each["NodeManagerHostname"] for each in alive].count(host) == 1
    return Node(host if alone else f"{host}-{node['NodeID'][:6]}", node["NodeManagerAddress"], ranks)


def within(seconds: float, call: Callable[[], object], undone: str) -> bool:
    """Make a call to the cluster that may fail; after *seconds*, say what is left *undone*, and return False."""

    def run() -> None:
        with contextlib.suppress(Exception):
            call()

    thread = threading.Thread(target=run, name="mp-spawn ray", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        tell(f"mp-spawn: the Ray cluster has not answered for {seconds:g} s; {undone}")
    return not thread.is_alive()


class RayAgents:
    """
    The actors, and one call of `poll` under way to each.

    In the place of one that is lost, an actor is asked for on several nodes at once, and the first to start is taken.
    """

    def __init__(self, ray: Any, group: Any, nodes: list[Node], found: list[Mapping[str, Any]], engine: Any) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from mp_nodes.engines.ray_actor import RayAgent

        self.nodes = nodes
        self._ray, self._group, self._engine = ray, group, engine
        groups = {"poll": 1, "send": 1, "start": 1}
        self._class = ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups=groups)(RayAgent)
        # Ray's ids of the nodes, by index; of those that were lost.
        self._ids = [node["NodeID"] for node in found]
        self._lost: set[str] = set()
        self._actors = [
            self._actor(node, PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index))
            for index, node in enumerate(nodes)
        ]
        # The calls that wait for messages: index of the node, and actor.
        self._polls = {actor.poll.remote(): (index, actor) for index, actor in enumerate(self._actors)}
        # The actors in the place of a lost one, with their nodes.
        self._candidates: dict[int, list[tuple[Any, Node, str]]] = {}
        # The pieces (see ray_actor.py) in Ray's store, and the calls of the agents that copy them; kept until all calls
        # have returned.
        self._held: list[tuple[list[Any], list[Any]]] = []

    def _actor(self, node: Node, strategy: Any) -> Any:
        needs = self._engine.needs(len(node.ranks))
        options: dict[str, Any] = {
            "num_cpus": needs.get("CPU", 0),
            "num_gpus": needs.get("GPU", 0),
            "resources": {name: amount for name, amount in needs.items() if name not in ("CPU", "GPU")},
            "scheduling_strategy": strategy,
        }
        if self._engine.runtime_env is not None:
            options["runtime_env"] = dict(self._engine.runtime_env)
        threads = max(1, int(self._engine.resources["CPU"]))
        return self._class.options(**options).remote(node.address, threads)

    def start(self, starts: Mapping[int, Start], parts: list[memoryview]) -> None:
        """Put each part into Ray's store once; the agents fetch them. See Note [Pieces]."""
        pieces = [
            ([place for place, _ in group], self._ray.put([pickle.PickleBuffer(data) for _, data in group]))
            for group in _grouped(parts)
        ]
        calls = [self._actors[index].start.remote(start, pieces) for index, start in starts.items()]
        self._held.append((pieces, calls))

    def send(self, node: int, message: Any) -> None:
        """Call the actor, and wait for nothing."""
        if node not in self._candidates and self._ray.is_initialized():
            self._actors[node].send.remote(message)

    def receive(self, timeout: float) -> list[tuple[int, Any]]:
        """Return what the calls of `poll` have brought, and call again."""
        left = "this program has left the Ray cluster, by ray.shutdown() or by its end"
        if not self._ray.is_initialized():  # a call to Ray would connect it again
            raise EngineError(left)
        try:
            return self._receive(timeout)
        except (Exception, SystemExit) as error:  # Ray raises SystemExit in a thread that waits while it is shut down
            raise EngineError(f"the Ray cluster has failed, or {left}: {error!r}") from error

    def _receive(self, timeout: float) -> list[tuple[int, Any]]:
        if not self._polls:
            time.sleep(timeout)
            return []
        polls = list(self._polls)
        ready, rest = self._ray.wait(polls, num_returns=1, timeout=timeout)
        if ready and rest:
            ready += self._ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        came: list[tuple[int, Any]] = []
        for poll in ready:
            index, actor = self._polls.pop(poll, (-1, None))
            if actor is None:
                continue  # another candidate has been taken meanwhile
            try:
                messages = self._ray.get(poll, timeout=TO_FETCH)
            except self._ray.exceptions.RayError as error:
                if not self._is_out(index, actor):
                    came.append((index, Lost(f"{type(error).__name__}, {_first_line(error)}")))
                continue
            if index in self._candidates and any(isinstance(message, Hello) for message in messages):
                self._choose(index, actor)
            came += [(index, message) for message in messages]
            self._polls[actor.poll.remote()] = index, actor
        for held in list(self._held):  # another thread may append
            if not self._ray.wait(held[1], num_returns=len(held[1]), timeout=0)[1]:
                self._held.remove(held)
        return came

    def replace(self, node: int) -> None:
        """Ask for an actor on each of several nodes that are large enough, except those that were lost."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._lost.add(self._ids[node])
        alive = [each for each in self._ray.nodes() if each["Alive"]]
        needs = self._engine.needs(len(self.nodes[node].ranks))
        large = [
            each
            for each in alive
            if each["NodeID"] not in self._lost
            and all(each["Resources"].get(name, 0) >= amount for name, amount in needs.items())
        ]
        # Those without ranks of this job first.
        large.sort(key=lambda each: each["NodeID"] in self._ids)
        if not large:
            raise EngineError("no other node of the Ray cluster is large enough")
        found = []
        for each in large[:CANDIDATES]:
            place = named(each, alive, self.nodes[node].ranks)
            actor = self._actor(place, NodeAffinitySchedulingStrategy(each["NodeID"], soft=False))
            found.append((actor, place, each["NodeID"]))
            self._polls[actor.poll.remote()] = node, actor
        self._candidates[node] = found

    def _choose(self, index: int, actor: Any) -> None:
        """Take the candidate that has started, and end the others."""
        for each, node, node_id in self._candidates.pop(index):
            if each is actor:
                self._actors[index], self.nodes[index], self._ids[index] = actor, node, node_id
            else:
                self._end(index, each)

    def _is_out(self, index: int, actor: Any) -> bool:
        """Tell whether an actor that has failed was one of several candidates, of which others are left."""
        left = [each for each in self._candidates.get(index, ()) if each[0] is not actor]
        if left:
            self._candidates[index] = left
        return bool(left)

    def _end(self, index: int, actor: Any) -> None:
        within(TO_ANSWER, lambda: self._ray.kill(actor), f"the actor of node {index} may still run")
        self._polls = {poll: pair for poll, pair in self._polls.items() if pair[1] is not actor}

    def drop(self, node: int) -> None:
        for actor, _, _ in self._candidates.pop(node, ()):
            self._end(node, actor)
        self._end(node, self._actors[node])

    def close(self, code: int) -> None:
        """End the actors and free the resources."""
        from ray.util import remove_placement_group

        if not self._ray.is_initialized():
            return  # the cluster has ended the actors of a program that has left it
        candidates = [actor for found in self._candidates.values() for actor, _, _ in found]
        polled = [actor for _, actor in self._polls.values() if all(actor is not each for each in candidates)]

        def end() -> None:
            with contextlib.suppress(Exception):
                left = [actor.send.remote(Leave(code)) for actor in polled]
                if left:
                    self._ray.wait(left, num_returns=len(left), timeout=TO_LEAVE)
            for actor in (*candidates, *self._actors):
                with contextlib.suppress(Exception):
                    self._ray.kill(actor)
            remove_placement_group(self._group)

        undone = f"its {len(self._actors)} actors may still run, and their placement group may hold resources"
        within(TO_ANSWER, end, undone)
        self._candidates, self._polls, self._held = {}, {}, []


def _grouped(parts: list[memoryview]) -> Iterator[list[tuple[tuple[int, int], memoryview]]]:
    """
    Divide the parts into groups of up to `PIECE` bytes: of (part, offset), and the bytes.

    >>> [[place for place, _ in group] for group in _grouped([memoryview(bytes(9 << 20))] * 3)]
    [[(0, 0)], [(1, 0)], [(2, 0)]]
    """
    group: list[tuple[tuple[int, int], memoryview]] = []
    size = 0
    for index, part in enumerate(parts):
        for offset in range(0, part.nbytes, PIECE):
            data = part[offset : offset + PIECE]
            if group and (size + data.nbytes > PIECE or len(group) == MOST):
                yield group
                group, size = [], 0
            group.append(((index, offset), data))
            size += data.nbytes
    if group:
        yield group


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # The last line names the cause, as the ModuleNotFoundError of a node without mp-spawn.
    return f"{lines[0]} {lines[-1]}" if len(lines) > 1 else "".join(lines)
