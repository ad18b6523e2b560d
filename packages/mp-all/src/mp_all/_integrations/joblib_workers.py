"""Workers for joblib: an executor that stays from one call to the next.

The workers are spawned, because a fork of a process whose libraries have threads may hang in the child. Unlike other
children of spawn they do not import the main module: joblib's users need no ``if __name__ == "__main__"``.

Note [Environment of a worker]
------------------------------
BLAS and OpenMP read the number of their threads when they are loaded. A worker loads them when it unpickles its
arguments, and multiprocessing sends it one dictionary before: the preparation data. A value in that dictionary sets the
environment when it is unpickled. Where NumPy is loaded still earlier, because of ``MP_ALL=1``, threadpoolctl sets the
number of threads, if it is installed.

Note [Replaced attributes]
--------------------------
`multiprocessing.spawn.get_preparation_data`, by `take`: it changes the data of `_Process` only.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Mapping
from multiprocessing import spawn, util
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from mp_core.system.pickled_call import PickledCall
from mp_pool import ProcessPoolExecutor


class Workers:
    """An executor, and the number of calls that use it now."""

    def __init__(self, n_jobs: int, environment: dict[str, str], options: Mapping[str, Any], idle: float) -> None:
        self.executor = ProcessPoolExecutor(n_jobs, _Context(environment), **options)
        self.users = 0
        self.idle = idle
        self._timer: threading.Timer | None = None

    def use(self) -> Workers:
        """Add a call."""
        self.users += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self

    def give_back(self, kill: bool = False) -> None:
        """Remove a call. With *kill*, end the workers if no other call uses them."""
        with _lock:
            self.users -= 1
            if self.users == 0:
                if kill:
                    _forget(self)
                elif self is _current.get("workers"):
                    self._timer = threading.Timer(self.idle, self._end_if_idle)
                    self._timer.daemon = True
                    self._timer.start()
                    return
                else:
                    self.executor.shutdown(wait=False)
            kill = kill and self.users == 0
        if kill:
            self.executor.kill_workers()

    def _end_if_idle(self) -> None:
        with _lock:
            if self.users:
                return
            _forget(self)
        self.executor.shutdown(wait=False)


_lock = threading.RLock()
_current: dict[str, Any] = {}


def take(n_jobs: int, environment: dict[str, str], options: Mapping[str, Any], idle: float) -> Workers:
    """
    Return the workers of the last call if they are as asked for, and new ones otherwise.

    They end after *idle* seconds without a call.
    """
    key = os.getpid(), n_jobs, environment, dict(options)
    with _lock:
        found: Workers | None = _current.get("workers")
        if found is not None and _current["key"] == key and not found.executor._broken:
            found.idle = idle
            return found.use()
        spawn.get_preparation_data = _preparation_data
        if found is None or _current["key"][0] != key[0]:
            # At its end a child of multiprocessing joins its own children, after it has run this.
            util.Finalize(None, _end, exitpriority=100)
        new = Workers(n_jobs, environment, options, idle)
        own = found is not None and _current["key"][0] == key[0]  # not those of a parent that forked
        _current.update(workers=new, key=key)
        if own and found is not None and found.users == 0:
            found.use()
            found.give_back()
        return new.use()


def _end() -> None:
    with _lock:
        found: Workers | None = _current.get("workers")
        own = found is not None and _current["key"][0] == os.getpid()
        _current.clear()
    if own and found is not None:
        found.executor.shutdown(wait=False)


def _forget(workers: Workers) -> None:
    if _current.get("workers") is workers:
        _current.clear()


def limit_threads(count: int) -> None:
    """In a worker: set the number of threads of libraries that were loaded before the environment was set."""
    if "_mp_all_startup" in sys.modules and importlib.util.find_spec("threadpoolctl") is not None:
        import threadpoolctl

        threadpoolctl.threadpool_limits(count)


class _Process(SpawnProcess):
    environment: dict[str, str]

    @staticmethod
    def _Popen(process: Any) -> Any:
        _starting.environment = process.environment
        try:
            return SpawnProcess._Popen(process)
        finally:
            _starting.environment = None


class _Context(SpawnContext):
    """The context of spawn, whose processes have *environment* and do not import the main module."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    def Process(self, *args: Any, **kwds: Any) -> _Process:  # type: ignore[override]
        process = _Process(*args, **kwds)
        process.environment = self._environment
        return process


class _Starting(threading.local):
    """The environment of the process that this thread starts."""

    environment: dict[str, str] | None = None


_starting = _Starting()
_standard_preparation_data: Any = spawn.get_preparation_data


def _preparation_data(name: str) -> Any:
    data = _standard_preparation_data(name)
    if _starting.environment is not None:
        data.pop("init_main_from_name", None)
        data.pop("init_main_from_path", None)
        # A change of os.environ, without a module that the child would have to find.
        data["environment"] = PickledCall(exec, f"import os; os.environ.update({_starting.environment!r})")
    return data
