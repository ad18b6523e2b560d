"""The engine `Ray`: agents are actors on a Ray cluster, one a node, held by a placement group."""

from __future__ import annotations

import contextlib
import pickle
import sys
import time
from collections.abc import Mapping
from typing import Any

from mp_spawn.engines.protocol import Agents, EngineError, Leave, Lost, Node, Start
from mp_spawn.job import _at_least

__all__ = ["Ray"]

EXTRA = 'pip install "mp-spawn[ray]"'
# Seconds for a message that is ready to arrive; for the agents to leave; before the program says that it waits.
TO_FETCH = 1.0
TO_LEAVE = 2.0
BEFORE_NOTICE = 2.0


class Ray:
    """
    A Ray cluster. Each node runs its ranks under one actor, which is never restarted.

    An array among the arguments crosses the network once for each node, and all ranks of a node have it from one copy
    in shared memory. Writes to it do not reach other nodes: return what others need, or use a library for that, such as
    torch.distributed, for which ``MASTER_ADDR`` and ``MASTER_PORT`` are set.

    Parameters
    ----------
    address : str
        As for ``ray.init``. If None, the cluster to which this program is connected, or else the running one ("auto").
    nodes : int
        The number of nodes, over which the ranks are spread evenly. If None, as few as have room.
    resources : mapping
        What each rank needs, by Ray's names; one CPU unless said otherwise. With ``{"GPU": 1}``, each rank has a
        ``CUDA_VISIBLE_DEVICES`` of its own.
    runtime_env : mapping
        As for Ray's actors: ``{"working_dir": "."}`` takes the modules of this folder to the nodes.
    wait : float
        Seconds to wait for resources that other programs hold.

    Raises
    ------
    EngineError
        At the start of the ranks: ray is not installed, no cluster runs, or it is too small.

    Examples
    --------
    >>> mp.engines.Ray(nodes=4, resources={"GPU": 1}).nodes
    4
    """

    def __init__(
        self,
        address: str | None = None,
        nodes: int | None = None,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        wait: float = 60.0,
    ) -> None:
        if nodes is not None:
            _at_least("nodes", nodes, 1, "the number of nodes, or None for as few as have room")
        self.address = address
        self.nodes = nodes
        self.resources = {"CPU": 1.0, **(resources or {})}
        self.runtime_env = runtime_env
        self.wait = wait
        #: The devices of each rank, as the plan of a job reads it.
        self.gpus_per_rank = float(self.resources.get("GPU", 0))

    def place(self, nprocs: int) -> Agents:
        """Reserve a bundle of resources on each node, and start the actors in them."""
        ray = _connected(self.address)
        from ray.util import placement_group, placement_group_table, remove_placement_group

        alive = [node for node in ray.nodes() if node["Alive"]]
        counts = self._counts(nprocs, alive)
        bundles = [{name: amount * count for name, amount in self.resources.items() if amount} for count in counts]
        group = placement_group(bundles, strategy="STRICT_SPREAD")
        try:
            self._await(group, nprocs, len(counts), ray)
            by_id = {node["NodeID"]: node for node in alive}
            ids = placement_group_table(group)["bundles_to_node_id"]
            found = [by_id[ids[index]] for index in range(len(counts))]
            hosts = [node["NodeManagerHostname"] for node in found]
            nodes = []
            first = 0
            for count, node, host in zip(counts, found, hosts, strict=True):
                # A cluster on one machine, as for a test, has several nodes of one name.
                name = host if hosts.count(host) == 1 else f"{host}-{node['NodeID'][:6]}"
                nodes.append(Node(name, node["NodeManagerAddress"], range(first, first + count)))
                first += count
            return _RayAgents(ray, group, nodes, bundles, self)
        except BaseException:
            remove_placement_group(group)
            raise

    def _counts(self, nprocs: int, alive: list[Any]) -> list[int]:
        """
        Return the number of ranks for each node to be used, or raise `EngineError`.
        """
        rooms = {node["NodeID"]: self._room(node["Resources"], nprocs) for node in alive}
        best = sorted((room for room in rooms.values() if room), reverse=True)
        # A node without a rank would be of no use.
        wanted = min(self.nodes or len(best), nprocs)
        used = best[:wanted]
        counts = [0] * len(used)
        if sum(used) >= nprocs and len(used) == wanted:
            for _ in range(nprocs):
                # Without a number of nodes fill one after the other, else the emptiest that has room.
                free = [index for index, room in enumerate(used) if counts[index] < room]
                counts[free[0] if self.nodes is None else min(free, key=counts.__getitem__)] += 1
            return [count for count in counts if count]
        asked = ", ".join(f"{name} {amount:g}" for name, amount in self.resources.items())
        there = "; ".join(
            f"{node['NodeManagerHostname']} ({node['NodeID'][:6]}) has "
            + ", ".join(f"{name} {node['Resources'].get(name, 0):g}" for name in self.resources)
            + f": {rooms[node['NodeID']]} ranks"
            for node in alive
        )
        on = f" on {self.nodes} nodes" if self.nodes else ""
        raise EngineError(f"asked for {nprocs} ranks{on}, each with {asked}; the Ray cluster has too little: {there}")

    def _room(self, there: Mapping[str, float], nprocs: int) -> int:
        """
        Return how many ranks fit into a node with the resources *there*.
        """
        needed = [(name, amount) for name, amount in self.resources.items() if amount]
        return min((int(there.get(name, 0) / amount + 1e-6) for name, amount in needed), default=nprocs)

    def _await(self, group: Any, nprocs: int, nodes: int, ray: Any) -> None:
        """
        Wait for resources, which the cluster has but others may hold.
        """
        started = time.monotonic()
        noticed = False
        while not group.wait(1):
            waited = time.monotonic() - started
            if waited > self.wait:
                free = ", ".join(f"{name} {ray.available_resources().get(name, 0):g}" for name in self.resources)
                raise EngineError(
                    f"asked for {nprocs} ranks on {nodes} nodes; after {waited:.0f} s other programs still hold them, "
                    f"and the Ray cluster has {free} free"
                )
            if waited > BEFORE_NOTICE and not noticed:
                noticed = True
                print(f"mp-spawn: waiting for {nodes} nodes of the Ray cluster", file=sys.stderr)


def _connected(address: str | None) -> Any:
    """
    Import ray and connect to the cluster, unless that is done.
    """
    try:
        import ray
    except ImportError as error:
        raise EngineError(f"engine='ray' needs ray, which is not installed: {EXTRA}") from error
    if not ray.is_initialized():
        try:
            ray.init(address=address or "auto", log_to_driver=False, logging_level="error")
        except ConnectionError as error:
            raise EngineError(
                "no Ray cluster runs here; start one (ray start --head), give its address "
                f"(engines.Ray(address=...)), or start one for this program (address='local'): {error}"
            ) from error
    return ray


class _RayAgents:
    """The actors, and one call of `poll` under way to each."""

    def __init__(self, ray: Any, group: Any, nodes: list[Node], bundles: list[dict[str, float]], engine: Ray) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from mp_spawn.engines.ray_actor import RayAgent

        self.nodes = nodes
        self._ray = ray
        self._group = group
        groups = {"poll": 1, "send": 1, "start": 1}
        actor = ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups=groups)(RayAgent)
        threads = max(1, int(engine.resources["CPU"]))
        self._actors: list[Any] = []
        for index, (node, bundle) in enumerate(zip(nodes, bundles, strict=True)):
            options: dict[str, Any] = {
                "num_cpus": bundle.get("CPU", 0),
                "num_gpus": bundle.get("GPU", 0),
                "resources": {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU")},
                "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            }
            if engine.runtime_env is not None:
                options["runtime_env"] = dict(engine.runtime_env)
            self._actors.append(actor.options(**options).remote(node.address, threads))
        self._polls = {each.poll.remote(): index for index, each in enumerate(self._actors)}
        # The parts in Ray's store, and the calls of the agents that copy them; kept until all calls have returned.
        self._held: tuple[list[Any], list[Any]] = [], []

    def start(self, starts: list[Start], parts: list[memoryview]) -> None:
        """Put each part into Ray's store once; the agents fetch them."""
        held = [self._ray.put(pickle.PickleBuffer(part)) if part.nbytes else None for part in parts]
        calls = [actor.start.remote(start, held) for actor, start in zip(self._actors, starts, strict=True)]
        self._held = held, calls

    def send(self, node: int, message: Any) -> None:
        """Call the actor, and wait for nothing."""
        self._actors[node].send.remote(message)

    def receive(self, timeout: float) -> list[tuple[int, Any]]:
        """Return what the calls of `poll` have brought, and call again."""
        if not self._polls:
            time.sleep(timeout)
            return []
        polls = list(self._polls)
        ready, rest = self._ray.wait(polls, num_returns=1, timeout=timeout)
        if ready and rest:
            ready += self._ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        came: list[tuple[int, Any]] = []
        for poll in ready:
            node = self._polls.pop(poll)
            try:
                messages = self._ray.get(poll, timeout=TO_FETCH)
            except self._ray.exceptions.RayError as error:
                came.append((node, Lost(f"{type(error).__name__}, {_first_line(error)}")))
                continue
            came += [(node, message) for message in messages]
            self._polls[self._actors[node].poll.remote()] = node
        if (calls := self._held[1]) and not self._ray.wait(calls, num_returns=len(calls), timeout=0)[1]:
            self._held = [], []
        return came

    def drop(self, node: int) -> None:
        """Kill the actor."""
        with contextlib.suppress(Exception):
            self._ray.kill(self._actors[node])
        self._polls = {poll: index for poll, index in self._polls.items() if index != node}

    def close(self, code: int) -> None:
        """End the actors and free the resources."""
        from ray.util import remove_placement_group

        left = [self._actors[node].send.remote(Leave(code)) for node in set(self._polls.values())]
        with contextlib.suppress(Exception):
            if left:
                self._ray.wait(left, num_returns=len(left), timeout=TO_LEAVE)
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        with contextlib.suppress(Exception):
            remove_placement_group(self._group)
        self._polls, self._held = {}, ([], [])


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # The last line names the cause, as the ModuleNotFoundError of a node without mp-spawn.
    return f"{lines[0]} {lines[-1]}" if len(lines) > 1 else "".join(lines)
