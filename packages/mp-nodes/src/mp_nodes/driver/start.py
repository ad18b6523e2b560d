"""`start_processes` and `run` with ``engine=``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mp_nodes.driver.engine_context import EngineContext
from mp_nodes.driver.plan import Plan
from mp_nodes.engines.by_name import engine_for
from mp_spawn.jobs.options import Args
from mp_spawn.jobs.running_job import end_late


def start(
    engine: Any, fn: Callable[..., Any], args: Args, nprocs: int, join: bool, **options: Any
) -> EngineContext | None:
    """Start the ranks on an engine; with *join* wait for them and return None."""
    started = EngineContext(Plan.of(engine_for(engine), fn, args, nprocs, **options))
    if not join:
        return started
    started.join()
    return None


def run(
    engine: Any,
    fn: Callable[..., Any],
    args: Args,
    nprocs: int,
    timeout: float | None,
    grace_period: float | None,
    **options: Any,
) -> list[bytes]:
    """Run the ranks on an engine and return their pickled results."""
    plan = Plan.of(engine_for(engine), fn, args, nprocs, **options)
    started = EngineContext(plan, wants_result=True, grace_period=grace_period)
    if not started.join(timeout):
        if started.is_running():
            raise end_late(started, started.output, timeout or 0.0)
        started.join()  # their output is being written
    return started.reports()
