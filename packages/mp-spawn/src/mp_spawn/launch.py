"""The launcher: `spawn` and `start_processes` as torch has them, and `run`, which returns results."""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from typing import Any, Literal

from mp_spawn.checks import check_call, check_options, check_start_method, cpus_for
from mp_spawn.classic import Classic
from mp_spawn.context import ProcessContext
from mp_spawn.job import Env, Job, Starter
from mp_spawn.nursery import Nursery
from mp_spawn.output import output_for
from mp_spawn.pidfd import has_pidfds

__all__ = ["ENV_VAR_PARALLEL_START", "run", "spawn", "start_processes"]

#: torch starts ranks in parallel, under forkserver, when its variable of this kind is "1". Here they always
#: start in parallel, so that the variable may be set and changes nothing.
ENV_VAR_PARALLEL_START = "MP_SPAWN_PARALLEL_START"

Cpus = Literal["spread"] | Sequence[int | Iterable[int]] | None


def starter_for(start_method: str, context: BaseContext | None) -> Starter:
    """
    The way to start ranks by that method, or by a context that somebody brought.
    """
    if context is None:
        if start_method == "spawn" and has_pidfds() and not getattr(sys, "frozen", False):
            return Nursery()
        context = get_context(start_method)
    return Classic(context)


def prepare(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    *,
    daemon: bool = False,
    start_method: str = "spawn",
    context: BaseContext | None = None,
    env: Env = None,
    threads_per_rank: int | None = None,
    cpu_affinity: Cpus = None,
    output: str | os.PathLike[str] = "inherit",
    max_restarts: int = 0,
) -> Job:
    """
    A job that can be started, or one clear line about what is wrong with it.
    """
    check_call(fn, args, nprocs)
    check_start_method(start_method, context)
    check_options(threads_per_rank, max_restarts, output)
    return Job(
        fn,
        args,
        nprocs,
        starter_for(start_method, context),
        daemon,
        env,
        threads_per_rank,
        cpus_for(cpu_affinity, nprocs),
        output_for(output),
        max_restarts,
    )


def start_processes(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
    *,
    context: BaseContext | None = None,
    env: Env = None,
    threads_per_rank: int | None = None,
    cpu_affinity: Cpus = None,
    output: str | os.PathLike[str] = "inherit",
    max_restarts: int = 0,
) -> ProcessContext | None:
    """
    Call ``fn(rank, *args)`` in *nprocs* processes, all started before any of them is waited for.

    With *join* it waits for them and returns None; otherwise it returns a `ProcessContext` at once. *daemon*,
    *start_method* are as in multiprocessing. The thread that calls this may end, its ranks live on; with this
    process they die, even if it is killed.

    - *context*: a multiprocessing context to start them with, instead of *start_method*.
    - *env*: variables for the ranks, a mapping or a function of the rank that returns one.
    - *threads_per_rank*: sets ``OMP_NUM_THREADS`` and its like, without which each rank starts a thread
      per core. Under fork, libraries that are loaded already keep theirs.
    - *cpu_affinity*: ``"spread"``, or for each rank a processor or a set of them.
    - *output*: ``"inherit"``; ``"prefix"``, each line with its rank in front; ``"capture"``, see
      `ProcessContext.captured`; or a folder, which gets ``rank-0.out``, ``rank-0.err``, ….
    - *max_restarts*: how often each rank may be started again when it has failed; join() does it.

    Raises `TypeError`, `ValueError` or `pickle.PicklingError` before anything is started, and with *join*
    what `ProcessContext.join` raises.

    >>> start_processes(print, args=("says hello",), nprocs=2, output="capture")
    """
    job = prepare(
        fn,
        args,
        nprocs,
        daemon=daemon,
        start_method=start_method,
        context=context,
        env=env,
        threads_per_rank=threads_per_rank,
        cpu_affinity=cpu_affinity,
        output=output,
        max_restarts=max_restarts,
    )
    started = ProcessContext._of(job)
    if not join:
        return started
    started.join()
    return None


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """
    Call ``fn(rank, *args)`` in *nprocs* new processes: `start_processes` with the start method spawn.

    Another *start_method* gets a `FutureWarning`, and spawn. Errors are those of `start_processes`.

    >>> spawn(divmod, args=(1,), nprocs=2)
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
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    *,
    start_method: str = "spawn",
    timeout: float | None = None,
    grace_period: float | None = None,
    daemon: bool = False,
    context: BaseContext | None = None,
    env: Env = None,
    threads_per_rank: int | None = None,
    cpu_affinity: Cpus = None,
    output: str | os.PathLike[str] = "inherit",
    max_restarts: int = 0,
) -> list[Any]:
    """
    Call ``fn(rank, *args)`` in *nprocs* processes and return what they returned, by rank.

    The options are those of `start_processes`, *grace_period* that of `ProcessContext.join`. Raises what
    join() raises when a rank fails or ends without a result, and `TimeoutError` when they have not ended in
    *timeout* seconds, after ending them.

    >>> run(divmod, args=(2,), nprocs=4)
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    job = prepare(
        fn,
        args,
        nprocs,
        daemon=daemon,
        start_method=start_method,
        context=context,
        env=env,
        threads_per_rank=threads_per_rank,
        cpu_affinity=cpu_affinity,
        output=output,
        max_restarts=max_restarts,
    )
    job.wants_result = True
    started = ProcessContext._of(job)
    if not started.join(timeout, grace_period):
        slow = len(started.sentinels)
        started.terminate()
        raise TimeoutError(f"{slow} of {nprocs} ranks still ran after {timeout} s, and have been ended")
    return [_result(rank, blob) for rank, blob in enumerate(started._reports())]


def _result(rank: int, blob: bytes) -> Any:
    try:
        return pickle.loads(blob)
    except Exception as error:
        error.add_note(f"while unpickling the result of rank {rank}")
        raise
