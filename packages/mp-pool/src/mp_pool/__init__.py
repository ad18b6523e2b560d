"""Process pools and executors that go on when a worker is killed. No NumPy.

mp_pool.Pool                 multiprocessing.Pool; when a worker dies, only the task that it was running fails
mp_pool.ProcessPoolExecutor  concurrent.futures.ProcessPoolExecutor, the same
mp_pool.WorkerLostError      how that task fails
mp_pool.TaskTimeoutError     how a task fails that took longer than timeout=
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mp_core import __version__ as __version__
    from mp_pool.errors import TaskTimeoutError, WorkerLostError
    from mp_pool.executor import ProcessPoolExecutor
    from mp_pool.pool import Pool

# Where the names are. They are loaded when asked for: a worker imports this package and needs none of them.
_HOMES = {
    "Pool": "pool",
    "ProcessPoolExecutor": "executor",
    "TaskTimeoutError": "errors",
    "WorkerLostError": "errors",
}

__all__ = ["Pool", "ProcessPoolExecutor", "TaskTimeoutError", "WorkerLostError"]


if not TYPE_CHECKING:  # a type checker that saw this would take any name for granted

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return importlib.import_module("mp_core").__version__
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
