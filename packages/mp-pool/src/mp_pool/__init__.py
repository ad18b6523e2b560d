"""Process pools and executors that survive the death of a worker. No NumPy.

mp_pool.Pool                 multiprocessing.Pool; when a worker dies, only the task that it was running fails
mp_pool.ProcessPoolExecutor  concurrent.futures.ProcessPoolExecutor; likewise
mp_pool.WorkerLostError      the exception of that task
mp_pool.TaskTimeoutError     the exception of a task that took longer than timeout=
mp_pool.TaskMemoryError      the exception of a task that used more memory than memory_limit=
mp_pool.rng                  the random generator of a task, with seed=
mp_pool.worker_index         the number of the worker that runs a task
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mp_core import __version__ as __version__
    from mp_core.children.random_streams import rng
    from mp_pool.errors import TaskMemoryError, TaskTimeoutError, WorkerLostError
    from mp_pool.executor import ProcessPoolExecutor
    from mp_pool.pool import Pool
    from mp_pool.workers.own_index import worker_index

# The module of each name. It is imported at the first use: a worker imports this package and needs none of them.
_MODULES = {
    "Pool": "pool",
    "ProcessPoolExecutor": "executor",
    "TaskMemoryError": "errors",
    "TaskTimeoutError": "errors",
    "WorkerLostError": "errors",
    "rng": "mp_core.children.random_streams",
    "worker_index": "mp_pool.workers.own_index",
}

__all__ = [
    "Pool",
    "ProcessPoolExecutor",
    "TaskMemoryError",
    "TaskTimeoutError",
    "WorkerLostError",
    "rng",
    "worker_index",
]


if not TYPE_CHECKING:  # with this, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return importlib.import_module("mp_core").__version__
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from mp_core.system.imports import load

        module = _MODULES[name]
        value = globals()[name] = getattr(load(module if "." in module else f"{__name__}.{module}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


del TYPE_CHECKING  # a name of this module is public
