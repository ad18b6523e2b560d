"""The command mp-spawn on several nodes: its options, and its run on an engine."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from mp_spawn.command_options import (
    Recording,
    call_of,
    count_per_node,
    count_ranks,
    output_of,
    variables_of,
    with_folder,
)
from mp_spawn.engines.job_place import place_in_job
from mp_spawn.errors import ProcessException
from mp_spawn.job import check_options
from mp_spawn.payload import Call
from mp_spawn.process_handle import readable
from mp_spawn.rank_variables import job_variables
from mp_spawn.signals import ENDING, Ended, Forwarding
from mp_spawn.terminal import Row, show_table

__all__ = ["main", "restarts_all", "variables"]


def restarts_all(chosen: argparse.Namespace) -> bool:
    """
    Tell whether a failure has all ranks started again. See Note [Torchrun's lines].
    """
    return bool(chosen.restart == "all" or (chosen.restart is None and chosen.nprocs is None))


def variables(chosen: argparse.Namespace, per_node: int) -> dict[str, str]:
    """
    Return the variables that all ranks have in common.
    """
    common = job_variables(chosen.role, chosen.rdzv_id or "none", chosen.max_restarts)
    # As torchrun does, which counts by node as well.
    if (
        chosen.nprocs is None
        and chosen.threads_per_rank is None
        and per_node > 1
        and "OMP_NUM_THREADS" not in os.environ
    ):
        common["OMP_NUM_THREADS"] = "1"
    return common | variables_of(chosen.env)


def main(chosen: argparse.Namespace, recording: Recording) -> int | None:
    """
    Run the command on several nodes and return its exit code; None if the job is for this machine alone.
    """
    place = place_in_job(chosen) if chosen.engine is None else None
    if chosen.engine is None and place is None:
        return None
    from mp_spawn.engines.protocol import EngineError

    # On every node, so that none waits for another that has refused.
    _refuse_options_of_one_machine(chosen)
    variables_of(chosen.env)
    check_options(chosen.threads_per_rank, chosen.max_restarts, output_of(chosen))
    # The ranks of this node, if every node tells its own; of all nodes, as far as they are known.
    ranks = count_per_node(chosen.nproc_per_node) if chosen.nprocs is None else 0
    nnodes = chosen.nnodes.most if chosen.nnodes else 1
    nprocs = ranks * nnodes or count_ranks(chosen.nprocs)
    if place is not None and not ranks and nprocs < place.nnodes:
        raise ValueError(f"-n {nprocs} is too small for {place.nnodes} nodes; give each a rank or more")
    call = call_of(chosen)
    try:
        if place is None:
            return _drive(chosen, call, nprocs, _engine(chosen), recording)
        from mp_spawn.engines.environment import Environment, join_job
        from mp_spawn.engines.meeting import claim

        with ExitStack() as on_exit:
            server = claim(place) if place.node_rank is None else None
            if server is not None:
                on_exit.enter_context(server)
            if server is None and place.node_rank != 0:
                return join_job(place, ranks)
            return _drive(chosen, call, nprocs, lambda signals: Environment(place, ranks, signals, server), recording)
    except Ended as ended:
        # The code that a shell shows for a process that the signal has ended.
        print(f"mp-spawn: ended by {signal.Signals(ended.signum).name} before the ranks were started", file=sys.stderr)
        return 128 + ended.signum
    except EngineError as error:
        print(f"mp-spawn: {error}", file=sys.stderr)
        return 1


def _refuse_options_of_one_machine(chosen: argparse.Namespace) -> None:
    given = {
        "-n auto": chosen.nprocs == "auto",
        f"--bind {chosen.bind}": chosen.bind not in (None, "spread"),
        "--gpus-per-rank": chosen.gpus_per_rank is not None,
        "--timeout": chosen.timeout is not None,
        "--stdin 0": chosen.stdin is not None,
        "--no-python": chosen.no_python,
        "--engine ray with --max-restarts and without --restart rank": (
            chosen.engine == "ray" and chosen.max_restarts > 0 and restarts_all(chosen)
        ),
    }
    if names := [name for name, is_given in given.items() if is_given]:
        raise ValueError(f"{', '.join(names)} cannot be used on several nodes; the ranks of one machine can have it")


def _engine(chosen: argparse.Namespace) -> Callable[[Forwarding], Any]:
    from mp_spawn import engines

    if chosen.engine == "ray":
        return lambda signals: engines.Ray(nodes=chosen.nnodes and chosen.nnodes.most)
    return lambda signals: engines.Local(nodes=chosen.nnodes.most if chosen.nnodes else 1)


def _drive(
    chosen: argparse.Namespace, call: Call, nprocs: int, engine: Callable[[Forwarding], Any], recording: Recording
) -> int:
    """
    Run the job from here.
    """
    with recording(), Forwarding() as signals:
        context = _start(chosen, call, nprocs, engine(signals), signals)
        while not context._done.is_set():
            if readable(signals.fd, 0.05):
                signals.handle(context._forward)
    if chosen.output == "capture":
        for captured in context.captured:
            sys.stdout.write(captured.stdout)
            sys.stderr.write(captured.stderr)
    try:
        context.join()
    except ProcessException as error:
        _print_failure(context, error)
    code: int = context._code()
    return code


def _start(chosen: argparse.Namespace, call: Call, nprocs: int, engine: Any, signals: Forwarding) -> Any:
    from mp_spawn.engines.engine_context import EngineContext
    from mp_spawn.engines.plan import Plan

    plan = Plan.of(
        engine,
        *call,
        nprocs,
        env=variables(chosen, count_per_node(chosen.nproc_per_node)),
        threads_per_rank=chosen.threads_per_rank,
        cpu_affinity=chosen.bind,
        output=with_folder(output_of(chosen)),
        max_restarts=chosen.max_restarts,
        faulthandler=chosen.faulthandler,
        own_group=True,
        is_program=True,
        time_to_end=chosen.shutdown_timeout,
        restarts_all=restarts_all(chosen),
    )
    return EngineContext(plan, look=lambda: signals.handle(_end) if readable(signals.fd, 0) else None)


def _end(signum: int) -> None:
    if signal.Signals(signum).name in ENDING:
        raise Ended(signum)


def _print_failure(context: Any, error: ProcessException) -> None:
    """
    Print the first failure and the table of all ranks on standard error.
    """
    first = error.failures[0]
    failed = {failure.rank: failure for failure in error.failures}
    print(f"{first.traceback or first.stack}mp-spawn: {first.describe()}", file=sys.stderr)
    rows = []
    for rank, pid, code, seconds in context.rows:
        failure = failed.get(rank)
        ended = "ended well" if code == 0 else "ended by mp-spawn"
        if failure is not None:
            ended = failure.reason if failure.lost else f"{failure.reason}, on {failure.node}"
        rows.append(Row(rank, pid, ended, seconds, bool(failure)))
    show_table(rows)
