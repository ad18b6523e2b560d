"""The command `mp-spawn`: run a script, module or program in N ranks, and exit with the code of the first failure."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from mp_core.system import engine_lookup
from mp_core.system.descriptor import inheritable
from mp_spawn.command.command_line import check, parsed
from mp_spawn.command.command_options import (
    Recording,
    bound_to,
    call_of,
    check_shown,
    common_variables,
    count_per_node,
    count_ranks,
    devices_by_rank,
    output_of,
    recorder_of,
    restarts_all,
    with_folder,
)
from mp_spawn.command.several_nodes import number_in, several_nodes
from mp_spawn.errors import ProcessException
from mp_spawn.jobs.context import ProcessContext
from mp_spawn.jobs.job import are_descriptors_few
from mp_spawn.jobs.launch import prepare
from mp_spawn.jobs.running_job import end_late
from mp_spawn.output.destinations import NoThreadError, Output, Prefix, output_for
from mp_spawn.output.messages import messages, tell, telling_records
from mp_spawn.output.terminal import TIMED_OUT, Row, progress, write_end
from mp_spawn.ranks.rank_variables import INSIDE, place_variables
from mp_spawn.ranks.signals import FORWARDED, Ended, Forwarding

TOO_FEW = "too few descriptors are left to read the output of the ranks, so lines come without a rank; see ulimit -n"


def main(arguments: list[str] | None = None) -> int:
    """
    Run the command and return its exit code.

    >>> main(["-n", "2", "this_file_is_not_there.py"])
    2
    """
    open_streams()
    messages.begin()
    with telling_records():
        code = run(sys.argv[1:] if arguments is None else arguments)
    try:
        messages.finish()
    except KeyboardInterrupt:  # nobody reads them
        return 128 + signal.SIGINT
    return code


def run(arguments: list[str]) -> int:
    """Run the command as *arguments* say; some of its messages may still be on their way."""
    try:
        chosen = parsed(arguments)
        check(chosen)
        recording = recorder_of(chosen.timeline)
    except (OSError, TypeError, ValueError) as refusal:
        return refuse(refusal)
    return launch(chosen, recording)


def refuse(refusal: Exception) -> int:
    """Print why the command does nothing, and return its exit code."""
    tell(f"mp-spawn: {refusal}")
    return 2


def launch(chosen: argparse.Namespace, recording: Recording) -> int:
    """Run the ranks and return the exit code."""
    try:
        if asked := several_nodes(chosen):
            on_nodes: Callable[[argparse.Namespace, Recording], int] = engine_lookup.load("command", asked)
            return on_nodes(chosen, recording)
        if chosen.nprocs is None:
            nprocs = count_per_node(chosen.nproc_per_node)
        else:
            nprocs = count_ranks(chosen.nprocs, chosen.threads_per_rank, chosen.gpus_per_rank)
        master = master_of(chosen)
        common = common_variables(chosen, nprocs)
        fn, args = call_of(chosen)
        devices = devices_by_rank(chosen.gpus_per_rank, nprocs)
        output = output_of(chosen)
        check_shown(output, nprocs)
        output = with_folder(output)
        too_few = output == "prefix" and are_descriptors_few(nprocs, output_for(output), 0)
        if too_few:
            output = chosen.output = "inherit"
        job = prepare(
            fn,
            args,
            nprocs,
            start_method=chosen.start_method,
            env=lambda rank: {
                **place_variables(rank, nprocs, (rank, nprocs), (0, 1), master),
                **devices.get(rank, {}),
                INSIDE: "1",
                **common,
            },
            threads_per_rank=chosen.threads_per_rank,
            cpu_affinity=bound_to(chosen.bind, nprocs),
            output=output,
            max_restarts=chosen.max_restarts,
            # A program not written in Python would die of the signal that asks for stacks.
            faulthandler=chosen.faulthandler and not chosen.no_python,
            # The terminal's Ctrl-C is sent to this process only, which forwards every signal once.
            own_group=True,
            is_program=True,
            restarts_all=restarts_all(chosen),
        )
    except (ImportError, TypeError, ValueError) as refusal:
        return refuse(refusal)
    if too_few:
        tell(f"mp-spawn: {TOO_FEW}")
    job.time_to_end = chosen.shutdown_timeout
    if chosen.no_python:  # a shell does not send on what it is sent
        job.to_group |= frozenset(FORWARDED)
    job.gives_terminal = (nprocs == 1 or chosen.stdin is not None) and has_terminal()
    job.gives_stdin = is_open(0) and (job.gives_terminal or not os.isatty(0))
    job.passed_on = inheritable()
    if job.gives_terminal and isinstance(job.output, Prefix):
        job.output.prompts = 0
    with recording(), Forwarding(job.frugal) as signals:
        job.between_starts = signals.raise_ended
        try:
            context = ProcessContext._of(job, signals)
        except (Ended, OSError, NoThreadError) as stopped:
            return not_started(stopped)
        try:
            # Ranks that write to the terminal themselves, or ask there, would overwrite the progress.
            is_shared = chosen.output == "inherit" or job.gives_terminal
            supervisor = context._supervisor
            with nullcontext() if is_shared else progress(nprocs, supervisor.count_ended, supervisor.is_given_up):
                error = outcome(context, job.output, chosen.timeout)
        except (Ended, OSError, NoThreadError) as stopped:  # the start of ranks that had failed
            context.terminate()
            return not_started(stopped)
        except BaseException:
            context.terminate()
            raise
        return conclude(context, job.output, error)


def conclude(context: ProcessContext, output: Output, error: ProcessException | TimeoutError | None) -> int:
    """Write what is left to write, as long as somebody reads it, and return the exit code."""
    supervisor = context._supervisor
    is_written = write_end(output, error, partial(table_of, context), supervisor.is_given_up)
    if isinstance(error, TimeoutError):
        return TIMED_OUT
    if error is not None:
        return error.failures[0].code()
    # Ranks that have ended well are no success if a signal that came later has cost their output.
    return 0 if is_written else 128 + supervisor.told_by


def not_started(stopped: Ended | OSError | NoThreadError) -> int:
    """Print why the ranks do not run, and return the exit code."""
    if isinstance(stopped, Ended):
        name = signal.Signals(stopped.signum).name
        tell(f"mp-spawn: {name} came before all ranks had been started")
        return 128 + stopped.signum
    tell(f"mp-spawn: {stopped}")
    return 1


def outcome(context: ProcessContext, output: Output, timeout: float | None) -> ProcessException | TimeoutError | None:
    """Wait for the ranks and return the exception, if there is one. The caller ends them when it raises one itself."""
    try:
        if context.join(timeout):
            return None
    except ProcessException as error:
        return error
    return end_late(context, output, timeout or 0.0)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def open_streams() -> None:
    """Open the standard streams that are closed: otherwise a pipe of the launcher gets the number of one."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if not is_open(fd):
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number, which is fd
            setattr(sys, name, open(fd, "w" if fd else "r", closefd=False, encoding="utf-8"))  # noqa: SIM115


def has_terminal() -> bool:
    """Tell whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def master_of(chosen: argparse.Namespace) -> tuple[str, int | str]:
    """Return the address and the port at which the ranks of one machine may meet: the given ones, or free ones."""
    # A job inside a rank is another job, whose ranks meet elsewhere.
    environ = {} if chosen.standalone or INSIDE in os.environ else os.environ
    host = chosen.master_addr or environ.get("MASTER_ADDR") or "127.0.0.1"
    port = chosen.master_port or number_in(environ, "MASTER_PORT", 0)
    if str(port) != "0":
        return host, port
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return host, free.getsockname()[1]


def table_of(context: ProcessContext, error: ProcessException) -> list[Row]:
    """Return the rows of all ranks."""
    failed = {failure.rank: failure for failure in error.failures}
    rows = []
    for rank in context._ranks:
        failure = failed.get(rank.index)
        ended = failure.reason if failure else "ended well" if rank.process.exitcode == 0 else "ended by mp-spawn"
        rows.append(Row(rank.index, rank.pid, ended, rank.seconds, bool(failure)))
    return rows
