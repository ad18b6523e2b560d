"""Bad input, told in one line: what was given, and what to do."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Iterable, Sequence
from multiprocessing import current_process, get_all_start_methods
from multiprocessing.context import BaseContext
from typing import Any

__all__ = ["check_call", "check_options", "check_start_method", "cpus_for"]

OUTPUTS = ("inherit", "prefix", "capture")


def check_call(fn: Any, args: Any, nprocs: Any) -> None:
    """
    Raise `TypeError`, `ValueError` or `RuntimeError` unless ``fn(rank, *args)`` can be called in *nprocs* ranks.

    >>> check_call(print, [1], 2)
    Traceback (most recent call last):
    TypeError: args is a list, [1]; it must be a tuple, as in args=(x,) or args=tuple(args)
    """
    if not callable(fn):
        raise TypeError(f"fn is {fn!r}, which cannot be called; give a function of (rank, *args)")
    if current_process().daemon:
        raise RuntimeError("this is a daemonic process, which cannot have children; start it with daemon=False")
    if not isinstance(args, tuple):
        raise TypeError(
            f"args is a {type(args).__name__}, {_short(args)}; it must be a tuple, as in args=(x,) or args=tuple(args)"
        )
    at_least("nprocs", nprocs, 1, "the number of ranks")


def check_start_method(start_method: Any, context: Any) -> None:
    """
    Raise `ValueError` for a start method that there is not, `TypeError` for a context that is none.
    """
    if context is not None:
        if not isinstance(context, BaseContext):
            raise TypeError(f"context is {context!r}; give multiprocessing.get_context(...), or None")
    elif start_method not in get_all_start_methods():
        known = ", ".join(map(repr, get_all_start_methods()))
        raise ValueError(f"start_method={start_method!r} is unknown here; give one of {known}")


def check_options(threads_per_rank: Any, max_restarts: Any, output: Any) -> None:
    """
    Raise `TypeError` or `ValueError` for an option that cannot be meant.
    """
    if threads_per_rank is not None:
        at_least("threads_per_rank", threads_per_rank, 1, "the threads of each rank, or None to leave them")
    at_least("max_restarts", max_restarts, 0, "how often a rank may be started again")
    is_word = isinstance(output, str) and os.sep not in output and not os.path.isdir(output)
    if (is_word and output not in OUTPUTS) or not isinstance(output, str | os.PathLike):
        known = ", ".join(map(repr, OUTPUTS))
        raise ValueError(f"output={output!r} is none of {known}, nor a folder; write a new one as './{output}'")


def cpus_for(cpu_affinity: Any, nprocs: int) -> Sequence[frozenset[int]] | None:
    """
    The processors of each rank.

    >>> cpus_for([0, {1, 2}], 2)
    [frozenset({0}), frozenset({1, 2})]
    """
    if cpu_affinity is None:
        return None
    if not hasattr(os, "sched_setaffinity"):
        raise ValueError("cpu_affinity cannot be had on this system; leave it at None")
    if cpu_affinity == "spread":
        # Neighbours share caches: each rank gets a run of processors, as even as the numbers allow.
        mine = sorted(os.sched_getaffinity(0))
        if nprocs >= len(mine):
            return [frozenset({mine[rank * len(mine) // nprocs]}) for rank in range(nprocs)]
        cuts = [rank * len(mine) // nprocs for rank in range(nprocs + 1)]
        return [frozenset(mine[a:b]) for a, b in itertools.pairwise(cuts)]
    if isinstance(cpu_affinity, str) or not isinstance(cpu_affinity, Sequence) or len(cpu_affinity) != nprocs:
        raise ValueError(
            f"cpu_affinity={_short(cpu_affinity)} is not for {nprocs} ranks; "
            "give 'spread', or a sequence with a processor, or a set of them, for each rank"
        )
    return [frozenset(each) if isinstance(each, Iterable) else frozenset({each}) for each in cpu_affinity]


def at_least(name: str, value: Any, least: int, what: str) -> None:
    """
    Raise unless *value* is an integer not under *least*.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; give an integer, {what}") from None
    if number < least:
        raise ValueError(f"{name}={number} is too small; give {least} or more, {what}")


def _short(thing: Any) -> str:
    text = repr(thing)
    return text if len(text) <= 60 else text[:57] + "..."
