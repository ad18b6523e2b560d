"""The plan of a job on an engine: the checked options of one call, and from them the start of each node."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from multiprocessing import spawn
from typing import Any

from mp_core.children.main_module import main_can_be_imported
from mp_core.children.random_streams import checked_seed
from mp_core.timeline.remote import events_wanted
from mp_nodes.agent.node_payload import Shipment, pack
from mp_nodes.protocol import Engine, Node, Start
from mp_spawn.jobs.job import Env, check_options, checked_args, own_variables
from mp_spawn.jobs.options import Args
from mp_spawn.output.streams import Streams
from mp_spawn.ranks.rank_variables import INSIDE, place_variables
from mp_spawn.ranks.signals import TERM_TO_KILL


@dataclasses.dataclass
class Plan:
    """One call of the launcher with an engine."""

    engine: Engine
    nprocs: int
    shipment: Shipment
    parts: list[memoryview]
    env: Env
    threads_per_rank: int | None
    spread: bool
    output: str | os.PathLike[str] | Streams
    max_restarts: int
    faulthandler: bool
    daemon: bool
    own_group: bool
    is_program: bool
    #: Seconds from SIGTERM to SIGKILL.
    time_to_end: float
    #: Whether a failure has all ranks started again, and not one.
    restarts_all: bool = False
    seed: Any = None
    #: The number of nodes, once they are known.
    groups: int = 1
    #: Whether each rank gets devices of its own, out of those of its node.
    divides_devices: bool = True

    @classmethod
    def of(
        cls,
        engine: Engine,
        fn: Callable[..., Any],
        args: Args,
        nprocs: int,
        *,
        start_method: str | None = "spawn",
        context: Any = None,
        env: Env = None,
        threads_per_rank: int | None = None,
        cpu_affinity: Any = None,
        output: str | os.PathLike[str] | Streams = "inherit",
        max_restarts: int = 0,
        faulthandler: bool = True,
        seed: Any = None,
        daemon: bool = False,
        own_group: bool = False,
        is_program: bool = False,
        time_to_end: float = TERM_TO_KILL,
        restarts_all: bool = False,
    ) -> Plan:
        """Check the options and pickle the call, or raise an error that names the wrong option in one line."""
        args = checked_args(fn, args, nprocs)
        check_options(threads_per_rank, max_restarts, output)
        if start_method not in ("spawn", None) or context is not None:
            given = f"context={context!r}" if context is not None else f"start_method={start_method!r}"
            raise ValueError(f"{given} does not go with engine=, which always spawns its ranks: leave it out")
        if cpu_affinity not in (None, "spread"):
            raise ValueError(
                f"cpu_affinity={cpu_affinity!r} does not go with engine=, whose nodes have processors of their own: "
                "give 'spread' or None"
            )
        shipment, parts = pack(fn, args)
        return cls(
            engine,
            nprocs,
            shipment,
            parts,
            env,
            threads_per_rank,
            cpu_affinity == "spread",
            output,
            max_restarts,
            faulthandler,
            daemon,
            own_group,
            is_program,
            time_to_end,
            restarts_all,
            checked_seed(seed),
        )

    def start(self, group: int, node: Node, master: tuple[str, int], wants_result: bool, restarts: int = 0) -> Start:
        """Return the message that starts the ranks of the node with the number *group*."""
        main = spawn.get_preparation_data("rank")
        if self.is_program or not main_can_be_imported():
            main = {key: value for key, value in main.items() if not key.startswith("init_main")}
        kept = ("sys_path", "sys_argv", "init_main_from_name", "init_main_from_path")
        return Start(
            node,
            self.shipment,
            [self._env(rank, group, node, master) for rank in node.ranks],
            {"dir": os.getcwd(), **{key: main[key] for key in kept if key in main}},
            wants_result,
            self.daemon,
            self.threads_per_rank,
            self.spread,
            restarts,
            0 if self.restarts_all else self.max_restarts - restarts,
            self.faulthandler,
            self.own_group,
            self.is_program,
            self.time_to_end,
            getattr(self.engine, "gpus_per_rank", 0.0) if self.divides_devices else 0.0,
            events_wanted(),
            self.seed,
        )

    def _env(self, rank: int, group: int, node: Node, master: tuple[str, int]) -> Mapping[str, str]:
        local = rank - node.ranks.start, len(node.ranks)
        place = place_variables(rank, self.nprocs, local, (group, self.groups), master)
        own = own_variables(self.env, rank)
        return {**place, INSIDE: "1", **own}
