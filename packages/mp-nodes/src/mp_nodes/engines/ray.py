"""The engine `Ray`: agents are actors on a Ray cluster, one a node, held by a placement group."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

from mp_nodes.engines.ray_agents import TO_ANSWER, RayAgents, named, within
from mp_nodes.protocol import Agents, EngineError
from mp_spawn.jobs.job import at_least
from mp_spawn.output.messages import tell

EXTRA = 'pip install "mp-nodes[ray]"'
# Seconds before the program says that it waits.
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
    ValueError
        A rank is to need less than 0 of a resource, or nothing at all.
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
            at_least("nodes", nodes, 1, "the number of nodes, or None for as few as have room")
        self.address = address
        self.nodes = nodes
        self.resources = {"CPU": 1.0, **(resources or {})}
        if min(self.resources.values()) < 0 or not any(self.resources.values()):
            needs = "a rank needs 0 or more of each, and more than 0 of one"
            raise ValueError(f"resources={resources!r} is wrong; {needs}")
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
        bundles = [self.needs(count) for count in counts]
        group = placement_group(bundles, strategy="STRICT_SPREAD")
        try:
            self._await(group, nprocs, len(counts), ray)
            by_id = {node["NodeID"]: node for node in alive}
            ids = placement_group_table(group)["bundles_to_node_id"]
            found = [by_id[ids[index]] for index in range(len(counts))]
            nodes = []
            first = 0
            for count, node in zip(counts, found, strict=True):
                nodes.append(named(node, alive, range(first, first + count)))
                first += count
            return RayAgents(ray, group, nodes, found, self)
        except BaseException:
            within(TO_ANSWER, lambda: remove_placement_group(group), "a placement group may hold resources")
            raise

    def needs(self, count: int) -> dict[str, float]:
        """Return the resources that so many ranks need."""
        return {name: amount * count for name, amount in self.resources.items() if amount}

    def _counts(self, nprocs: int, alive: list[Any]) -> list[int]:
        """Return the number of ranks for each node to be used, or raise `EngineError`."""
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
        """Return how many ranks fit into a node with the resources *there*."""
        needed = [(name, amount) for name, amount in self.resources.items() if amount]
        return min((int(there.get(name, 0) / amount + 1e-6) for name, amount in needed), default=nprocs)

    def _await(self, group: Any, nprocs: int, nodes: int, ray: Any) -> None:
        """Wait for resources, which the cluster has but others may hold."""
        started = time.monotonic()
        noticed = False
        of = "1 node" if nodes == 1 else f"{nodes} nodes"
        while not group.wait(1):
            waited = time.monotonic() - started
            if waited > self.wait:
                free = ", ".join(f"{name} {ray.available_resources().get(name, 0):g}" for name in self.resources)
                raise EngineError(
                    f"asked for {nprocs} ranks on {of}; after {waited:.0f} s other programs still hold them, "
                    f"and the Ray cluster has {free} free"
                )
            if waited > BEFORE_NOTICE and not noticed:
                noticed = True
                tell(f"mp-spawn: waiting for {of} of the Ray cluster")


def _is_another(address: str | None, there: str) -> bool:
    """
    Tell whether *address* is surely not that of the cluster at *there*: its host may have several names, and one port.

    >>> _is_another("localhost:6379", "10.0.0.1:6379"), _is_another("10.0.0.1:1234", "10.0.0.1:6379")
    (False, True)
    """
    port = "" if address is None or "://" in address else address.rpartition(":")[2]
    return port.isdecimal() and port != there.rpartition(":")[2]


def _connected(address: str | None) -> Any:
    """Import ray and connect to the cluster, unless that is done."""
    try:
        import ray
    except ImportError as error:
        raise EngineError(f"engine='ray' needs ray, which is not installed: {EXTRA}") from error
    if ray.is_initialized():
        there = ray.get_runtime_context().gcs_address
        if _is_another(address, there):
            raise EngineError(
                f"this program is connected to the Ray cluster at {there}, and not to {address!r}; "
                "give the same address, or call ray.shutdown() first"
            )
        return ray
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level="error")
    except ConnectionError as error:
        raise EngineError(
            "no Ray cluster runs here; start one (ray start --head), give its address "
            f"(engines.Ray(address=...)), or start one for this program (address='local'): {error}"
        ) from error
    finally:
        # Ray has put one of its own in the place of that of the program or the command.
        if is_main and handler is not None:
            signal.signal(signal.SIGTERM, handler)
    return ray
