"""`ProcessPoolExecutor`: the interface of `concurrent.futures`, on workers that may die."""

from __future__ import annotations

import concurrent.futures.process
import functools
import itertools
import operator
import os
import threading
import time
import weakref
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from concurrent.futures._base import CANCELLED, FINISHED, PENDING, RUNNING
from concurrent.futures.process import (
    BrokenProcessPool,
    _process_chunk,
    _RemoteTraceback,
)
from multiprocessing import get_context
from multiprocessing.context import BaseContext

from mp_core.children.main_module import MissingGuardError
from mp_core.system.waits import Condition
from mp_pool import errors
from mp_pool._standard_names import NamesOfExecutor
from mp_pool.scheduling.admission import Admission
from mp_pool.scheduling.feeder import batches
from mp_pool.scheduling.progress import progress as bar
from mp_pool.scheduling.scheduler import Scheduler
from mp_pool.scheduling.unopened import Unopened
from mp_pool.tasks.mappers import starmap_chunk
from mp_pool.tasks.shared_function import SharedFunction
from mp_pool.tasks.task import Outcome, Task
from mp_pool.tasks.task_options import HasOptions, TaskOptions, plain_sizes
from mp_pool.workers.settings_of_workers import settings_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ParamSpec, TypeVar

    P = ParamSpec("P")
    from mp_core.children.cpu_affinity import Cpus
    from mp_core.children.random_streams import Seed
    from mp_pool import result_types
    from mp_pool.tasks.task_options import Errors

    T = TypeVar("T")

MOST_AT_ONCE = 64  # tasks that `map` submits together
_PLAIN = frozenset({bytes, dict, list, range, str, tuple})


class WorkerLostError(errors.WorkerLostError, BrokenProcessPool):
    """
    The `WorkerLostError` of an executor: code that survives a killed worker by ``except BrokenProcessPool`` does so.
    """


class ProcessPoolExecutor(NamesOfExecutor, HasOptions, concurrent.futures.ProcessPoolExecutor):  # type: ignore[misc, override]
    """
    An executor whose worker processes may die.

    It is a subclass of ``concurrent.futures.ProcessPoolExecutor``, with the same methods and parameters. When a worker
    ends while it runs a task, that task fails with `WorkerLostError`, another worker takes its place, and all other
    tasks continue: the executor is not broken.

    Parameters
    ----------
    max_workers : int, optional
        Number of workers; by default one for each processor.
    mp_context : multiprocessing.context.BaseContext, optional
        The context that starts the processes; by default that of the default start method, with *max_tasks_per_child*
        ``spawn``.
    initializer : callable, optional
        Called with *initargs* when a worker starts. If it fails, or ends the worker, three times in a row (ten times,
        if the worker is killed), all tasks fail with ``BrokenProcessPool``, whose ``__cause__`` is its exception.
    initargs : tuple, optional
        Arguments of *initializer*.
    max_tasks_per_child : int, optional
        Number of tasks after which a worker is replaced by a new one.
    retries, timeout, retry_on, memory_limit, max_memory_per_child : optional
        As for `Pool`.
    threads_per_worker, cpu_affinity, seed, progress : optional
        As for `Pool`.

    Raises
    ------
    ValueError
        If a number is out of its range.
    TypeError
        If *initializer* cannot be called.

    Examples
    --------
    >>> import os
    >>> with mp.ProcessPoolExecutor(2) as executor:
    ...     lost, kept = executor.submit(os._exit, 3), executor.submit(abs, -1)
    ...     print(kept.result(), lost.exception().exitcode)
    1 3
    """

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: BaseContext | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        *,
        max_tasks_per_child: int | None = None,
        retries: int = 0,
        timeout: float | None = None,
        retry_on: Errors = (),
        memory_limit: int | None = None,
        max_memory_per_child: int | None = None,
        threads_per_worker: int | None = None,
        cpu_affinity: Cpus = None,
        seed: Seed = None,
        progress: bool = False,
    ) -> None:
        if max_workers is None:
            max_workers = getattr(os, "process_cpu_count", os.cpu_count)() or 1
        max_workers = operator.index(max_workers)
        if max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if max_tasks_per_child is not None:
            if not isinstance(max_tasks_per_child, int):
                raise TypeError("max_tasks_per_child must be an integer")
            if max_tasks_per_child <= 0:
                raise ValueError("max_tasks_per_child must be >= 1")
        context: Any = mp_context or get_context(None if max_tasks_per_child is None else "spawn")
        self._max_workers: int = max_workers
        self._mp_context = context
        self._initializer: Any = initializer
        self._initargs = tuple(initargs)
        self._max_tasks_per_child = max_tasks_per_child
        self._options = TaskOptions(retries, timeout, retry_on, memory_limit)
        settings = settings_for(
            max_workers,
            context,
            initializer,
            self._initargs,
            max_tasks_per_child,
            max_memory_per_child=max_memory_per_child,
            threads_per_worker=threads_per_worker,
            cpu_affinity=cpu_affinity,
            ends_children=False,
            seed=seed,
            is_executor=True,
        )
        self._calls = None if seed is None else itertools.count()

        def make() -> Scheduler:
            return Scheduler(
                context.Process,
                max_workers,
                settings,
                progress=bar(progress),
                # As in the standard executor: forked workers start all at once, before the thread; others when needed.
                lazily=not settings.forked,
                cause=_RemoteTraceback,  # type: ignore[arg-type]
                broken=_broken,
                lost=WorkerLostError,
            )

        self._admission = Admission(make, _broken)
        self._scheduler.watches = self._options.is_watched
        self._shutdown_lock = threading.Lock()  # not ours: for programs that take it
        self._idle_worker_semaphore = threading.Semaphore(0)
        # An executor that is dropped finishes its tasks, then ends.
        weakref.finalize(self, self._admission.drop).atexit = False

    @property
    def _scheduler(self) -> Scheduler:  # type: ignore[override]
        scheduler: Scheduler = self._admission.scheduler
        return scheduler

    @property
    def _processes(self) -> dict[int, Any] | None:  # type: ignore[override]
        if self._admission.closed:
            return None
        self._scheduler.await_starts()  # programs count or kill them
        return {worker.pid: worker.process for worker in list(self._scheduler.dispatcher.workers)}

    @property
    def _broken(self) -> Any:  # type: ignore[override]
        reason = self._scheduler.reason
        return False if reason is None else str(_broken(reason))

    @property
    def _executor_manager_thread(self) -> threading.Thread | None:  # type: ignore[override]
        return self._scheduler.thread if self._admission.started else None

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> result_types.Future[T]:
        """Call ``fn(*args, **kwargs)`` in a worker, and return its future."""
        admission = self._admission
        scheduler = admission.current()
        future = _Future(scheduler)
        options = self._options if self._calls is None else self._call_options()
        admission.submit((_Call(future, fn, args, kwargs, options),), scheduler)
        return future  # type: ignore[return-value]

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """
        Like ``map(fn, *iterables)``, in workers.

        Parameters
        ----------
        fn : callable
            Takes an item of each iterable.
        *iterables : iterable
            The items.
        timeout : float, optional
            Time limit for all results, in seconds from the call on.
        chunksize : int, optional
            Number of items for one task.
        buffersize : int, optional
            At most so many tasks are submitted whose results have not been taken; the rest of the iterables is read as
            results are taken.

        Returns
        -------
        iterator
            The results, in the order of the items.
        """
        chunksize, buffersize = plain_sizes(chunksize, buffersize)
        deadline = None if timeout is None else timeout + time.monotonic()
        # A `submit` of the program (of a subclass, or put in place of ours) has to see each call, with the arguments
        # that the standard `map` gives it.
        is_ours = getattr(self.submit, "__func__", None) is _submit
        options = self._call_options()
        if is_ours and options.is_watched:
            chunksize = 1  # the limits are those of one item
        single = is_ours and chunksize == 1
        calls = zip(*iterables, strict=False)
        items: Iterator[Any] = enumerate(calls if single else batches(calls, chunksize))
        admission = self._admission
        scheduler = admission.current()
        shared = scheduler.share(fn) if is_ours else None
        stop = _Stop(options) if options.stop_on_error else None

        def submit_some(count: int) -> list[Future[Any]]:
            """Submit the tasks of the next *count* items, or of those that are left."""
            futures: list[Future[Any]] = []
            tasks = []
            for index, item in itertools.islice(items, count) if stop is None or not stop.failed.done() else ():
                if not is_ours:
                    futures.append(self.submit(functools.partial(_process_chunk, fn), item))
                    continue
                future = _Future(scheduler)
                futures.append(future)
                if stop is not None:
                    stop.watch(future)
                if single:
                    tasks.append(_Call(future, fn, item, None, options, index, shared))
                else:
                    args, position = ((fn, item),), index * chunksize
                    tasks.append(_Call(future, starmap_chunk, args, None, options, position, shared, len(item)))
            if tasks:
                admission.submit(tasks, scheduler)
            return futures

        futures: deque[Future[Any]] = deque()
        # Several at once only where reading the items runs no code of the program, which may take its time over each.
        grows = is_ours and stop is None and buffersize is None and all(type(each) in _PLAIN for each in iterables)
        count = 1
        while (buffersize is None or len(futures) < buffersize) and (some := submit_some(count)):
            futures += some
            count = min(2 * count, MOST_AT_ONCE) if grows else 1
        submit_next = functools.partial(submit_some, 1) if buffersize is not None else None
        results = _results(futures, submit_next, deadline, stop, options.cancel_running)
        return results if single else _items(results)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False, cancel_running: bool = False) -> None:
        """
        Accept no more tasks; the workers end when all are done.

        Parameters
        ----------
        wait : bool, optional
            Whether to wait for that. A callback, and a signal handler that has interrupted a ``submit`` or another
            ``shutdown``, do not wait.
        cancel_futures : bool, optional
            Whether to cancel the tasks that have not begun.
        cancel_running : bool, optional
            Whether to cancel those that run as well, by killing their workers.
        """

        def cancel() -> None:
            if cancel_futures:
                self._scheduler.recall()
                self._cancel_queued()
            for worker in list(self._scheduler.dispatcher.workers) if cancel_running else ():
                for call in list(worker.tasks.values()):
                    if isinstance(call, _Call) and self._scheduler.has_begun(call):
                        call.future.cancel(running=True)

        if self._admission.close(cancel if cancel_futures or cancel_running else None) and wait:
            self._scheduler.join()

    def _cancel_queued(self) -> None:
        for task in list(self._scheduler.dispatcher.queue):
            if isinstance(task, _Call):
                task.future.cancel()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: object) -> None:
        # Tasks do not see a Ctrl-C, so waiting for them would take as long as without it.
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        try:
            if not interrupted:
                self.shutdown()
        except KeyboardInterrupt:
            interrupted = True
            raise
        finally:
            if interrupted:
                self.terminate_workers()
                self._scheduler.terminate()

    def terminate_workers(self) -> None:
        """
        End the workers by SIGTERM, cancel the tasks that have not begun, and shut down. Running tasks fail. It does not
        wait for that, as in the standard library; `shutdown` does.
        """
        self._admission.kill(False, self._cancel_queued)

    def kill_workers(self) -> None:
        """Like `terminate_workers`, by SIGKILL."""
        self._admission.kill(True, self._cancel_queued)


_submit = ProcessPoolExecutor.submit


class _Future(Future["Any"]):
    """
    A future whose result may be received by the thread that waits for it, and whose task may be taken back.

    Its state is RUNNING while the task is at a worker, which may not have begun it: `running` asks the worker.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._condition: Any = Condition()
        self._scheduler = scheduler
        self.call: _Call | None = None

    def _receive(self, timeout: float | None) -> None:
        call = self.call
        if call is not None and (timeout is None or timeout > 0):
            self._scheduler.receive(call)

    def running(self) -> bool:
        call = self.call
        return super().running() and (call is None or self._scheduler.has_begun(call))

    def cancel(self, running: bool = False) -> bool:
        """
        Cancel the call; with *running*, also if a worker has begun it: the worker is killed, and no other task is lost.

        Return False if the call has its result, or goes on.
        """
        call = self.call
        if call is None or not super().running():
            return super().cancel()
        if not running:
            if not self._scheduler.has_begun(call) and self._cancel_unless_begun():
                self._invoke_callbacks()  # type: ignore[attr-defined]
            return super().cancel()
        with self._condition:
            if self._state == RUNNING:
                self._state = PENDING
        # Before its worker is killed: no other begins it then.
        is_cancelled = super().cancel()
        self._scheduler.cancel(call, True, abort=False)
        return is_cancelled

    def _cancel_unless_begun(self) -> bool:
        """Cancel the call, but for the callbacks, if a worker can be kept from it; return whether that is so."""
        asks, cancelled = [True], []

        def cancel() -> None:
            with self._condition:
                if asks and self._state == PENDING:
                    self._state = CANCELLED
                    self._condition.notify_all()
                    cancelled.append(True)

        self._scheduler.recall(cancel)
        with self._condition:
            asks.clear()  # this thread does not wait for it any more
        return bool(cancelled)

    def result(self, timeout: float | None = None) -> Any:
        if self._state == FINISHED and self._exception is None and type(self._result) is not Unopened:
            return self._result
        self._receive(timeout)
        result: Any = None
        try:
            result = super().result(timeout)
            if type(result) is not Unopened:
                return result
            success, result = result.outcome()
            if success:
                return result
            raise result
        finally:
            del result, self  # the traceback has this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._receive(timeout)
        error = super().exception(timeout)
        result: Any = self._result
        if type(result) is Unopened:
            success, result = result.outcome()
            return None if success else result
        return error


class _Call(Task):
    """A task with a future; the task is its own sink."""

    __slots__ = ("future",)
    opens = True

    def __init__(
        self,
        future: _Future,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwds: dict[str, Any] | None,
        options: TaskOptions,
        position: int = 0,
        shared: SharedFunction | None = None,
        items: int = 1,
    ) -> None:
        super().__init__(self, 0, function, args, kwds, position, options, shared, items)
        self.future = future
        future.call = self

    # As in the work items of the standard executor.
    fn = property(lambda self: self.function)
    kwargs = property(lambda self: self.kwds)

    def begin(self) -> bool:
        """Return False if the future has been cancelled."""
        if self.begin_at_once() or self.future.set_running_or_notify_cancel():
            return True
        self._drop_references()
        return False

    def return_to_queue(self) -> None:
        """Note that no worker has the task, so that it can be cancelled."""
        super().return_to_queue()
        if self.future._state == RUNNING:
            self.future._state = PENDING  # another thread changes it only while a worker has the task

    def begin_at_once(self) -> bool:
        """Mark the future as running, unless it has been cancelled or another thread uses it."""
        self._is_ahead_no_more()
        future: Any = self.future
        lock = future._condition
        try:
            if lock.acquire(False) and future._state == PENDING:
                future._state = RUNNING
            return bool(future._state == RUNNING)
        finally:
            try:
                lock.release()
            except RuntimeError:
                pass  # another thread has it

    def _set(self, i: int, obj: Outcome) -> None:
        if obj[0] is not False and self._set_alone(obj[1]):
            return
        future: Any = self.future
        self._drop_references()
        if future._state == FINISHED:
            return  # a signal handler has raised after `_set_alone`
        if future.cancelled():
            future.set_running_or_notify_cancel()
        elif obj[0] is None and future._done_callbacks:  # they may ask for the result
            start_new_thread(future.set_result, (obj[1],))
        else:
            try:
                (future.set_exception if obj[0] is False else future.set_result)(obj[1])
            except InvalidStateError:  # another thread has cancelled it meanwhile
                future.set_running_or_notify_cancel()

    def _drop_references(self) -> None:
        """Drop the arguments now, not when the garbage collector runs: the task refers to itself."""
        future: Any = self.future
        future.call = None
        self.sink = _NO_SINK
        self.function, self.args, self.kwds, self.shared = starmap_chunk, (), None, None

    def _set_alone(self, value: Any) -> bool:
        future: Any = self.future
        lock = future._condition
        try:
            if not lock.acquire(False) or future._state != RUNNING:
                return False
            if future._done_callbacks or future._waiters or lock._waiters:
                return False
            future._result = value
            future._state = FINISHED
        finally:
            try:
                lock.release()
            except RuntimeError:
                pass  # another thread has it
        self._drop_references()
        return True


class _NoSink:
    def _set(self, i: int, obj: Outcome) -> None:
        pass

    def _set_alone(self, value: Any) -> bool:
        return False


_NO_SINK = _NoSink()


class _Stop:
    """Ends a `map` with the first exception that comes."""

    def __init__(self, options: TaskOptions) -> None:
        self.failed: Future[Any] = Future()  # it has the first exception
        self._running = options.cancel_running
        self._futures: dict[Future[Any], None] = {}  # without results

    def watch(self, future: Future[Any]) -> None:
        """Make *future* one of those that end together."""
        self._futures[future] = None
        future.add_done_callback(self._check)
        if self.failed.done():
            future.cancel()

    def _check(self, future: Future[Any]) -> None:
        self._futures.pop(future, None)
        if not self.failed.done() and not future.cancelled() and (error := future.exception()) is not None:
            self.failed.set_exception(error)
            for each in reversed(list(self._futures)):  # the last ones are in the queue, where no worker begins them
                _cancel(each, self._running)

    def wait(self, future: Future[Any], deadline: float | None) -> None:
        """Wait until *future* is done; raise the first exception of any as soon as it is there."""
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        wait((future, self.failed), seconds, FIRST_COMPLETED)
        if self.failed.done():
            self.failed.result()


def _cancel(future: Future[Any], running: bool) -> None:
    """Cancel a future, which may be one of the program's."""
    if type(future) is _Future and future._state == FINISHED:
        return
    if running and isinstance(future, _Future):
        future.cancel(running=True)
    else:
        future.cancel()


def _results(
    futures: deque[Future[Any]],
    submit_next: Callable[[], list[Future[Any]]] | None,
    deadline: float | None,
    stop: _Stop | None,
    cancel_running: bool,
) -> Iterator[Any]:
    try:
        while futures:
            if submit_next is not None:
                futures += submit_next()
            # No local variable may keep a result that has been yielded.
            if stop is not None:
                stop.wait(futures[0], deadline)
            yield _result(futures, deadline, cancel_running)
    finally:
        for future in futures:
            _cancel(future, cancel_running)


def _result(futures: deque[Future[Any]], deadline: float | None, cancel_running: bool) -> Any:
    future = futures[0]
    try:
        return future.result(None if deadline is None else deadline - time.monotonic())
    finally:
        _cancel(futures.popleft(), cancel_running)
        del future


def _items(chunks: Iterator[list[Any]]) -> Iterator[Any]:
    for chunk in chunks:
        chunk.reverse()
        while chunk:
            yield chunk.pop()


def _broken(reason: BaseException | None) -> BaseException:
    if reason is None:
        return BrokenProcessPool("the workers were ended by terminate_workers() or kill_workers()")
    if isinstance(reason, MissingGuardError):
        return BrokenProcessPool(str(reason))
    error = BrokenProcessPool(f"the workers could not be started: {type(reason).__name__}: {reason}")
    error.__cause__ = reason
    return error
