"""The command `mp-spawn`: a script or a module in N ranks, with an exit code that tells how it went."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from contextlib import nullcontext, suppress
from multiprocessing import get_all_start_methods

from mp_spawn.context import ProcessContext
from mp_spawn.errors import ProcessException, ProcessExitedException
from mp_spawn.forwarding import Forwarding
from mp_spawn.launch import prepare
from mp_spawn.progress import shown
from mp_spawn.script import run_module, run_script
from mp_spawn.table import Row, show

__all__ = ["main"]

EPILOG = """
Each rank finds RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE in its environment, and MASTER_ADDR and
MASTER_PORT as they are set, or 127.0.0.1 and a free port. The first rank that fails ends the others. The exit
code is that of the first failure: the rank's own, 1 for an exception, 128 + n for signal n.
"""


def parser() -> argparse.ArgumentParser:
    """
    The options of the command.
    """
    parser = argparse.ArgumentParser(
        prog="mp-spawn", description="Run a Python script or module in N processes.", epilog=EPILOG
    )
    parser.add_argument("-n", "--nprocs", type=int, default=1, metavar="N", help="how many ranks (default 1)")
    parser.add_argument("--start-method", default="spawn", choices=get_all_start_methods())
    parser.add_argument(
        "--output",
        default="prefix",
        help="prefix: the rank before each line (the default); inherit; "
        "capture: rank after rank, at the end; or a folder, for a file per rank and stream",
    )
    parser.add_argument("--threads-per-rank", type=int, metavar="K", help="set OMP_NUM_THREADS and its like")
    parser.add_argument("--max-restarts", type=int, default=0, metavar="R", help="how often each may fail before")
    parser.add_argument(
        "--no-faulthandler",
        dest="faulthandler",
        action="store_false",
        help="do not have the Python stack of a rank that crashes",
    )
    parser.add_argument("-m", "--module", action="store_true", help="run a module, as python -m does")
    parser.add_argument("script", help="the script, or with -m the module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """
    Run the command and return its exit code.

    >>> main(["-n", "2", "this_file_is_not_there.py"])
    2
    """
    options = parser()
    chosen = options.parse_args(arguments)
    world = environment(chosen.nprocs)
    try:
        if not chosen.module and not os.path.isfile(chosen.script):
            raise ValueError(f"there is no file {chosen.script!r}; for a module, give -m")
        job = prepare(
            run_module if chosen.module else run_script,
            (chosen.script, chosen.arguments),
            chosen.nprocs,
            start_method=chosen.start_method,
            env=lambda rank: {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            threads_per_rank=chosen.threads_per_rank,
            output=chosen.output,
            max_restarts=chosen.max_restarts,
            faulthandler=chosen.faulthandler,
        )
    except (TypeError, ValueError) as refusal:
        print(f"mp-spawn: {refusal}", file=sys.stderr)
        return 2
    job.needs_main = False
    # The terminal's control-C comes here only, and is passed on once, as are all signals.
    job.own_group = True
    with Forwarding() as forwarding:
        context = ProcessContext._of(job)
        forwarding.send = context._pass_on
        context._signals = forwarding
        # Ranks that have the terminal for themselves would write across it.
        with shown(chosen.nprocs, context._count_ended) if chosen.output != "inherit" else nullcontext():
            error = outcome(context)
    if chosen.output == "capture":
        for captured in context.captured:
            sys.stdout.write(captured.stdout)
            sys.stderr.write(captured.stderr)
    if error is None:
        return 0
    with suppress(OSError):  # nobody reads it any more; the exit code tells all the same
        tell(context, error)
    if not isinstance(error, ProcessExitedException):
        return 1
    return error.exit_code if error.exit_code >= 0 else 128 - error.exit_code


def outcome(context: ProcessContext) -> ProcessException | None:
    """
    How it went.
    """
    try:
        context.join()
    except ProcessException as error:
        return error
    return None


def environment(nprocs: int) -> dict[str, str]:
    """
    What every rank finds.
    """
    world = {"WORLD_SIZE": str(nprocs), "LOCAL_WORLD_SIZE": str(nprocs)}
    if "MASTER_ADDR" not in os.environ:
        world["MASTER_ADDR"] = "127.0.0.1"
    if "MASTER_PORT" not in os.environ:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            world["MASTER_PORT"] = str(free.getsockname()[1])
    return world


def tell(context: ProcessContext, error: ProcessException) -> None:
    """
    Say on standard error what happened.
    """
    first = error.failures[0]
    failed = {failure.rank: failure for failure in error.failures}
    if first.traceback:
        print(first.traceback, end="", file=sys.stderr)
    if first.stack:
        print(first.stack, end="", file=sys.stderr)
    print(f"mp-spawn: {first.describe()}", file=sys.stderr)
    now = time.monotonic()
    rows = []
    for rank in context._ranks:
        failure = failed.get(rank.index)
        ended = failure.reason if failure else "ended well" if rank.process.exitcode == 0 else "ended by mp-spawn"
        rows.append(Row(rank.index, rank.pid, ended, (rank.ended_at or now) - rank.started_at, bool(failure)))
    show(rows)
