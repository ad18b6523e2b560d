"""The results that the methods of a pool return: the standard classes, and how the pool aborts them."""

from __future__ import annotations

import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from multiprocessing import TimeoutError
from multiprocessing.pool import (  # type: ignore[attr-defined]
    ApplyResult,
    IMapIterator,
    IMapUnorderedIterator,
    MapResult,
    job_counter,
)

from mp_core.system.waits import Condition, Gate
from mp_pool.scheduling.unopened import Unopened
from mp_pool.tasks.task import Delivery, Outcome, Task, cancelled, report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# multiprocessing's classes have no types for what is inside them.
_Apply: Any = ApplyResult
_Map: Any = MapResult
_IMap: Any = IMapIterator
_IMapUnordered: Any = IMapUnorderedIterator


class _Holder:
    """A mixin for the results of calls: it opens messages in the thread that waits, see `unopened.py`."""

    opens = True
    _held: dict[int, Unopened] | None = None
    _event: Any
    _success: bool
    _value: Any
    _callback: Any
    _error_callback: Any

    def _hold(self, i: int, message: Unopened) -> None:
        if self._held is None:
            self._held = {}
        self._held[i] = message
        callbacks = self._callback, self._error_callback
        self._callback = self._error_callback = None
        if callbacks != (None, None):
            try:
                start_new_thread(self._call_back, callbacks)
            except RuntimeError as error:  # there can be no more threads
                report(error)

    def _open(self) -> None:
        """Put the outcomes of the messages in their places; two threads may do that at once."""
        held: Any = self._held
        while held:
            for i, message in sorted(held.items()):
                self._fill(i, *message.outcome())
                held.pop(i, None)

    def _fill(self, i: int, success: bool, value: Any) -> None:
        self._success, self._value = success, value

    def _call_back(self, callback: Any, error_callback: Any) -> None:
        self._event.wait()
        self._open()
        call = callback if self._success else error_callback
        if call is not None:
            call(self._value)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the result is there."""
        self._event.wait(timeout)
        if self._held and self._event.is_set():
            self._open()

    def get(self, timeout: float | None = None) -> Any:
        """Return the result, or raise the exception; raise `multiprocessing.TimeoutError` if neither comes in time."""
        self.wait(timeout)
        if not self._event.is_set():
            raise TimeoutError
        if self._success:
            return self._value
        try:
            raise self._value
        finally:
            del self  # the traceback has this frame, and this object the exception: none would go with its last user

    def successful(self) -> bool:
        """Return whether the call has raised no exception; raise `ValueError` if it is not done."""
        if self._event.is_set():
            self._open()
        return super().successful()  # type: ignore[misc, no-any-return]


class Applied(_Holder, _Apply):  # type: ignore[misc]
    """The result of one call."""

    _event: Gate
    _cache: dict[int, Any]
    _job: int
    task: Task | None = None
    _has_outcome = False  # before the callback hears of it, which may cancel it

    def __init__(self, pool: Any, callback: Any, error_callback: Any) -> None:
        # The attributes of the standard class, whose event takes longer to make than all else.
        self._pool: Any = pool
        self._event = Gate()
        self._job = next(job_counter)
        self._cache = pool._cache
        self._callback, self._error_callback = callback, error_callback
        self._cache[self._job] = self
        self._scheduler = pool._scheduler

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the result is there."""
        task = self.task
        if task is not None and not self._event.is_set() and (timeout is None or timeout > 0):
            self._scheduler.receive(task)
        super().wait(timeout)

    def cancel(self, running: bool = False) -> bool:
        """
        Cancel the call if no worker has begun it; with *running*, also then: the worker is killed, and no other task is
        lost. `get` raises ``concurrent.futures.CancelledError``.

        Return False if the call has its result, or goes on.
        """
        return _cancel(self, running)

    def _set(self, i: int, obj: Outcome) -> None:
        if self._has_outcome:
            return
        self._has_outcome = True
        self.task = None
        if obj[0] is None:
            self._hold(i, obj[1])
        super()._set(i, obj)

    def _set_alone(self, value: Any) -> bool:
        """
        Take the value unless others have to hear of it. A signal handler may raise anywhere in between: then `_set`
        comes again, and does the rest.
        """
        if self._callback is not None or self._error_callback is not None:
            return False
        self._success, self._value = True, value
        self._event.set()
        self.task = self._pool = None
        self._cache.pop(self._job, None)
        return True

    def _abort(self, error: BaseException) -> None:
        if not self._event.is_set():
            self._set(0, (False, error))


def _cancel(result: Any, running: bool) -> bool:
    from concurrent.futures import CancelledError

    if not result._event.is_set() and not getattr(result, "_has_outcome", False):
        result._scheduler.cancel(result, running)
    return isinstance(result._value, CancelledError) if result._event.is_set() else False


def _stop(result: Any, error: BaseException) -> None:
    """End the result of many tasks with the first error, and drop its other tasks."""
    result._abort(error)
    result._scheduler.cancel(result, result._options.cancel_running, abort=False)


class Mapped(_Holder, _Map):  # type: ignore[misc]
    """
    The results of a `map`; with *single*, each task has one result instead of a list. Of several exceptions, it raises
    that of the first item.
    """

    single = False
    _failed: int | None = None  # the index of the task whose exception it has
    _number_left = 0  # also if a signal handler raises before the standard class sets it
    _chunksize: int
    _is_cancelled = False  # the error comes in a moment

    def __init__(self, pool: Any, chunksize: int, length: int, callback: Any, error_callback: Any) -> None:
        super().__init__(pool, chunksize, length, callback, error_callback)
        self._scheduler, self._options = pool._scheduler, pool._options
        standard, self._event = self._event, Gate()
        if standard.is_set():
            self._event.set()

    @property
    def is_over(self) -> bool:
        """Whether no more results count."""
        return self._is_cancelled or self._number_left <= 0

    def cancel(self, running: bool = False) -> bool:
        """
        Cancel the tasks that no worker has begun; with *running*, kill the workers of the others. `get` raises
        ``concurrent.futures.CancelledError``. Return False if all have their results, or will be cancelled in a moment.
        """
        self._scheduler.check_cancel(running)
        self._is_cancelled = self._is_cancelled or (self._number_left > 0 and self._scheduler.is_own())
        return _cancel(self, running)

    def _set(self, i: int, obj: Outcome) -> None:
        if self.is_over:
            return
        if obj[0] is False and self._options.stop_on_error and self._number_left > 1:
            _stop(self, obj[1])
            return
        if obj[0] is None:
            self._hold(i, obj[1])
            obj = True, self._value[i * self._chunksize : (i + 1) * self._chunksize] if self._success else ()
        elif not obj[0] and (self._failed is None or i < self._failed):
            self._failed = i
            if not self._success:
                self._value = obj[1]
        elif self.single and obj[0]:
            obj = True, (obj[1],)
        super()._set(i, obj)

    def _fill(self, i: int, success: bool, value: Any) -> None:
        if success and self._success:
            self._value[i * self._chunksize : (i + 1) * self._chunksize] = (value,) if self.single else value
        elif not success and (self._failed is None or i < self._failed):
            self._failed, self._success, self._value = i, False, value

    def _set_all(self, outcomes: list[Delivery]) -> None:
        for _, i, outcome, _ in outcomes:
            if self.single and self._success and outcome[0] and self._number_left > 1:
                self._value[i] = outcome[1]
                self._number_left -= 1
            else:
                with suppress(KeyError):  # the result was dropped
                    self._set(i, outcome)

    def _abort(self, error: BaseException) -> None:
        if self._number_left > 0:
            self._number_left = 1
            super()._set(0, (False, error))


class _Abortable:
    """A mixin for the iterators, which adds `_abort`."""

    _cond: Condition
    _items: Any
    _unsorted: dict[int, Outcome]
    _cache: dict[int, Any]
    _job: int
    _pool: Any
    _index: int
    _length: int | None
    opens = True
    is_over = False  # no more results count
    _reason: BaseException | None = None  # the error that `_abort` has added

    def next(self, timeout: float | None = None) -> Any:
        """Return the next result; raise `multiprocessing.TimeoutError` if it does not come in *timeout* seconds."""
        try:
            success, value = self._items.popleft()
        except IndexError:
            success, value = self._wait_for_item(timeout)
        if success is None:
            success, value = value.outcome()
        if success:
            return value
        try:
            raise value
        finally:
            del value  # the traceback has this frame

    __next__ = next

    def _wait_for_item(self, timeout: float | None) -> Any:
        until = None if timeout is None else time.monotonic() + timeout
        is_late = False
        with self._cond:
            while True:
                try:
                    return self._items.popleft()
                except IndexError:  # also if another thread has taken what this one was woken for
                    if self._index == self._length:
                        self._pool = None
                        raise StopIteration from None
                    if is_late:
                        raise TimeoutError from None
                is_late = not self._cond.wait(None if until is None else until - time.monotonic())

    def __init__(self, pool: Any) -> None:
        super().__init__(pool)  # type: ignore[call-arg]
        self._cond = Condition()
        self._scheduler, self._options = pool._scheduler, pool._options

    def cancel(self, running: bool = False) -> bool:
        """
        Cancel the tasks that no worker has begun; with *running*, kill the workers of the others. After the results
        that are there, `next` raises ``concurrent.futures.CancelledError``. Return False if all are there.
        """
        if self.is_over or self._index == self._length:
            return False
        self._scheduler.check_cancel(running)
        self._abort(cancelled())  # first, so that nobody submits more
        self._scheduler.cancel(self, running, abort=False)
        return True

    def _set(self, i: int, obj: Outcome) -> None:
        self._set_all_of([(self, i, obj, None)])  # type: ignore[list-item]

    def _set_error(self, given: int, error: BaseException) -> None:
        """Add the error of an iterable, of which *given* tasks were made, behind the results of all."""
        self._set(given, (False, error))
        self._set_length(given + 1)

    def _set_all(self, outcomes: list[Delivery]) -> None:
        if self._options.stop_on_error and not self.is_over:
            for at, (_, _, outcome, _) in enumerate(outcomes):
                if outcome[0] is False:
                    self._set_all_of(outcomes[:at])
                    _stop(self, outcome[1])
                    return
        self._set_all_of(outcomes)

    def _set_all_of(self, outcomes: list[Delivery]) -> None:
        with self._cond:
            if self.is_over:
                return
            before = self._index
            self._add_all(outcomes)
            self._cond.notify(self._index - before)
            if self._index == self._length:
                self._cond.notify_all()  # several threads may take the results
                self._cache.pop(self._job, None)
                self._pool = None

    def _add_all(self, outcomes: list[Delivery]) -> None:
        raise NotImplementedError

    def _set_length(self, length: int) -> None:
        if not self.is_over:
            with self._cond:
                self._length = length
                self._set_all_of([])
        elif self._index == length:
            # A closed pool has ended before its consumer came to know the length: every result is there.
            with self._cond:
                if self._items and self._items[-1][1] is self._reason:
                    self._items.pop()

    def _abort(self, error: BaseException) -> None:
        with self._cond:
            if self.is_over or self._index == self._length:
                return
            self.is_over = True
            self._unsorted.clear()  # behind a gap: each would be taken for another one's result
            self._items.append((False, error))
            self._reason = error
            self._length = self._index
            self._cond.notify_all()
            self._cache.pop(self._job, None)
            self._pool = None


class Imapped(_Abortable, _IMap):  # type: ignore[misc]
    """The results of an `imap`."""

    def _add_all(self, outcomes: list[Delivery]) -> None:
        items, unsorted, index = self._items, self._unsorted, self._index
        for _, i, outcome, _ in outcomes:
            if i == index:
                items.append(outcome)
                index += 1
            else:
                unsorted[i] = outcome
        while index in unsorted:
            items.append(unsorted.pop(index))
            index += 1
        self._index = index


class ImappedUnordered(_Abortable, _IMapUnordered):  # type: ignore[misc]
    """The results of an `imap_unordered`."""

    _error: tuple[int, BaseException] | None = None

    def _set_error(self, given: int, error: BaseException) -> None:
        self._error = given, error
        self._set_length(given + 1)

    def _add_all(self, outcomes: list[Delivery]) -> None:
        self._items.extend([outcome for _, _, outcome, _ in outcomes])
        self._index += len(outcomes)
        if self._error is not None and self._index == self._error[0]:
            self._items.append((False, self._error[1]))
            self._index += 1
            self._error = None


class Chunks:
    """
    The items of the chunks from *source*. For a chunk that failed, `next` raises; the next call continues after it.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._items: Iterator[Any] = iter(())  # of the chunk that came last

    def __iter__(self) -> Chunks:
        return self

    def cancel(self, running: bool = False) -> bool:
        """Cancel the chunks that have no results, see `Imapped`."""
        return bool(self._source.cancel(running))

    def next(self, timeout: float | None = None) -> Any:
        """Return the next item; raise `multiprocessing.TimeoutError` if it does not come in *timeout* seconds."""
        while True:
            for item in self._items:
                return item
            self._items = iter(self._source.next(timeout))

    def __next__(self) -> Any:
        for item in self._items:  # nearly always; a call of `next` takes as long as a task's share of its chunk
            return item
        return self.next()


class Bounded:
    """
    The results of an `imap` that is at most *ahead* tasks before its consumer; `next` also reads the iterable.

    *submit* takes the index of a task and its item, and raises an exception if the pool is closed.
    """

    def __init__(self, results: Any, items: Iterator[Any], submit: Callable[[int, Any], None], ahead: int) -> None:
        self._results, self._items, self._submit = results, items, submit
        self._count = 0
        self._ended = False
        self._refused: BaseException | None = None
        for _ in range(ahead):
            self._feed()

    def _feed(self) -> None:
        if self._ended:
            return
        try:
            for item in islice(self._items, 1):
                self._submit(self._count, item)
                self._count += 1
                return
        except Exception as error:
            self._refused = error
        self._ended = True
        self._results._set_length(self._count)

    def __iter__(self) -> Bounded:
        return self

    def cancel(self, running: bool = False) -> bool:
        """Cancel the tasks that have no results, and read the iterable no further, see `Imapped`."""
        self._ended = True
        return bool(self._results.cancel(running))

    def next(self, timeout: float | None = None) -> Any:
        """Return the next result; raise `multiprocessing.TimeoutError` if it does not come in *timeout* seconds."""
        try:
            value = self._results.next(timeout)
        except StopIteration:
            if self._refused is not None:
                # The exception of the iterable comes after the results of all its items.
                error, self._refused = self._refused, None
                try:
                    raise error from None
                finally:
                    del error  # the traceback has this frame, which would keep the frames of all callers
            raise
        except BaseException as error:
            if type(error) is not TimeoutError or error.__cause__ is not None:
                self._feed_after((False, error))  # the exception is that of a task
            raise
        self._feed_after((True, value))
        return value

    def _feed_after(self, taken: Outcome) -> None:
        """Read an item in the place of the result that was *taken*, which comes again if that raises."""
        try:
            self._feed()
        except BaseException:
            self._results._items.appendleft(taken)
            raise

    def __next__(self) -> Any:
        return self.next()
