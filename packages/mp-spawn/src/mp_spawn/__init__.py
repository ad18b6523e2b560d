"""A process launcher that reports exactly how its ranks end.

    mp_spawn.spawn(fn, args, nprocs)             fn(rank, *args) in nprocs new processes, as in torch
    mp_spawn.start_processes(fn, args, nprocs)   the same, by fork, forkserver or spawn, with more options
    mp_spawn.run(fn, args, nprocs)               the same, and returns the results
    mp_spawn.run(fn, args, nprocs, engine="ray") the same on several machines, with mp-nodes
    mp_spawn.logging_to_parent()                 records of logging in children come to this process
    mp-spawn -n 4 script.py                      the command

A rank that fails raises an exception here, with the rank, its pid and the reason. No rank outlives this
process.
"""

# Imports that are not public have an underscore.
import importlib as _importlib
import os as _os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mp_core import __version__ as __version__
    from mp_core.children.random_streams import rng
    from mp_spawn.errors import Failure, ProcessException, ProcessExitedException, ProcessRaisedException
    from mp_spawn.jobs.context import ProcessContext
    from mp_spawn.jobs.launch import ENV_VAR_PARALLEL_START, SpawnContext, run, spawn, start_processes
    from mp_spawn.jobs.running_job import RunningJob
    from mp_spawn.log_records import LoggingToParent, logging_to_parent

# The module of each name. It is imported at the first use: every rank imports this package and needs none of them.
_MODULES = {
    "ENV_VAR_PARALLEL_START": "jobs.launch",
    "Failure": "errors",
    "LoggingToParent": "log_records",
    "ProcessContext": "jobs.context",
    "ProcessException": "errors",
    "ProcessExitedException": "errors",
    "ProcessRaisedException": "errors",
    "RunningJob": "jobs.running_job",
    "SpawnContext": "jobs.launch",
    "logging_to_parent": "log_records",
    "rng": "mp_core.children.random_streams",
    "run": "jobs.launch",
    "spawn": "jobs.launch",
    "start_processes": "jobs.launch",
}

_ANYWHERE = {"rng", *(name for name, module in _MODULES.items() if module == "errors")}

__all__ = [
    "ENV_VAR_PARALLEL_START",
    "Failure",
    "LoggingToParent",
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "RunningJob",
    "SpawnContext",
    "logging_to_parent",
    "rng",
    "run",
    "spawn",
    "start_processes",
]


if not TYPE_CHECKING:  # with this, a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return _importlib.import_module("mp_core").__version__
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # Windows cannot fork, and has neither the signals nor the pipes that ranks need.
        module = _MODULES[name] if name in _ANYWHERE or hasattr(_os, "fork") else "without_posix"
        from mp_core.system.imports import load

        value = globals()[name] = getattr(
            load(module if module.startswith("mp_core.") else f"{__name__}.{module}"), name
        )
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


del TYPE_CHECKING  # a name of this module is public
