"""The launcher's names on a system without POSIX's processes, such as Windows: each use is an error that says so."""

from __future__ import annotations

import functools
import sys
from typing import Any, NoReturn

ENV_VAR_PARALLEL_START = "MP_SPAWN_PARALLEL_START"


def _refuse(name: str, *args: Any, **options: Any) -> NoReturn:
    raise NotImplementedError(
        f"{name} is not available on {sys.platform}: it needs the signals and the pipes of POSIX, which Linux and "
        "macOS have; use multiprocessing.Process or multiprocessing.Pool"
    )


spawn, start_processes, run, logging_to_parent = (
    functools.partial(_refuse, f"mp_spawn.{name}") for name in ("spawn", "start_processes", "run", "logging_to_parent")
)


class ProcessContext:
    """Raise a NotImplementedError when one is made."""

    def __init__(self, *args: Any, **options: Any) -> None:
        _refuse(f"mp_spawn.{type(self).__name__}")


class RunningJob(ProcessContext): ...


class SpawnContext(ProcessContext): ...


class LoggingToParent(ProcessContext): ...
