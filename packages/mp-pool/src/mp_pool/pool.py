"""`Pool`: the interface of `multiprocessing.Pool`, on workers that may die."""

from __future__ import annotations

import multiprocessing.pool
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import get_context, util
from multiprocessing.context import BaseContext
from multiprocessing.pool import CLOSE, RUN, TERMINATE, mapstar, starmapstar  # type: ignore[attr-defined]

from mp_pool._environment import for_threads
from mp_pool._feeder import Feeder, batches
from mp_pool._mappers import map_chunk, starmap_chunk
from mp_pool._progress import progress as bar
from mp_pool._results import Applied, Bounded, Chunks, Imapped, ImappedUnordered, Mapped
from mp_pool._standard_names import NamesOfPool
from mp_pool._unopened import imports_under_way
from mp_pool.scheduler import Scheduler
from mp_pool.task import Task, TaskSource, report
from mp_pool.worker_main import Settings

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from multiprocessing.pool import AsyncResult, IMapIterator
    from typing import Any, TypeVar

    T = TypeVar("T")

__all__ = ["Pool"]

_MAPPERS = {mapstar: map_chunk, starmapstar: starmap_chunk}

Callback = Callable[["Any"], object] | None

AHEAD = 4  # tasks for each worker


class Pool(NamesOfPool, multiprocessing.pool.Pool):
    """
    A pool of worker processes that survives the death of a worker.

    It is a subclass of `multiprocessing.Pool`, with the same methods and parameters. When a worker ends while it runs a
    task, that task fails with `WorkerLostError`, another worker takes its place, and all other tasks continue.

    Parameters
    ----------
    processes : int, optional
        Number of workers; by default one for each processor.
    initializer : callable, optional
        Called with *initargs* when a worker starts. If it fails, or ends the worker, three times in a row, all tasks of
        the pool fail with its exception.
    initargs : tuple, optional
        Arguments of *initializer*.
    maxtasksperchild : int, optional
        Number of tasks after which a worker is replaced by a new one.
    context : multiprocessing.context.BaseContext, optional
        The context that starts the processes; by default that of the default start method.
    retries : int, optional
        How many times a task is repeated after its worker has died. For tasks that are safe to repeat.
    timeout : float, optional
        Time limit of a task (in a `map` with chunks: of a chunk) in seconds. After it, the worker is killed, and the
        task fails with `TaskTimeoutError`, a `TimeoutError`.
    max_memory_per_child : int, optional
        Bytes of private memory; a worker with more after a task is replaced by a new one.
    threads_per_worker : int, optional
        Number of threads that numerical libraries (OpenMP, OpenBLAS, MKL, Numba, …) start in each worker, set in its
        environment before it imports anything. A forked worker keeps the threads of libraries that are loaded already.
    progress : bool, optional
        Whether to show a progress bar over all tasks of the pool, if tqdm is installed.
    engine : {"ray", "local"} or engine, optional
        Have the workers on other machines: an object like ``mp_nodes.Ray()``, or its name. *processes* is the number of
        workers on all nodes together. Tasks and results travel by value. It needs mp-nodes.

    Raises
    ------
    ValueError
        If a number is out of its range, or *context* is of another start method than spawn with *engine*.
    TypeError
        If *initializer* cannot be called, or *processes* is no integer.

    Examples
    --------
    >>> with mp.Pool(2) as pool:
    ...     pool.map(abs, [-1, -2, -3])
    [1, 2, 3]
    """

    # Read by __del__ of the standard class, also if a signal handler raises before __init__ begins.
    _state = "INIT"
    _change_notifier: Any = None
    _mappers = _MAPPERS

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: BaseContext | None = None,
        *,
        retries: int = 0,
        timeout: float | None = None,
        max_memory_per_child: int | None = None,
        threads_per_worker: int | None = None,
        progress: bool = False,
        engine: Any = None,
    ) -> None:
        if engine is not None:
            on_nodes = _check_engine(engine, processes, context)
        if processes is None:
            processes = getattr(os, "process_cpu_count", os.cpu_count)() or 1
        processes = operator.index(processes)
        if processes < 1:
            raise ValueError(f"processes must be at least 1, not {processes}")
        if maxtasksperchild is not None and (not isinstance(maxtasksperchild, int) or maxtasksperchild <= 0):
            raise ValueError(f"maxtasksperchild must be a positive int or None, not {maxtasksperchild!r}")
        if initializer is not None and not callable(initializer):
            raise TypeError(f"initializer must be callable, not {initializer!r}")
        check_options(retries, timeout, max_memory_per_child, threads_per_worker)
        self._ctx: Any = context or get_context()
        self._processes = processes
        self._initializer, self._initargs, self._maxtasksperchild = initializer, initargs, maxtasksperchild
        self._retries = retries
        environment = for_threads(threads_per_worker)
        forks = self._ctx.get_start_method(allow_none=False) == "fork"
        settings = Settings(
            initializer, tuple(initargs), maxtasksperchild, max_memory_per_child, False, environment, forks
        )
        self._scheduler: Any
        if engine is not None:
            self._scheduler = on_nodes(engine, processes, settings, timeout, bar(progress))
        else:
            make = _maker(type(self).Process, self._ctx)
            self._scheduler = Scheduler(make, processes, settings, timeout=timeout, progress=bar(progress))
        self._cache = self._scheduler.sinks
        # Not the pool's own method, which would keep the pool alive. Before the start: a handler may raise below, and
        # another one in `terminate`.
        self._terminate = util.Finalize(self, self._scheduler.terminate, exitpriority=15)
        try:
            self._scheduler.start()
            self._state = RUN
        except BaseException:  # of a signal handler, after the workers have started
            self._scheduler.terminate()
            raise

    @property
    def _pool(self) -> list[Any]:
        scheduler = self.__dict__.get("_scheduler")
        return [] if scheduler is None else scheduler.processes()

    def _repopulate_pool(self) -> None:
        self._scheduler.wake()  # it restarts workers by itself

    def apply_async(
        self,
        func: Callable[..., T],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callback = None,
        error_callback: Callback = None,
    ) -> AsyncResult[T]:
        """
        Call ``func(*args, **kwds)`` in a worker; the result has ``get``, ``wait``, ``ready`` and ``successful``.
        """
        self._check_running()  # type: ignore[attr-defined]
        if callback is not None or error_callback is not None:
            callback, error_callback = _guarded(callback), _guarded(error_callback)
        result = Applied(self, callback, error_callback)
        result.task = task = Task(result, 0, func, tuple(args), dict(kwds or {}), retries=self._retries)
        self._scheduler.submit(task)
        return result

    def _map_async(
        self,
        func: Callable[..., Any],
        iterable: Any,
        mapper: Callable[..., Any],
        chunksize: int | None = None,
        callback: Callback = None,
        error_callback: Callback = None,
    ) -> Any:
        self._check_running()  # type: ignore[attr-defined]
        if type(iterable) is list or not hasattr(iterable, "__len__") or imports_under_way:
            iterable = list(iterable)  # the caller may change the list meanwhile
        length = len(iterable)
        if chunksize is None:
            chunksize, extra = divmod(length, self._processes * 4)
            chunksize += bool(extra)
        if chunksize < 1 and length:
            raise ValueError(f"chunksize must be at least 1, not {chunksize}")
        result = Mapped(self, chunksize if length else 0, length, _guarded(callback), _guarded(error_callback))
        if not length:
            return result
        single = result.single = chunksize == 1 and mapper is mapstar
        mapper = _MAPPERS.get(mapper, mapper)
        count = -(-length // chunksize)
        shared = self._scheduler.share(func) if count > 1 else None

        items = iterable if single else batches(iterable, chunksize)
        source = TaskSource(result, func, None if single else mapper, chunksize, self._retries, shared)
        if type(iterable) in (list, tuple, range):
            self._scheduler.submit(source.over(items), length)
            return result

        def ended(given: int, error: Exception | None) -> None:
            for index in range(given, count):
                problem = error or ValueError(f"the iterable has {length} items by its len(), and gave fewer")
                result._set(index, (False, problem))

        Feeder(self._scheduler, items, source.make, ended, count).start()
        return result

    def imap(  # type: ignore[override]
        self, func: Callable[..., T], iterable: Iterable[Any], chunksize: int = 1, buffersize: int | None = None
    ) -> IMapIterator[T]:
        """
        Like `map`, but return an iterator; results in the order of *iterable*.

        Parameters
        ----------
        func : callable
            Called with one item.
        iterable : iterable
            The items. A thread reads it, as fast as the workers take tasks.
        chunksize : int, optional
            Number of items for one task.
        buffersize : int, optional
            At most so many tasks are submitted whose results have not been taken; ``next`` reads the iterable. So an
            endless generator does not fill memory.

        Returns
        -------
        iterator
            For a chunk whose worker has died, ``next`` raises `WorkerLostError`; the next call continues after it.
        """
        return self._imap(Imapped(self), func, iterable, chunksize, buffersize)  # type: ignore[no-any-return]

    def imap_unordered(  # type: ignore[override]
        self, func: Callable[..., T], iterable: Iterable[Any], chunksize: int = 1, buffersize: int | None = None
    ) -> IMapIterator[T]:
        """
        Like `imap`, but with results in the order in which they come.
        """
        return self._imap(ImappedUnordered(self), func, iterable, chunksize, buffersize)  # type: ignore[no-any-return]

    def _imap(
        self, result: Any, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int, buffersize: int | None
    ) -> Any:
        try:
            self._check_running()  # type: ignore[attr-defined]
            if chunksize < 1:
                raise ValueError(f"chunksize must be at least 1, not {chunksize}")
            if buffersize is not None and buffersize < 1:
                raise ValueError(f"buffersize must be at least 1, not {buffersize}")
        except BaseException:
            del self._cache[result._job]
            raise
        known = type(iterable) in (list, tuple, range)
        if not known and buffersize is None and imports_under_way:
            buffersize = AHEAD * self._processes  # this thread reads it, and pickles the items
        if type(iterable) is list:
            iterable = list(iterable)  # the caller may change it meanwhile
        single = chunksize == 1
        items: Iterable[Any] = iterable if single else batches(iterable, chunksize)
        mapper = None if single else map_chunk
        shared = self._scheduler.share(func)
        source = TaskSource(result, func, mapper, chunksize, self._retries, shared)
        results: Any = result
        if buffersize is not None:
            scheduler = self._scheduler

            def submit(index: int, item: Any) -> None:
                if scheduler.state != 0:
                    raise ValueError("Pool not running")
                scheduler.submit(source.make(index, item))

            results = Bounded(result, iter(items), submit, buffersize)
        elif known:
            length = len(iterable)  # type: ignore[arg-type]
            self._scheduler.submit(source.over(items), length)
            result._set_length(-(-length // chunksize))
        else:

            def ended(given: int, error: Exception | None) -> None:
                if error is not None:
                    result._set(given, (False, error))
                    given += 1
                result._set_length(given)

            Feeder(self._scheduler, items, source.make, ended).start()
        return results if single else Chunks(results)

    def close(self) -> None:
        """
        Accept no more tasks; the workers end when all tasks are done.
        """
        if self._state == RUN:
            self._state = CLOSE
            self._scheduler.close()

    def terminate(self) -> None:
        """
        End the workers at once. All unfinished results fail.
        """
        self._state = TERMINATE
        # Not through the finaliser, which works once: a handler may have interrupted an earlier call.
        self._scheduler.terminate()
        self._terminate.cancel()

    def join(self) -> None:
        """
        Wait for the end of all workers, after `close` or `terminate`.
        """
        if self._state == RUN:
            raise ValueError("Pool is still running: call close() or terminate() before join()")
        self._scheduler.join()


def _check_engine(engine: Any, processes: int | None, context: BaseContext | None) -> Callable[..., Any]:
    """
    Return what makes the scheduler of a pool on other machines; raise `ValueError` for what such a pool cannot have.
    """
    from mp_core import engines

    on_nodes: Callable[..., Any] = engines.load("pool", f"engine={engine!r}")
    if processes is None:
        raise ValueError("with engine=, give processes, the number of workers on all nodes together")
    method = None if context is None else context.get_start_method()
    if method not in (None, "spawn"):
        raise ValueError(f"engine= always spawns its workers: drop context={method!r}, or pass a spawn context")
    return on_nodes


def check_options(retries: int, timeout: float | None, max_memory: int | None, threads: int | None) -> None:
    """
    Raise `ValueError` for an option that is out of its range.
    """
    if retries < 0:
        raise ValueError(f"retries must be 0 or more, not {retries}")
    if timeout is not None and timeout <= 0:
        raise ValueError(f"timeout must be more than 0 seconds, not {timeout}")
    if max_memory is not None and max_memory <= 0:
        raise ValueError(f"max_memory_per_child must be more than 0 bytes, not {max_memory}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads_per_worker must be at least 1, not {threads}")


def _maker(process: Callable[..., Any], context: Any) -> Callable[..., Any]:
    def make(**kwds: Any) -> Any:
        worker = process(context, **kwds)
        worker.name = worker.name.replace("Process", "PoolWorker")
        worker.daemon = True
        return worker

    return make


def _guarded(callback: Callback) -> Callback:
    """
    Wrap the callback: its exceptions are printed and affect no result.
    """
    if callback is None:
        return None

    def guarded(value: Any) -> None:
        try:
            callback(value)
        except (Exception, SystemExit) as error:
            report(error)

    return guarded
