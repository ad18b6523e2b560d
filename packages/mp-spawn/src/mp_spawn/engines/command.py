"""The command mp-spawn on several nodes: its options, and its run on an engine."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

from mp_spawn.child import run_module, run_script
from mp_spawn.command_options import count_ranks, variables_of
from mp_spawn.engines.job_place import JobPlace, place_in_job
from mp_spawn.errors import ProcessException
from mp_spawn.job import check_options
from mp_spawn.process_handle import readable
from mp_spawn.signals import ENDING, Ended, Forwarding
from mp_spawn.terminal import Row, show_table

__all__ = ["add_options", "main"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """
    Add the options for several nodes.
    """
    group = parser.add_argument_group(
        "several nodes",
        "With Slurm or mpirun, start one mp-spawn on each node. By hand, do so with the same --nnodes, --master-addr "
        "and --master-port, and with a --node-rank of its own. -n is the number of ranks on all nodes together. The "
        "nodes need a common secret, in MP_SPAWN_KEY or in --key-file.",
    )
    group.add_argument("--engine", choices=("ray", "local"), help="run the ranks on a Ray cluster; or try nodes here")
    group.add_argument("--nnodes", type=int, metavar="M", help="number of nodes; 1 to stay on this one")
    group.add_argument("--node-rank", type=int, metavar="I", help="number of this node, from 0")
    group.add_argument("--master-addr", metavar="HOST", help="address on which node 0 listens")
    group.add_argument("--master-port", type=int, metavar="PORT", help="port on which node 0 listens (29500 by hand)")
    group.add_argument("--key-file", metavar="FILE", help="file with the secret, which only you can read")


def main(chosen: argparse.Namespace) -> int | None:
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
    check_options(chosen.threads_per_rank, chosen.max_restarts, chosen.output)
    nprocs = count_ranks(chosen.nprocs)
    if place is not None and nprocs < place.nnodes:
        raise ValueError(f"-n {nprocs} is too small for {place.nnodes} nodes; give each a rank or more")
    if not chosen.module and not os.path.isfile(chosen.script):
        raise ValueError(f"there is no file {chosen.script!r}; for a module, give -m")
    try:
        if place is not None and place.node_rank > 0:
            from mp_spawn.engines.environment import join_job

            return join_job(place)
        return _drive(chosen, nprocs, place)
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
        f"--start-method {chosen.start_method}": chosen.start_method != "spawn",
        f"--bind {chosen.bind}": chosen.bind not in (None, "spread"),
        "--gpus-per-rank": chosen.gpus_per_rank is not None,
        "--timeout": chosen.timeout is not None,
        "--grace-period": chosen.grace_period is not None,
        "--log-dir": chosen.log_dir is not None,
        "--tee": chosen.tee,
        "--no-python": chosen.no_python,
    }
    if names := [name for name, is_given in given.items() if is_given]:
        raise ValueError(f"{', '.join(names)} cannot be used on several nodes; the ranks of one machine can have it")


def _engine(chosen: argparse.Namespace, place: JobPlace | None, signals: Forwarding) -> Any:
    if place is not None:
        from mp_spawn.engines.environment import Environment

        return Environment(place, signals=signals)
    from mp_spawn import engines

    if chosen.engine == "ray":
        return engines.Ray(nodes=chosen.nnodes)
    return engines.Local(nodes=chosen.nnodes or 1)


def _drive(chosen: argparse.Namespace, nprocs: int, place: JobPlace | None) -> int:
    """
    Run the job from here.
    """
    with Forwarding() as signals:
        context = _start(chosen, nprocs, _engine(chosen, place, signals), signals)
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


def _start(chosen: argparse.Namespace, nprocs: int, engine: Any, signals: Forwarding) -> Any:
    from mp_spawn.engines.driver import EngineContext
    from mp_spawn.engines.plan import Plan

    plan = Plan.of(
        engine,
        run_module if chosen.module else run_script,
        (chosen.script, chosen.arguments),
        nprocs,
        start_method=chosen.start_method,
        env=variables_of(chosen.env) or None,
        threads_per_rank=chosen.threads_per_rank,
        cpu_affinity=chosen.bind,
        output=chosen.output,
        max_restarts=chosen.max_restarts,
        faulthandler=chosen.faulthandler,
        own_group=True,
        needs_main=False,
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
