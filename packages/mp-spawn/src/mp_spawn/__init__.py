"""A process launcher that tells the truth about its ranks.

    mp_spawn.spawn(fn, args, nprocs)             fn(rank, *args) in nprocs new processes, as torch has it
    mp_spawn.start_processes(fn, args, nprocs)   the same, by fork, forkserver or spawn, with more to choose
    mp_spawn.run(fn, args, nprocs)               the same, and returns the results
    mp-spawn -n 4 script.py                      the command

A rank that fails is an exception here, with the rank, its pid and the reason. Ranks live as long as this
process does, and not longer.
"""

# What this module needs for itself has an underscore: its other names are public.
import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from mp_core import __version__ as __version__
    from mp_spawn.context import ProcessContext
    from mp_spawn.errors import Failure, ProcessException, ProcessExitedException, ProcessRaisedException
    from mp_spawn.launch import ENV_VAR_PARALLEL_START, run, spawn, start_processes
    from mp_spawn.spawn_context import SpawnContext

# Where the names are. They are loaded when asked for: every rank imports this package and needs none of them.
_HOMES = {
    "ENV_VAR_PARALLEL_START": "launch",
    "Failure": "errors",
    "ProcessContext": "context",
    "ProcessException": "errors",
    "ProcessExitedException": "errors",
    "ProcessRaisedException": "errors",
    "SpawnContext": "spawn_context",
    "run": "launch",
    "spawn": "launch",
    "start_processes": "launch",
}

__all__ = [
    "ENV_VAR_PARALLEL_START",
    "Failure",
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnContext",
    "run",
    "spawn",
    "start_processes",
]


if not _typing.TYPE_CHECKING:  # a type checker that saw this would take any name for granted

    def __getattr__(name: str) -> _typing.Any:
        if name == "__version__":
            return _importlib.import_module("mp_core").__version__
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(_importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
