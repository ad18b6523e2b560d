"""The command `mp-spawn`: a script or a module in N ranks, with an exit code that tells how it went."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from contextlib import nullcontext
from multiprocessing import get_all_start_methods, util
from types import FrameType

from mp_spawn.context import ProcessContext
from mp_spawn.errors import ProcessException, ProcessExitedException
from mp_spawn.launch import prepare
from mp_spawn.progress import shown
from mp_spawn.script import run_module, run_script
from mp_spawn.table import Row, show

__all__ = ["main"]

ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
FORWARDED = (*ENDING, "SIGUSR1", "SIGUSR2", "SIGCONT")
# The ranks have been told to end by a signal that was forwarded: what they do about it is theirs for so long.
AFTER_A_SIGNAL = 30.0

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
        )
    except (TypeError, ValueError) as refusal:
        print(f"mp-spawn: {refusal}", file=sys.stderr)
        return 2
    job.needs_main = False
    # The terminal's control-C comes here only, and is passed on once, as are all signals.
    job.own_group = True
    with Forwarding() as forwarding:
        context = ProcessContext._of(job)
        forwarding.to(context)
        # Ranks that have the terminal for themselves would write across it.
        with shown(chosen.nprocs, context._count_ended) if chosen.output != "inherit" else nullcontext():
            error = outcome(context)
    if chosen.output == "capture":
        for captured in context.captured:
            sys.stdout.write(captured.stdout)
            sys.stderr.write(captured.stderr)
    return 0 if error is None else tell(context, error)


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


class Forwarding:
    """
    While this is entered, signals go to the ranks.

    A signal that comes just before the system call which waits for the ranks does not end that wait, and Python's
    handlers run after it only. So each signal also rings a bell, a pipe, for which the wait waits as well.

    A rank under fork has inherited all this, and puts it off.
    """

    context: ProcessContext | None = None

    def __init__(self) -> None:
        self._early: list[int] = []

    def __enter__(self) -> Forwarding:
        self._bell, self._clapper = os.pipe()
        for end in (self._bell, self._clapper):
            os.set_blocking(end, False)
        self._wakeup_before = signal.set_wakeup_fd(self._clapper, warn_on_full_buffer=False)
        signals = [getattr(signal, name) for name in FORWARDED if hasattr(signal, name)]
        self._process = os.getpid()
        self._before = {signum: signal.signal(signum, self._forward) for signum in signals}
        util.register_after_fork(self, Forwarding.__exit__)
        return self

    def __exit__(self, *unused: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        for end in (self._bell, self._clapper):
            os.close(end)

    def to(self, context: ProcessContext) -> None:
        """Forward to the ranks of *context*, what came before they were there as well."""
        context._bell = self._bell
        self.context = context
        for signum in self._early:
            self._forward(signum, None)

    def _forward(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            # A rank that has just been forked: to it as if it came a moment later.
            signal.signal(signum, self._before[signum])
            signal.raise_signal(signum)
            return
        if self.context is None:
            self._early.append(signum)
            return
        if signal.Signals(signum).name in ENDING:
            self.context._patience = AFTER_A_SIGNAL
        self.context._signal(signum)


def tell(context: ProcessContext, error: ProcessException) -> int:
    """
    Say on standard error what happened; the exit code.
    """
    first = error.failures[0]
    failed = {failure.rank: failure for failure in error.failures}
    if first.traceback:
        print(first.traceback, end="", file=sys.stderr)
    print(f"mp-spawn: {first.describe()}", file=sys.stderr)
    now = time.monotonic()
    rows = []
    for rank in context._ranks:
        failure = failed.get(rank.index)
        ended = failure.reason if failure else "ended well" if rank.process.exitcode == 0 else "ended by mp-spawn"
        rows.append(Row(rank.index, rank.pid, ended, (rank.ended_at or now) - rank.started_at, bool(failure)))
    show(rows)
    if not isinstance(error, ProcessExitedException):
        return 1
    return error.exit_code if error.exit_code >= 0 else 128 - error.exit_code
