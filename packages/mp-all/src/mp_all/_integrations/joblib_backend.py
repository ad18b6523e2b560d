"""The parallel backend of joblib on a pool of mp_pool. Imported by `joblib_install`, and by workers.

Note [What is sent]
-------------------
joblib gives a backend batches of calls, which go to a worker by `sent.py`, as their results come back:

    caller   Sent(batch)    large private arrays: inputs, see `_inputs.py`; other arrays: as in any message
    worker   _run(batch)     returns a Sent of the result, or of the exception with its traceback
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures.process import _RemoteTraceback
from typing import Any

import joblib
from joblib._parallel_backends import (
    AutoBatchingMixin,
    FallbackToBackend,
    LokyBackend,
    ParallelBackendBase,
    SequentialBackend,
)

from mp_all._inputs import Inputs
from mp_all._integrations import joblib_workers
from mp_all._integrations.sent import Sent
from mp_core.sharing.backend import recorders
from mp_pool.tasks.task_messages import name_of

LEAST = 1 << 20  # bytes, as joblib's max_nbytes


class _Failed:
    """An exception of a batch, and its traceback as text."""

    def __init__(self, error: BaseException, text: str) -> None:
        self.error, self.text = error, text


def _begin(threads: int) -> None:
    """Prepare a worker: tasks may name this backend for calls of their own, and libraries use *threads* threads."""
    register(make_default=False)
    joblib_workers.limit_threads(threads)


def _run(batch: Callable[[], Any]) -> Sent:
    for recorder in recorders:
        for function, _, _ in getattr(batch, "items", [])[:1]:
            recorder.called = name_of(function, ())
    try:
        return Sent(batch())
    except Exception as error:
        return Sent(_Failed(error, "".join(traceback.format_exception(error))))


class Backend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """
    joblib's calls on worker processes that survive from one call to the next, with arrays in shared memory.

    Parameters are those that `joblib.parallel_config` passes on: *inner_max_num_threads*, *idle_worker_timeout* in
    seconds, and *retries* and *max_memory_per_child* as for `ProcessPoolExecutor`.
    """

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    supports_sharedmem = False
    uses_threads = False

    # The rules of loky: one job in daemons, and in threads of other calls.
    effective_n_jobs = LokyBackend.effective_n_jobs

    def __init__(
        self,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        idle_worker_timeout: float = 300,
        retries: int = 0,
        max_memory_per_child: int | None = None,
    ) -> None:
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        self._idle = idle_worker_timeout
        self._options: dict[str, Any] = {"retries": retries, "max_memory_per_child": max_memory_per_child}
        self._workers: joblib_workers.Workers | None = None
        self._inputs: Inputs | None = None
        self._futures: set[Future[Any]] = set()

    def configure(self, n_jobs: int = 1, parallel: Any = None, max_nbytes: int | None = LEAST, **ignored: Any) -> int:
        """Take the workers, and return their number."""
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        self._inputs = None if max_nbytes is None else Inputs(max_nbytes)
        environment = self._prepare_worker_env(n_jobs)
        options = self._options | {"initializer": _begin, "initargs": (int(environment["OMP_NUM_THREADS"]),)}
        self._workers = joblib_workers.take(n_jobs, environment, options, self._idle)
        return n_jobs

    def start_call(self) -> None:
        """Forget the arrays of the call before: the caller may have changed them."""
        if self._inputs is not None:
            self._inputs.clear()

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> Future[Any]:
        assert self._workers is not None
        sent: Any = Sent(func, self._inputs)  # arrives as *func*
        future = self._workers.executor.submit(_run, sent)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, future: Future[Any]) -> Any:
        """Return the result of a batch, or raise its exception."""
        try:
            result = future.result()
        except CancelledError:
            raise RuntimeError(
                "this call of Parallel was ended before the result of a task came: keep its generator until all "
                "results are taken"
            ) from None
        if type(result) is _Failed:
            result.error.__cause__ = _RemoteTraceback(f'\n"""\n{result.text}"""')  # type: ignore[arg-type]
            raise result.error
        return result

    def terminate(self) -> None:
        """End the call; the workers stay for the next one."""
        if self._workers is not None:
            self._workers.give_back()
            self._workers = None
        if self._inputs is not None:
            self._inputs.clear()
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """
        Cancel the tasks of this call; the workers are ended if no other call uses them. With *ensure_ready*, take
        workers again.
        """
        for future in list(self._futures):
            future.cancel()
        if self._workers is not None:
            self._workers.give_back(kill=True)
            self._workers = None
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel, **self.parallel._backend_kwargs)


def register(make_default: bool) -> None:
    joblib.register_parallel_backend("mp_all", Backend, make_default=make_default)
