"""The pools that are compared, behind one interface: two workers, `submit`, and `close`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, ClassVar

__all__ = ["LIBRARIES", "Library"]

Wait = Callable[[float], Any]


class Library:
    """A pool of two workers."""

    name: str
    needs = ""
    #: A function of one item that draws from the library's random numbers, if it has any.
    draw: Callable[[int], float] | None = None
    #: Options of a pool whose tasks have pools.
    outside: ClassVar[dict[str, Any]] = {}

    def __init__(self, initializer: Callable[[], object] | None = None, **options: Any) -> None:
        self.api: Any = importlib.import_module(self.needs) if self.needs else None
        self.options = options
        self.open(initializer)

    def open(self, initializer: Callable[[], object] | None) -> None:
        """Start the pool."""
        raise NotImplementedError

    def submit(self, function: Callable[..., Any], *args: Any) -> Wait:
        """Start a task; return a function that waits for so many seconds and returns its result."""
        raise NotImplementedError

    def submit_limited(self, seconds: float, function: Callable[..., Any], *args: Any) -> Wait:
        """Like `submit`, for a task that is ended after *seconds*, if the library can do that."""
        raise NotImplementedError

    def submit_repeated(self, times: int, after: type[Exception], function: Callable[..., Any], *args: Any) -> Wait:
        """Like `submit`, for a task that is repeated after such an exception, if the library can do that."""
        raise NotImplementedError

    def submit_small(self, nbytes: int, function: Callable[..., Any], *args: Any) -> Wait:
        """Like `submit`, for a task that is ended with more memory than that, if the library can do that."""
        raise NotImplementedError

    def submit_cancellable(self, function: Callable[..., Any], *args: Any) -> tuple[Callable[[], object], Wait]:
        """Return also a function that cancels the task while it runs, if the library can do that."""
        raise NotImplementedError

    def map(self, function: Callable[[Any], Any], items: list[Any]) -> Any:
        """Return the results for all items."""
        return [wait(10.0) for wait in [self.submit(function, item) for item in items]]

    def queue(self) -> Any:
        """Return a queue."""
        return importlib.import_module("multiprocessing").Queue()

    def close(self) -> None:
        """Leave the pool early, as `with` does after an exception."""
        raise NotImplementedError


class StandardPool(Library):
    name, needs = "`multiprocessing.Pool`", "multiprocessing"

    def open(self, initializer: Callable[[], object] | None) -> None:
        self.pool = self.api.Pool(2, initializer)

    def submit(self, function: Callable[..., Any], *args: Any) -> Wait:
        return self.pool.apply_async(function, args).get

    def map(self, function: Callable[[Any], Any], items: list[Any]) -> Any:
        return self.pool.map(function, items)

    def close(self) -> None:
        self.pool.terminate()
        self.pool.join()


def _draw(item: int) -> float:
    return float(importlib.import_module("mp_all").rng().random())


class OurPool(StandardPool):
    name, needs, draw = "`mp_all.Pool`", "mp_all", staticmethod(_draw)
    outside: ClassVar[dict[str, Any]] = {"daemon": False}

    def open(self, initializer: Callable[[], object] | None) -> None:
        self.pool = self.api.Pool(2, initializer, **self.options)

    def submit_limited(self, seconds: float, function: Callable[..., Any], *args: Any) -> Wait:
        return self.pool.options(timeout=seconds).apply_async(function, args).get

    def submit_repeated(self, times: int, after: type[Exception], function: Callable[..., Any], *args: Any) -> Wait:
        return self.pool.options(retries=times, retry_on=after).apply_async(function, args).get

    def submit_small(self, nbytes: int, function: Callable[..., Any], *args: Any) -> Wait:
        return self.pool.options(memory_limit=nbytes).apply_async(function, args).get

    def submit_cancellable(self, function: Callable[..., Any], *args: Any) -> tuple[Callable[[], object], Wait]:
        result = self.pool.apply_async(function, args)
        return lambda: result.cancel(running=True), result.get

    def queue(self) -> Any:
        return self.api.Queue()


class StandardExecutor(Library):
    name, needs = "`ProcessPoolExecutor`", "concurrent.futures"

    def open(self, initializer: Callable[[], object] | None) -> None:
        self.pool = self.api.ProcessPoolExecutor(2, initializer=initializer)

    def submit(self, function: Callable[..., Any], *args: Any) -> Wait:
        return self.pool.submit(function, *args).result

    def map(self, function: Callable[[Any], Any], items: list[Any]) -> Any:
        return list(self.pool.map(function, items))

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


class OurExecutor(StandardExecutor):
    name, needs, draw = "`mp_all.ProcessPoolExecutor`", "mp_all", staticmethod(_draw)

    def open(self, initializer: Callable[[], object] | None) -> None:
        self.pool = self.api.ProcessPoolExecutor(2, initializer=initializer, **self.options)

    def submit_limited(self, seconds: float, function: Callable[..., Any], *args: Any) -> Wait:
        return self.pool.options(timeout=seconds).submit(function, *args).result

    def submit_repeated(self, times: int, after: type[Exception], function: Callable[..., Any], *args: Any) -> Wait:
        return self.pool.options(retries=times, retry_on=after).submit(function, *args).result

    def submit_small(self, nbytes: int, function: Callable[..., Any], *args: Any) -> Wait:
        return self.pool.options(memory_limit=nbytes).submit(function, *args).result

    def submit_cancellable(self, function: Callable[..., Any], *args: Any) -> tuple[Callable[[], object], Wait]:
        future = self.pool.submit(function, *args)
        return lambda: future.cancel(running=True), future.result

    def queue(self) -> Any:
        return self.api.Queue()

    def close(self) -> None:
        self.pool.terminate_workers()


class Loky(StandardExecutor):
    name, needs = "loky", "joblib.externals.loky"

    def close(self) -> None:
        self.pool.shutdown(kill_workers=True)


class Mpire(Library):
    name, needs = "mpire", "mpire"
    outside: ClassVar[dict[str, Any]] = {"daemon": False}

    def open(self, initializer: Callable[[], object] | None) -> None:
        daemon = self.options.get("daemon", True)
        self.pool = self.api.WorkerPool(2, keep_alive=True, daemon=daemon)
        self.initializer = initializer

    def submit(self, function: Callable[..., Any], *args: Any) -> Wait:
        return self.pool.apply_async(function, args, worker_init=self.initializer).get

    def submit_limited(self, seconds: float, function: Callable[..., Any], *args: Any) -> Wait:
        return self.pool.apply_async(function, args, task_timeout=seconds).get

    def map(self, function: Callable[[Any], Any], items: list[Any]) -> Any:
        return self.pool.map(function, items)

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

    def submit_cancellable(self, function: Callable[..., Any], *args: Any) -> tuple[Callable[[], object], Wait]:
        future = self.pool.schedule(function, args=args)
        return future.cancel, future.result

    def map(self, function: Callable[[Any], Any], items: list[Any]) -> Any:
        return list(self.pool.map(function, items).result())

    def close(self) -> None:
        self.pool.stop()
        self.pool.join()


class Ray(Library):
    name, needs = "Ray", "ray"

    def open(self, initializer: Callable[[], object] | None) -> None:
        hook = {"worker_process_setup_hook": initializer} if initializer else {}
        # A second pool of a program, and one in a task, are the same cluster.
        self.api.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env=hook,
            ignore_reinit_error=True,
        )

    def submit(self, function: Callable[..., Any], *args: Any) -> Wait:
        reference = self.api.remote(function).options(max_retries=0).remote(*args)
        return lambda seconds: self.api.get(reference, timeout=seconds)

    def submit_repeated(self, times: int, after: type[Exception], function: Callable[..., Any], *args: Any) -> Wait:
        options = {"max_retries": times, "retry_exceptions": [after]}
        reference = self.api.remote(function).options(**options).remote(*args)
        return lambda seconds: self.api.get(reference, timeout=seconds)

    def submit_cancellable(self, function: Callable[..., Any], *args: Any) -> tuple[Callable[[], object], Wait]:
        reference = self.api.remote(function).options(max_retries=0).remote(*args)
        return lambda: self.api.cancel(reference, force=True), lambda seconds: self.api.get(reference, timeout=seconds)

    def queue(self) -> Any:
        return importlib.import_module("ray.util.queue").Queue()

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
