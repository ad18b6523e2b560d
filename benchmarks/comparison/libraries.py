"""The pools that are compared, behind one interface: two workers, `submit`, and `close`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["LIBRARIES", "Library"]

Wait = Callable[[float], Any]


class Library:
    """A pool of two workers."""

    name: str
    needs = ""

    def __init__(self, initializer: Callable[[], object] | None = None) -> None:
        self.api: Any = importlib.import_module(self.needs) if self.needs else None
        self.open(initializer)

    def open(self, initializer: Callable[[], object] | None) -> None:
        """Start the pool."""
        raise NotImplementedError

    def submit(self, function: Callable[..., Any], *args: Any) -> Wait:
        """Start a task; return a function that waits for so many seconds and returns its result."""
        raise NotImplementedError

    def submit_limited(self, seconds: float, function: Callable[..., Any], *args: Any) -> Wait:
        """Do as `submit`, for a task that is ended after *seconds*, if the library can do that."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave the pool early, as `with` does after an exception."""
        raise NotImplementedError


class StandardPool(Library):
    name, needs = "`multiprocessing.Pool`", "multiprocessing"

    def open(self, initializer: Callable[[], object] | None) -> None:
        self.pool = self.api.Pool(2, initializer)

    def submit(self, function: Callable[..., Any], *args: Any) -> Wait:
        return self.pool.apply_async(function, args).get

    def close(self) -> None:
        self.pool.terminate()
        self.pool.join()


class OurPool(StandardPool):
    name, needs = "`mp_all.Pool`", "mp_all"

    def submit_limited(self, seconds: float, function: Callable[..., Any], *args: Any) -> Wait:
        self.limited = self.api.Pool(2, timeout=seconds)
        return self.limited.apply_async(function, args).get

    def close(self) -> None:
        super().close()
        if hasattr(self, "limited"):
            self.limited.terminate()


class StandardExecutor(Library):
    name, needs = "`ProcessPoolExecutor`", "concurrent.futures"

    def open(self, initializer: Callable[[], object] | None) -> None:
        self.pool = self.api.ProcessPoolExecutor(2, initializer=initializer)

    def submit(self, function: Callable[..., Any], *args: Any) -> Wait:
        return self.pool.submit(function, *args).result

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


class OurExecutor(StandardExecutor):
    name, needs = "`mp_all.ProcessPoolExecutor`", "mp_all"

    def submit_limited(self, seconds: float, function: Callable[..., Any], *args: Any) -> Wait:
        self.limited = self.api.ProcessPoolExecutor(2, timeout=seconds)
        return self.limited.submit(function, *args).result

    def close(self) -> None:
        self.pool.terminate_workers()
        if hasattr(self, "limited"):
            self.limited.shutdown()


class Loky(StandardExecutor):
    name, needs = "loky", "joblib.externals.loky"

    def close(self) -> None:
        self.pool.shutdown(kill_workers=True)


class Mpire(Library):
    name, needs = "mpire", "mpire"

    def open(self, initializer: Callable[[], object] | None) -> None:
        self.pool = self.api.WorkerPool(2, keep_alive=True)
        self.initializer = initializer

    def submit(self, function: Callable[..., Any], *args: Any) -> Wait:
        return self.pool.apply_async(function, args, worker_init=self.initializer).get

    def submit_limited(self, seconds: float, function: Callable[..., Any], *args: Any) -> Wait:
        return self.pool.apply_async(function, args, task_timeout=seconds).get

    def close(self) -> None:
        self.pool.terminate()


class Pebble(Library):
    name, needs = "pebble", "pebble"

    def open(self, initializer: Callable[[], object] | None) -> None:
        self.pool = self.api.ProcessPool(2, initializer=initializer)

    def submit(self, function: Callable[..., Any], *args: Any) -> Wait:
        return self.pool.schedule(function, args=args).result

    def submit_limited(self, seconds: float, function: Callable[..., Any], *args: Any) -> Wait:
        return self.pool.schedule(function, args=args, timeout=seconds).result

    def close(self) -> None:
        self.pool.stop()
        self.pool.join()


class Ray(Library):
    name, needs = "Ray", "ray"

    def open(self, initializer: Callable[[], object] | None) -> None:
        hook = {"worker_process_setup_hook": initializer} if initializer else {}
        self.api.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=hook)

    def submit(self, function: Callable[..., Any], *args: Any) -> Wait:
        reference = self.api.remote(function).options(max_retries=0).remote(*args)
        return lambda seconds: self.api.get(reference, timeout=seconds)

    def close(self) -> None:
        self.api.shutdown()


LIBRARIES: dict[str, type[Library]] = {
    "ours": OurPool,
    "ours-executor": OurExecutor,
    "stdlib": StandardPool,
    "stdlib-executor": StandardExecutor,
    "loky": Loky,
    "mpire": Mpire,
    "pebble": Pebble,
    "ray": Ray,
}
