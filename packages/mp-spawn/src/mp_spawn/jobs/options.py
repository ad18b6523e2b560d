"""The options of the launcher."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.context import BaseContext
from typing import Any, Literal, TypedDict

from mp_spawn.jobs.job import Env

Cpus = Literal["spread"] | Sequence[int | Iterable[int]] | None
Fn = Callable[..., Any]
Args = tuple[Any, ...] | list[Any]


class Options(TypedDict, total=False):
    """Parameters that torch's `start_processes` does not have, for type checkers."""

    context: BaseContext | None
    env: Env
    threads_per_rank: int | None
    cpu_affinity: Cpus
    output: str | os.PathLike[str]
    max_restarts: int
    faulthandler: bool
    seed: int | Iterable[int] | None


# These and the ones above decide how the ranks are started, on this machine and by an engine.
_TORCHS_TOO = ("daemon", "start_method")


def options_among(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return those *arguments* of `start_processes` or `run` that say how to start ranks.

    >>> options_among({"fn": print, "nprocs": 2, "daemon": True, "env": None, "join": True})
    {'daemon': True, 'env': None}
    """
    names = (*_TORCHS_TOO, *Options.__annotations__)
    return {name: arguments[name] for name in names if name in arguments}
