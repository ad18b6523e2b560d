"""The launcher: `spawn` and `start_processes` with torch's signatures, and `run`, which returns results."""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterable
from multiprocessing import get_context, get_start_method
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Literal, TypeVar, Unpack, overload

from mp_core.system import engine_lookup
from mp_spawn.jobs.context import ProcessContext
from mp_spawn.jobs.context_launcher import ContextLauncher
from mp_spawn.jobs.job import (
    OF_A_FORK,
    OF_AN_INTERPRETER,
    Env,
    Job,
    Launcher,
    are_descriptors_few,
    check_options,
    check_room,
    check_start_method,
    checked_args,
)
from mp_spawn.jobs.options import Args, Cpus, Fn, Options, options_among
from mp_spawn.jobs.running_job import RunningJob, end_late
from mp_spawn.jobs.time_limits import checked_seconds
from mp_spawn.jobs.zygote import ZygoteLauncher
from mp_spawn.output.destinations import output_for
from mp_spawn.output.streams import Streams
from mp_spawn.output.tee import Tee
from mp_spawn.ranks.process_handle import has_pidfds, has_socketpairs

T = TypeVar("T")

#: torch starts ranks in parallel, under forkserver, if its variable of this kind is "1". Here they always start in
#: parallel, so that the variable changes nothing.
ENV_VAR_PARALLEL_START = "MP_SPAWN_PARALLEL_START"


def launcher_for(start_method: str, context: BaseContext | None, frugal: bool = False) -> Launcher:
    """Return the launcher for that method, or for the user's context."""
    if context is None:
        is_frozen = getattr(sys, "frozen", False)
        if start_method == "spawn" and not (is_frozen or frugal) and has_pidfds() and has_socketpairs():
            return ZygoteLauncher()
        context = get_context(start_method)
    return ContextLauncher(context)


def prepare(
    fn: Callable[..., Any],
    args: Args = (),
    nprocs: int = 1,
    *,
    daemon: bool = False,
    start_method: str | None = "spawn",
    context: BaseContext | None = None,
    env: Env = None,
    threads_per_rank: int | None = None,
    cpu_affinity: Cpus = None,
    output: str | os.PathLike[str] | Streams = "inherit",
    max_restarts: int = 0,
    faulthandler: bool = True,
    seed: Any = None,
    wants_result: bool = False,
    own_group: bool = False,
    is_program: bool = False,
    restarts_all: bool = False,
) -> Job:
    """Return a job that can be started, or raise an error that names the wrong option in one line."""
    args = checked_args(fn, args, nprocs)
    if start_method is None and context is None:
        start_method = get_start_method()
    check_start_method(start_method, context)
    if is_program:
        start_method = "spawn"  # a program cannot tell
    if (context.get_start_method() if context else start_method) != "fork":
        from mp_core.children.main_module import check_guard  # a fork needs no guard

        check_guard()
    check_options(threads_per_rank, max_restarts, output)
    to = Tee(output) if isinstance(output, Streams) else output_for(output)
    frugal = are_descriptors_few(nprocs, to)
    launcher = launcher_for(start_method or "", context, frugal)
    check_room(nprocs, OF_AN_INTERPRETER if launcher.start_method == "spawn" and launcher.one_by_one else OF_A_FORK)
    return Job(
        fn,
        args,
        nprocs,
        launcher,
        daemon,
        env,
        threads_per_rank,
        _cpus_for(cpu_affinity, nprocs),
        to,
        max_restarts,
        wants_result,
        own_group,
        faulthandler,
        is_program,
        restarts_all,
        frugal=frugal,
        seed=_checked_seed(seed),
    )


def _cpus_for(cpu_affinity: Cpus, nprocs: int) -> Any:
    if cpu_affinity is None:
        return None
    from mp_core.children.cpu_affinity import cpus_for  # few calls need it

    return cpus_for(cpu_affinity, nprocs, "ranks")


def _checked_seed(seed: Any) -> Any:
    if seed is None:
        return None
    from mp_core.children.random_streams import checked_seed

    return checked_seed(seed)


# Overloads for type checkers: with `join` it returns None, else a context; with an engine what all jobs can do.
@overload
def start_processes(
    fn: Fn,
    args: Args = ...,
    nprocs: int = ...,
    join: Literal[True] = ...,
    daemon: bool = ...,
    start_method: str | None = ...,
    *,
    engine: object = ...,
    **options: Unpack[Options],
) -> None: ...
@overload
def start_processes(
    fn: Fn,
    args: Args = ...,
    nprocs: int = ...,
    *,
    join: Literal[False],
    daemon: bool = ...,
    start_method: str | None = ...,
    engine: None = ...,
    **options: Unpack[Options],
) -> ProcessContext: ...
@overload
def start_processes(
    fn: Fn,
    args: Args = ...,
    nprocs: int = ...,
    *,
    join: Literal[False],
    daemon: bool = ...,
    start_method: str | None = ...,
    engine: object,
    **options: Unpack[Options],
) -> RunningJob: ...
@overload
def start_processes(
    fn: Fn,
    args: Args = ...,
    nprocs: int = ...,
    join: bool = ...,
    daemon: bool = ...,
    start_method: str | None = ...,
    *,
    engine: None = ...,
    **options: Unpack[Options],
) -> ProcessContext | None: ...
def start_processes(
    fn: Callable[..., Any],
    args: Args = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str | None = "spawn",
    *,
    context: BaseContext | None = None,
    env: Env = None,
    threads_per_rank: int | None = None,
    cpu_affinity: Cpus = None,
    output: str | os.PathLike[str] = "inherit",
    max_restarts: int = 0,
    faulthandler: bool = True,
    seed: int | Iterable[int] | None = None,
    engine: Any = None,
) -> RunningJob | None:
    """
    Call ``fn(rank, *args)`` in *nprocs* processes, all started before any of them is waited for.

    The ranks outlive the thread that calls this. They die with this process, even if it is killed.

    Parameters
    ----------
    fn : callable
        Called in each process with its rank, 0 to *nprocs* - 1, and *args*. With cloudpickle installed it may be a
        lambda, or live in a notebook.
    args : tuple or list
        Its arguments after the rank. Arrays in shared memory are shared with every rank.
    nprocs : int
        The number of ranks.
    join : bool
        Wait for the ranks. Otherwise return a `ProcessContext` at once.
    daemon : bool
        As in `multiprocessing.Process`.
    start_method : {"spawn", "fork", "forkserver"}
        As in `multiprocessing.get_context`; None for `multiprocessing.get_start_method`.
    context : multiprocessing context
        The context that starts them, instead of *start_method*.
    env : mapping, or callable that takes a rank and returns one
        Variables for the ranks' environment.
    threads_per_rank : int
        Sets ``OMP_NUM_THREADS`` and the like, without which each rank starts a thread per core. Under fork, libraries
        that are loaded already keep their threads.
    cpu_affinity : {"spread"} or sequence
        Spread the ranks over the processors; or for each rank a processor's number or a set of them.
    output : {"inherit", "prefix", "capture"} or path
        ``"prefix"``: each line with its rank in front. ``"capture"``: see `ProcessContext.captured`. A folder gets
        ``rank-0.out``, ``rank-0.err``, ….
    max_restarts : int
        How often each rank may be started again after a failure; `ProcessContext.join` does it.
    faulthandler : bool
        Record the Python stacks of a rank that ends by SIGSEGV and the like, in ``Failure.stack``, and of one that is
        too slow. A program that has enabled ``faulthandler`` itself keeps its own.
    seed : int or sequence of int
        Makes `rng` in each rank a random generator of its own, the same in each run.
    engine : {"ray", "local"} or engine
        Run the ranks on other machines: an object like ``mp_nodes.Ray()``, or its name. Arrays are then shared
        within a machine, and writes do not reach other machines. It needs mp-nodes.

    Returns
    -------
    ProcessContext, RunningJob or None
        None with *join*; with *engine* an object with the methods of `RunningJob`.

    Raises
    ------
    TypeError, ValueError, pickle.PicklingError
        An option is wrong, or *fn* and *args* cannot be pickled. Nothing has been started.
    ProcessRaisedException, ProcessExitedException
        With *join*: a rank failed. See `ProcessContext.join`.

    See Also
    --------
    run : the same, and returns the results.

    Examples
    --------
    >>> mp.start_processes(print, args=("says hello",), nprocs=2, output="capture")
    """
    options = options_among(locals())
    if engine is not None:
        start = engine_lookup.load("start", f"engine={engine!r}")
        return start(engine, fn, args, nprocs, join, **options)  # type: ignore[no-any-return]
    job = prepare(fn, args, nprocs, **options)
    if not join:
        return ProcessContext._of(job)
    ProcessContext._run(job)
    return None


@overload
def spawn(
    fn: Fn,
    args: Args = ...,
    nprocs: int = ...,
    join: Literal[True] = ...,
    daemon: bool = ...,
    start_method: str = ...,
) -> None: ...
@overload
def spawn(
    fn: Fn, args: Args = ..., nprocs: int = ..., *, join: Literal[False], daemon: bool = ..., start_method: str = ...
) -> ProcessContext: ...
@overload
def spawn(
    fn: Fn, args: Args = ..., nprocs: int = ..., join: bool = ..., daemon: bool = ..., start_method: str = ...
) -> ProcessContext | None: ...
def spawn(
    fn: Callable[..., Any],
    args: Args = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """
    Call ``fn(rank, *args)`` in *nprocs* new processes: `start_processes` with the start method spawn.

    Parameters
    ----------
    fn, args, nprocs, join, daemon
        As for `start_processes`.
    start_method : "spawn"
        For another one, this warns with `FutureWarning` and uses spawn.

    Returns
    -------
    ProcessContext or None
        None with *join*.

    Raises
    ------
    TypeError, ValueError, pickle.PicklingError, ProcessRaisedException, ProcessExitedException
        As `start_processes`.

    Examples
    --------
    >>> mp.spawn(divmod, args=(1,), nprocs=2)  # divmod(0, 1) and divmod(1, 1)
    """
    if start_method != "spawn":
        warnings.warn(
            f"spawn() always uses the start method spawn (got start_method={start_method!r}); "
            "for another one call start_processes()",
            FutureWarning,
            stacklevel=2,
        )
    return start_processes(fn, args, nprocs, join, daemon, start_method="spawn")


def run(
    fn: Callable[..., T],
    args: Args = (),
    nprocs: int = 1,
    *,
    start_method: str | None = "spawn",
    timeout: float | None = None,
    grace_period: float | None = None,
    daemon: bool = False,
    context: BaseContext | None = None,
    env: Env = None,
    threads_per_rank: int | None = None,
    cpu_affinity: Cpus = None,
    output: str | os.PathLike[str] = "inherit",
    max_restarts: int = 0,
    faulthandler: bool = True,
    seed: int | Iterable[int] | None = None,
    engine: Any = None,
) -> list[T]:
    """
    Call ``fn(rank, *args)`` in *nprocs* processes and return the results.

    Parameters
    ----------
    fn, args, nprocs
        As for `start_processes`.
    start_method : {"spawn", "fork", "forkserver"}
        As in `multiprocessing.get_context`; None for `multiprocessing.get_start_method`.
    timeout : float
        Time limit for the ranks in seconds; no limit if None.
    grace_period : float
        Seconds for the other ranks after the first failure; see `ProcessContext.join`.
    daemon, context, env, threads_per_rank, cpu_affinity, output, max_restarts, faulthandler, seed, engine
        As for `start_processes`.

    Returns
    -------
    list
        By rank.

    Raises
    ------
    TypeError, ValueError, pickle.PicklingError
        An option is wrong, or *fn* and *args* cannot be pickled. Nothing has been started.
    ProcessRaisedException, ProcessExitedException
        A rank failed, or ended without a result.
    TimeoutError
        The ranks still ran after *timeout* seconds, and have been ended.

    Examples
    --------
    >>> mp.run(divmod, args=(2,), nprocs=4)
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    options = options_among(locals())
    timeout, grace_period = checked_seconds("timeout", timeout), checked_seconds("grace_period", grace_period)
    if engine is not None:
        run_on = engine_lookup.load("run", f"engine={engine!r}")
        blobs = run_on(engine, fn, args, nprocs, timeout, grace_period, **options)
        return [_result(rank, blob) for rank, blob in enumerate(blobs)]
    job = prepare(fn, args, nprocs, **options, wants_result=True)
    started, ended = ProcessContext._run(job, timeout, grace_period)
    if not ended:
        # From a call: in a variable of this frame, which its traceback has, the exception would keep *args*.
        raise end_late(started, job.output, timeout or 0.0)
    return [_result(rank, blob) for rank, blob in enumerate(started._supervisor.reports())]


def _result(rank: int, blob: bytes) -> Any:
    try:
        return pickle.loads(blob)
    except Exception as error:
        error.add_note(f"while unpickling the result of rank {rank}")
        raise


class SpawnContext(ProcessContext):
    """
    The old name of `ProcessContext`, which torch also has; it warns.

    Parameters
    ----------
    processes, error_files
        As its attributes.

    Examples
    --------
    >>> issubclass(mp.SpawnContext, mp.ProcessContext)
    True
    """

    def __init__(self, processes: list[BaseProcess], error_files: list[str]) -> None:
        warnings.warn("SpawnContext is an old name; use ProcessContext", DeprecationWarning, stacklevel=2)
        super().__init__(processes, error_files)
