"""`Pool`: the interface of `multiprocessing.Pool`, on workers that may die."""

from __future__ import annotations

import functools
import itertools
import multiprocessing.pool
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import get_context, util
from multiprocessing.context import BaseContext
from multiprocessing.pool import CLOSE, RUN, TERMINATE, mapstar, starmapstar  # type: ignore[attr-defined]

from mp_pool._results import Applied, Bounded, Chunks, Imapped, ImappedUnordered, Mapped
from mp_pool._standard_names import NamesOfPool
from mp_pool.scheduling.feeder import Feeder, batches
from mp_pool.scheduling.progress import progress as bar
from mp_pool.scheduling.scheduler import Scheduler
from mp_pool.scheduling.unopened import imports_under_way
from mp_pool.tasks.mappers import map_chunk, starmap_chunk
from mp_pool.tasks.task import Task, TaskSource, brings_globals, report
from mp_pool.tasks.task_options import HasOptions, TaskOptions, plain_sizes
from mp_pool.workers.settings_of_workers import settings_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from mp_core.children.cpu_affinity import Cpus
    from mp_core.children.random_streams import Seed
    from mp_pool.result_types import AsyncResult, IMapIterator, MapResult
    from mp_pool.tasks.task_options import Errors

    T = TypeVar("T")

_MAPPERS = {mapstar: map_chunk, starmapstar: starmap_chunk}

Callback = Callable[["Any"], object] | None

AHEAD = 4  # tasks for each worker


class Pool(NamesOfPool, HasOptions, multiprocessing.pool.Pool):
    """
    A pool of worker processes that survives the death of a worker.

    It is a subclass of `multiprocessing.Pool`, with the same methods and parameters. When a worker ends while it runs a
    task, that task fails with `WorkerLostError`, another worker takes its place, and all other tasks continue.

    Parameters
    ----------
    processes : int, optional
        Number of workers; by default one for each processor.
    initializer : callable, optional
        Called with *initargs* when a worker starts. If it fails, or ends the worker, three times in a row (ten times,
        if the worker is killed), all tasks of the pool fail with its exception.
    initargs : tuple, optional
        Arguments of *initializer*.
    maxtasksperchild : int, optional
        Number of tasks after which a worker is replaced by a new one.
    context : multiprocessing.context.BaseContext, optional
        The context that starts the processes; by default that of the default start method.
    retries : int, optional
        How many times a task is repeated after its worker has died. For tasks that are safe to repeat.
    timeout : float, optional
        Time limit of a task, in seconds. After it, the worker is killed, and the task fails with `TaskTimeoutError`, a
        `TimeoutError`. With it, each item of a `map` is a task of its own, whatever the chunk size.
    retry_on : exception class or sequence of them, optional
        Exceptions after which a task is repeated as well, up to *retries* times in all.
    memory_limit : int, optional
        Bytes of private memory, looked at ten times a second. A task whose worker has more fails with
        `TaskMemoryError`, and the worker is killed.
    max_memory_per_child : int, optional
        Bytes of private memory; a worker with more after a task is replaced by a new one.
    threads_per_worker : int, optional
        Number of threads that numerical libraries (OpenMP, OpenBLAS, MKL, Numba, …) start in each worker, set in its
        environment before it imports anything. For the libraries that a forked worker has from the program, which are
        loaded already, it needs threadpoolctl. By default the libraries decide, as in a program without a pool.
    cpu_affinity : {"spread"} or sequence, optional
        The processors that each worker may use: a number or a set of them for each; ``"spread"`` gives each worker its
        share of those of this process.
    daemon : bool, optional
        With False, tasks may start processes and pools of their own. What a worker has forked, and all pools, end with
        it.
    seed : int or sequence of int, optional
        Makes `rng` in a task the same random numbers, whatever worker runs it, with whatever chunks, and however often.
    progress : bool, optional
        Whether to show a progress bar over all tasks of the pool, which needs tqdm.
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
        retry_on: Errors = (),
        memory_limit: int | None = None,
        max_memory_per_child: int | None = None,
        threads_per_worker: int | None = None,
        cpu_affinity: Cpus = None,
        daemon: bool = True,
        seed: Seed = None,
        progress: bool = False,
        engine: Any = None,
    ) -> None:
        if engine is not None:
            on_nodes = _check_engine(
                engine, processes, context, retry_on, memory_limit, cpu_affinity, seed, None if daemon else False
            )
        if processes is None:
            processes = getattr(os, "process_cpu_count", os.cpu_count)() or 1
        processes = operator.index(processes)
        if processes < 1:
            raise ValueError(f"processes must be at least 1, not {processes}")
        if maxtasksperchild is not None and (not isinstance(maxtasksperchild, int) or maxtasksperchild <= 0):
            raise ValueError(f"maxtasksperchild must be a positive int or None, not {maxtasksperchild!r}")
        if initializer is not None and not callable(initializer):
            raise TypeError(f"initializer must be callable, not {initializer!r}")
        self._options = TaskOptions(retries, timeout, retry_on, memory_limit)
        self._ctx: Any = context or get_context()
        self._processes = processes
        self._initializer, self._initargs, self._maxtasksperchild = initializer, initargs, maxtasksperchild
        settings = settings_for(
            processes,
            self._ctx,
            initializer,
            initargs,
            maxtasksperchild,
            max_memory_per_child=max_memory_per_child,
            threads_per_worker=threads_per_worker,
            cpu_affinity=cpu_affinity,
            ends_children=not daemon,
            seed=seed,
            is_executor=False,
        )
        self._calls = None if seed is None else itertools.count()
        self._scheduler: Any
        if engine is not None:
            self._scheduler = on_nodes(engine, processes, settings, timeout, bar(progress))
        else:
            make = _maker(type(self).Process, self._ctx, daemon)
            self._scheduler = Scheduler(make, processes, settings, progress=bar(progress))
            self._scheduler.watches = self._options.is_watched
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
        scheduler = getattr(self, "_scheduler", None)
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
        """Call ``func(*args, **kwds)`` in a worker; the result has ``get``, ``wait``, ``ready`` and ``successful``."""
        self._check_running()  # type: ignore[attr-defined]
        if callback is not None or error_callback is not None:
            callback, error_callback = _guarded(callback), _guarded(error_callback)
        options = self._options if self._calls is None else self._call_options()
        result = Applied(self, callback, error_callback)
        result.task = task = Task(result, 0, func, tuple(args), dict(kwds or {}), None, options)
        self._scheduler.submit(task)
        return result

    def map(
        self,
        func: Callable[..., T],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        *,
        kwds: Mapping[str, Any] | None = None,
    ) -> list[T]:
        """Like ``[func(item, **kwds) for item in iterable]``, in workers. An array among *kwds* is sent once."""
        return self._map_async(_with(func, kwds), iterable, mapstar, chunksize).get()  # type: ignore[no-any-return]

    def map_async(
        self,
        func: Callable[..., T],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callback = None,
        error_callback: Callback = None,
        *,
        kwds: Mapping[str, Any] | None = None,
    ) -> MapResult[T]:
        """Like `map`; the result has ``get``, ``wait``, ``ready`` and ``successful``."""
        func = _with(func, kwds)
        return self._map_async(func, iterable, mapstar, chunksize, callback, error_callback)  # type: ignore[no-any-return]

    def starmap(
        self,
        func: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        *,
        kwds: Mapping[str, Any] | None = None,
    ) -> list[T]:
        """Like ``[func(*item, **kwds) for item in iterable]``, in workers. An array among *kwds* is sent once."""
        return self._map_async(_with(func, kwds), iterable, starmapstar, chunksize).get()  # type: ignore[no-any-return]

    def starmap_async(
        self,
        func: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callback = None,
        error_callback: Callback = None,
        *,
        kwds: Mapping[str, Any] | None = None,
    ) -> MapResult[T]:
        """Like `starmap`; the result has ``get``, ``wait``, ``ready`` and ``successful``."""
        func = _with(func, kwds)
        return self._map_async(func, iterable, starmapstar, chunksize, callback, error_callback)  # type: ignore[no-any-return]

    def map_blocks(
        self,
        func: Callable[..., Any],
        array: Any,
        blocks: int | None = None,
        axis: int = 0,
        *,
        kwds: Mapping[str, Any] | None = None,
    ) -> Any:
        """
        Call *func* with each of the blocks into which *array* is cut, in workers, and put the results together.

        With mp_all, the array is copied into shared memory once, if it is not there already, and each block is a view
        of it; the results become one array in shared memory.

        Parameters
        ----------
        func : callable
            Called as ``func(block, **kwds)``.
        array : array_like
            Its blocks have the sizes that ``numpy.array_split`` gives them.
        blocks : int, optional
            Their number; by default one for each worker, and at most the length of *axis*.
        axis : int, optional
            The axis that is cut, and along which results are put together.
        kwds : dict, optional
            Keywords of *func*; their arrays are sent once.

        Returns
        -------
        numpy.ndarray or list
            One array, if the results are arrays of one dtype whose shapes differ along *axis* only; else the list.

        Examples
        --------
        >>> with mp.Pool(2) as pool:
        ...     pool.map_blocks(np.sqrt, np.array([1.0, 4.0, 9.0]))
        array([1., 2., 3.])
        """
        from mp_pool.blocks import cut, joined

        count = self._processes if blocks is None else blocks
        return joined(self.map(func, cut(array, count, axis), 1, kwds=kwds), axis)

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
        if length:
            chunksize, _ = plain_sizes(chunksize)
        if self._options.is_watched and length:
            chunksize = 1  # the limits are those of one item
        result = Mapped(self, chunksize if length else 0, length, _guarded(callback), _guarded(error_callback))
        if not length:
            return result
        single = result.single = chunksize == 1 and mapper is mapstar
        mapper = _MAPPERS.get(mapper, mapper)
        count = -(-length // chunksize)
        # The tasks of a source are pickled later.
        brings = brings_globals(func)
        shared = self._scheduler.share(func) if count > 1 or brings else None

        items = iterable if single else batches(iterable, chunksize)
        source = TaskSource(result, func, None if single else mapper, chunksize, self._call_options(), shared)
        if type(iterable) in (list, tuple, range):
            if shared is None and brings:
                for index, item in enumerate(items):  # each task brings them, as they are now
                    self._scheduler.submit(source.make(index, item))
            else:
                self._scheduler.submit(source.over(items), length)
            return result

        def ended(given: int, error: BaseException | None) -> None:
            if result.is_over:
                return
            for index in range(given, count):
                problem = error or ValueError(f"the iterable has {length} items by its len(), and gave fewer")
                result._set(index, (False, problem))

        Feeder(self._scheduler, items, source.make, ended, count, result).start()
        return result

    def imap(  # type: ignore[override]
        self,
        func: Callable[..., T],
        iterable: Iterable[Any],
        chunksize: int = 1,
        buffersize: int | None = None,
        *,
        kwds: Mapping[str, Any] | None = None,
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
        kwds : dict, optional
            Keywords of *func*; their arrays are sent once.

        Returns
        -------
        iterator
            For a chunk whose worker has died, ``next`` raises `WorkerLostError`; the next call continues after it. An
            `Exception` of *iterable* comes after all results.
        """
        return self._imap(Imapped(self), _with(func, kwds), iterable, chunksize, buffersize)  # type: ignore[no-any-return]

    def imap_unordered(  # type: ignore[override]
        self,
        func: Callable[..., T],
        iterable: Iterable[Any],
        chunksize: int = 1,
        buffersize: int | None = None,
        *,
        kwds: Mapping[str, Any] | None = None,
    ) -> IMapIterator[T]:
        """Like `imap`, but with results in the order in which they come."""
        return self._imap(ImappedUnordered(self), _with(func, kwds), iterable, chunksize, buffersize)  # type: ignore[no-any-return]

    def _imap(
        self, result: Any, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int, buffersize: int | None
    ) -> Any:
        try:
            self._check_running()  # type: ignore[attr-defined]
            chunksize, buffersize = plain_sizes(chunksize, buffersize)
        except BaseException:
            del self._cache[result._job]
            raise
        if self._options.is_watched:
            chunksize = 1  # the limits are those of one item
        known = type(iterable) in (list, tuple, range)
        if not known and buffersize is None and imports_under_way:
            buffersize = AHEAD * self._processes  # this thread reads it, and pickles the items
        if type(iterable) is list:
            iterable = list(iterable)  # the caller may change it meanwhile
        single = chunksize == 1
        items: Iterable[Any] = iterable if single else batches(iterable, chunksize)
        mapper = None if single else map_chunk
        shared = self._scheduler.share(func)
        source = TaskSource(result, func, mapper, chunksize, self._call_options(), shared)
        results: Any = result
        if buffersize is not None:
            scheduler = self._scheduler

            def submit(index: int, item: Any) -> None:
                if scheduler.state != 0:
                    raise scheduler.reason or ValueError("Pool not running")
                if result.is_over:
                    return
                scheduler.submit(source.make(index, item))

            try:
                results = Bounded(result, iter(items), submit, buffersize)
            except BaseException:
                self._cache.pop(result._job, None)
                raise
        elif known:
            length = len(iterable)  # type: ignore[arg-type]
            self._scheduler.submit(source.over(items), length)
            result._set_length(-(-length // chunksize))
        else:

            def ended(given: int, error: BaseException | None) -> None:
                if error is None:
                    result._set_length(given)
                else:
                    result._set_error(given, error)

            Feeder(self._scheduler, items, source.make, ended, None, result).start()
        return results if single else Chunks(results)

    def close(self) -> None:
        """Accept no more tasks; the workers end when all tasks are done."""
        if self._state == RUN:
            self._state = CLOSE
            self._scheduler.close()

    def terminate(self) -> None:
        """
        End the workers by SIGTERM; all unfinished results fail. A worker that has no task runs its finalizers first.
        After 2 seconds, or 30 for a worker that has a handler of SIGTERM, SIGKILL ends it.
        """
        self._state = TERMINATE
        # Not through the finaliser, which works once: a handler may have interrupted an earlier call.
        self._scheduler.terminate()
        self._terminate.cancel()

    def join(self) -> None:
        """Wait for the end of all workers, after `close` or `terminate`."""
        if self._state == RUN:
            raise ValueError("Pool is still running: call close() or terminate() before join()")
        self._scheduler.join()


def _check_engine(engine: Any, processes: int | None, context: BaseContext | None, *refused: Any) -> Callable[..., Any]:
    """
    Return what makes the scheduler of a pool on other machines; raise `ValueError` for what such a pool cannot have.
    """
    from mp_core.system import engine_lookup

    on_nodes: Callable[..., Any] = engine_lookup.load("pool", f"engine={engine!r}")
    if processes is None:
        raise ValueError("with engine=, give processes, the number of workers on all nodes together")
    if any(each not in (None, ()) for each in refused):
        raise ValueError(
            "a pool with engine= has no retry_on=, memory_limit=, cpu_affinity=, seed= and daemon=False: leave them out"
        )
    method = None if context is None else context.get_start_method()
    if method not in (None, "spawn"):
        raise ValueError(f"engine= always spawns its workers: drop context={method!r}, or pass a spawn context")
    return on_nodes


def _with(func: Callable[..., T], kwds: Mapping[str, Any] | None) -> Callable[..., T]:
    """Return *func* with these keywords."""
    return functools.partial(func, **kwds) if kwds else func


def _maker(process: Callable[..., Any], context: Any, daemon: bool) -> Callable[..., Any]:
    def make(**kwds: Any) -> Any:
        worker = process(context, **kwds)
        worker.name = worker.name.replace("Process", "PoolWorker")
        worker.daemon = daemon
        return worker

    return make


def _guarded(callback: Callback) -> Callback:
    """Wrap the callback: its exceptions are printed and affect no result."""
    if callback is None:
        return None

    def guarded(value: Any) -> None:
        try:
            callback(value)
        except BaseException as error:
            report(error)

    return guarded
