"""The command mp-spawn on several nodes: its options, and its run on an engine."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from mp_core.system.descriptor import readable
from mp_nodes.job_place import place_in_job
from mp_spawn.calls.payload import Call
from mp_spawn.command.command_options import (
    Recording,
    call_of,
    check_shown,
    common_variables,
    count_per_node,
    count_ranks,
    output_of,
    restarts_all,
    variables_of,
    with_folder,
)
from mp_spawn.errors import ProcessException
from mp_spawn.jobs.job import OF_A_FORK, check_options, check_room
from mp_spawn.jobs.running_job import end_late
from mp_spawn.output.messages import tell
from mp_spawn.output.terminal import TIMED_OUT, Row, write_end
from mp_spawn.ranks.signals import Ended, Forwarding, raise_if_ending


def main(chosen: argparse.Namespace, recording: Recording) -> int:
    """Run the command on several nodes and return its exit code."""
    place = place_in_job(chosen) if chosen.engine is None else None
    from mp_nodes.protocol import EngineError

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
    if place is not None:
        check_room(ranks or nprocs // place.nnodes, OF_A_FORK)
    check_shown(output_of(chosen), ranks or -(-nprocs // nnodes))
    call = call_of(chosen)
    try:
        if place is None:
            return _drive(chosen, call, nprocs, _engine(chosen), recording)
        from mp_nodes.engines.environment import Environment, join_job
        from mp_nodes.transport.meeting import claim

        with ExitStack() as on_exit:
            server = claim(place) if place.node_rank is None else None
            if server is not None:
                on_exit.enter_context(server)
            if server is None and place.node_rank != 0:
                return join_job(place, ranks)
            return _drive(chosen, call, nprocs, lambda signals: Environment(place, ranks, signals, server), recording)
    except Ended as ended:
        # The code that a shell shows for a process that the signal has ended.
        tell(f"mp-spawn: ended by {signal.Signals(ended.signum).name} before the ranks were started")
        return 128 + ended.signum
    except EngineError as error:
        tell(f"mp-spawn: {error}")
        return 1


def _refuse_options_of_one_machine(chosen: argparse.Namespace) -> None:
    given = {
        "-n auto": chosen.nprocs == "auto",
        f"--bind {chosen.bind}": chosen.bind not in (None, "spread"),
        "--gpus-per-rank": chosen.gpus_per_rank is not None,
        "--stdin 0": chosen.stdin is not None,
        "--no-python": chosen.no_python,
        "--engine ray with --max-restarts and without --restart rank": (
            chosen.engine == "ray" and chosen.max_restarts > 0 and restarts_all(chosen)
        ),
    }
    if names := [name for name, is_given in given.items() if is_given]:
        raise ValueError(f"{', '.join(names)} cannot be used on several nodes; the ranks of one machine can have it")


def _engine(chosen: argparse.Namespace) -> Callable[[Forwarding], Any]:
    import mp_nodes as engines

    if chosen.engine == "ray":
        return lambda signals: engines.Ray(nodes=chosen.nnodes and chosen.nnodes.most)
    return lambda signals: engines.Local(nodes=chosen.nnodes.most if chosen.nnodes else 1)


def _drive(
    chosen: argparse.Namespace, call: Call, nprocs: int, engine: Callable[[Forwarding], Any], recording: Recording
) -> int:
    """Run the job from here."""
    with recording(), Forwarding() as signals:
        context = _start(chosen, call, nprocs, engine(signals), signals)
        deadline = time.monotonic() + (float("inf") if chosen.timeout is None else chosen.timeout)
        late = None
        while not context.is_over():
            if readable(signals.fd, 0.05):
                signals.handle(context.hear_signal)
            if late is None and time.monotonic() > deadline and context.is_running():
                context.exit_code = TIMED_OUT
                late = end_late(context, context.output, chosen.timeout)

        def is_given_up() -> bool:
            if readable(signals.fd, 0):
                signals.handle(context.hear_signal)
            return bool(context.is_given_up())

        error = late or _failure_of(context)
        is_written = write_end(context.output, error, partial(_table_of, context), is_given_up)
        code: int = TIMED_OUT if late else context.code()
        return code if is_written or code else 128 + context.told_by


def _failure_of(context: Any) -> ProcessException | None:
    try:
        context.join()
    except ProcessException as error:
        return error
    return None


def _start(chosen: argparse.Namespace, call: Call, nprocs: int, engine: Any, signals: Forwarding) -> Any:
    from mp_nodes.driver.engine_context import EngineContext
    from mp_nodes.driver.plan import Plan

    plan = Plan.of(
        engine,
        *call,
        nprocs,
        env=common_variables(chosen, count_per_node(chosen.nproc_per_node)),
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
    return EngineContext(plan, look=lambda: signals.handle(raise_if_ending) if readable(signals.fd, 0) else None)


def _table_of(context: Any, error: ProcessException) -> list[Row]:
    failed = {failure.rank: failure for failure in error.failures}
    rows = []
    for rank, pid, code, seconds in context.rows:
        failure = failed.get(rank)
        ended = "ended well" if code == 0 else "ended by mp-spawn"
        if failure is not None:
            ended = failure.reason if failure.lost else f"{failure.reason}, on {failure.node}"
        rows.append(Row(rank, pid, ended, seconds, bool(failure)))
    return rows
