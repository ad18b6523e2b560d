"""The types of the launcher's options."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.context import BaseContext
from typing import Any, Literal, TypedDict

from mp_spawn.job import Env

__all__ = ["Args", "Cpus", "Fn", "Options"]

Cpus = Literal["spread"] | Sequence[int | Iterable[int]] | None
Fn = Callable[..., Any]
Args = tuple[Any, ...]


class Options(TypedDict, total=False):
    """The parameters of `start_processes` that torch's has not, for type checkers."""

    context: BaseContext | None
    env: Env
    threads_per_rank: int | None
    cpu_affinity: Cpus
    output: str | os.PathLike[str]
    max_restarts: int
    faulthandler: bool
    engine: Any
