"""`TaskOptions`: limits and repetitions of tasks; `HasOptions`: pools and executors whose tasks can have others."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Iterable, Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    Errors = type[BaseException] | Iterable[type[BaseException]]


class TaskOptions:
    """The options of some tasks. It does not change."""

    __slots__ = (
        "call",
        "cancel_running",
        "is_watched",
        "memory_limit",
        "retries",
        "retry_on",
        "stop_on_error",
        "timeout",
    )

    def __init__(
        self,
        retries: int = 0,
        timeout: float | None = None,
        retry_on: Errors = (),
        memory_limit: int | None = None,
        stop_on_error: bool = False,
        cancel_running: bool = False,
        call: int | None = None,
    ) -> None:
        check_numbers(retries=retries, timeout=timeout, memory_limit=memory_limit)
        self.retries, self.timeout, self.memory_limit = retries, timeout, memory_limit
        self.retry_on = _classes(retry_on)
        self.stop_on_error, self.cancel_running = stop_on_error, cancel_running
        #: The number of the call that the tasks are of, if their random numbers depend on it.
        self.call = call
        #: Whether the pool has to look at a worker while it runs such a task.
        self.is_watched = timeout is not None or memory_limit is not None

    def changed(self, **options: Any) -> TaskOptions:
        """Return these options with others in place of some, those that are not None."""
        kept = {name: getattr(self, name) for name in self.__slots__ if name != "is_watched"}
        return TaskOptions(**kept | {name: value for name, value in options.items() if value is not None})


def _classes(given: Any) -> tuple[type[BaseException], ...]:
    classes = tuple(given) if isinstance(given, Iterable) else (given,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise TypeError(f"retry_on takes classes of exceptions, such as (OSError,), not {each!r}")
    return classes


def check_numbers(**options: Any) -> None:
    """
    Raise `ValueError` for a number that is out of its range, and `TypeError` for what is none.

    >>> check_numbers(retries=-1)
    Traceback (most recent call last):
    ValueError: retries must be 0 or more, not -1
    """
    for name, value in options.items():
        if (type(value) is int and value > 0) or (value is None and name != "chunksize"):
            continue
        above, least = _RANGES.get(name, (0, "more than 0 bytes"))
        whole = name in _RANGES and name != "timeout"
        if not _is_number(value, whole):
            raise TypeError(f"{name} must be {'a whole number, ' * whole}{least}, not {value!r}")
        number: Any = value
        if not number > above:  # nor is not-a-number
            raise ValueError(f"{name} must be {least}, not {value}")


def plain_sizes(chunksize: Any, buffersize: Any = None) -> tuple[int, int | None]:
    """
    Return the sizes as numbers with which one can calculate, which NumPy's are not; raise as `check_numbers`.

    >>> plain_sizes(1 << 70)[0] == sys.maxsize
    True
    """
    check_numbers(chunksize=chunksize, buffersize=buffersize)
    most = None if buffersize is None else operator.index(buffersize)
    return min(operator.index(chunksize), sys.maxsize), most


def _is_number(value: Any, whole: bool) -> bool:
    if isinstance(value, int) or (isinstance(value, float) and not whole):
        return True
    from numbers import Integral, Real  # which takes time, and others seldom come

    return isinstance(value, Integral if whole else Real)


_RANGES = {
    "retries": (-1, "0 or more"),
    "timeout": (0, "more than 0 seconds"),
    **dict.fromkeys(("threads_per_worker", "chunksize", "buffersize", "blocks"), (0, "at least 1")),
}

DEFAULTS = TaskOptions()


_OWN = {"_of", "_options", "__class__", "__dict__"}


class View:
    """
    A mixin for a pool, or an executor, that has the workers and the state of another one, and options of its own.

    All attributes but the options are those of the other.
    """

    _of: Any

    def __init__(self, of: Any, options: TaskOptions) -> None:
        object.__setattr__(self, "_of", of)
        object.__setattr__(self, "_options", options)

    def __getattribute__(self, name: str) -> Any:
        if name not in _OWN:
            theirs = vars(object.__getattribute__(self, "_of"))
            if name in theirs:
                return theirs[name]
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._of, name, value)

    def __del__(self) -> None:
        """Leave the warning about a pool that still runs to the pool."""


@functools.cache
def _view_class(kind: type) -> Any:
    return type(kind.__name__, (View, kind), {"__doc__": kind.__doc__, "__module__": kind.__module__})


class HasOptions:
    """A mixin for pools and executors: the method `options`."""

    _options: TaskOptions
    _scheduler: Any
    _calls: Iterator[int] | None

    def _call_options(self) -> TaskOptions:
        """Return the options of one call, with its number if there is a seed."""
        if self._calls is None:
            return self._options
        return self._options.changed(call=next(self._calls))

    def options(
        self,
        *,
        timeout: float | None = None,
        retries: int | None = None,
        retry_on: Errors | None = None,
        memory_limit: int | None = None,
        stop_on_error: bool | None = None,
        cancel_running: bool | None = None,
    ) -> Self:
        """
        Return the same workers with other options for the tasks that are submitted by it.

        It has all methods; to close it, or to shut it down, does that for all. What is left out is as before:
        ``pool.options(retries=2).options(timeout=5)`` has both.

        Parameters
        ----------
        timeout, retries, retry_on, memory_limit : optional
            As for `Pool`.
        stop_on_error : bool, optional
            Whether a ``map``, ``starmap``, ``imap`` or ``imap_unordered`` ends with the first exception that comes: it
            is raised at once, and the tasks that no worker has begun are dropped.
        cancel_running : bool, optional
            Whether *stop_on_error* also ends the tasks that run, by killing their workers.

        Returns
        -------
        Pool or ProcessPoolExecutor
            The view.

        Raises
        ------
        ValueError
            If a number is out of its range, or the pool has an *engine*.

        Examples
        --------
        >>> import time
        >>> with mp.Pool(2) as pool:
        ...     try:
        ...         pool.options(timeout=0.2).apply(time.sleep, (60,))
        ...     except mp.TaskTimeoutError as error:
        ...         print(error.seconds, pool.apply(abs, (-1,)))
        0.2 1
        """
        if not hasattr(self._scheduler, "watches"):
            raise ValueError("a pool with engine= has one set of options for all tasks: give them to Pool(...)")
        options = self._options.changed(
            retries=retries,
            timeout=timeout,
            retry_on=retry_on,
            memory_limit=memory_limit,
            stop_on_error=stop_on_error,
            cancel_running=cancel_running,
        )
        if options.is_watched:
            self._scheduler.watches = True
        of = vars(self).get("_of", self)
        return _view_class(type(of))(of, options)  # type: ignore[arg-type, no-any-return]
