"""Pickle objects for other processes: multiprocessing's pickler first, cloudpickle if that fails.

`multiprocessing.reduction.ForkingPickler` knows queues, locks, connections and everything that has been
registered with it (arrays, with mp-reductions). It pickles functions by name. A lambda, a closure, a function
of a notebook or of an interactive session has no name that a new process could look up: with cloudpickle
installed, these are pickled by value, and everything else in the same pickle as multiprocessing does it.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import IO, Any, ClassVar, Protocol, TypeVar

__all__ = [
    "Reducer",
    "dumps",
    "dumps_plainly",
    "dumps_with",
    "foreign_reducer",
    "main_can_be_imported",
    "main_left_out",
]

EXTRA = "pip install 'mp-spawn[cloudpickle]'"

UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError)


class Reducer(Protocol):
    """Decides how objects are pickled, and takes their out-of-band buffers."""

    buffers: list[pickle.PickleBuffer]

    def reduce(self, thing: Any) -> Any: ...


R = TypeVar("R", bound="Reducer")
N = TypeVar("N", bound="Reducer | None")


class _Pickler(ForkingPickler):
    """multiprocessing's pickler, which also refuses functions that a new process could not find."""

    def __init__(self, file: IO[bytes], reducer: Reducer | None, same_main: bool) -> None:
        # ForkingPickler passes positional arguments on, but no keyword arguments.
        super().__init__(file, *(() if reducer is None else (5, True, reducer.buffers.append)))
        self._reducer = reducer
        self._same_main = same_main
        self._no_main = not main_can_be_imported()

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, type | FunctionType):
            if thing.__module__ == "__main__" and not self._same_main:
                typed_in = isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith("<")
                if self._no_main or typed_in:
                    # It would be pickled as a name that a new process could not look up.
                    raise pickle.PicklingError(f"{thing!r} is in no file that a new process could import")
            return NotImplemented
        return NotImplemented if self._reducer is None else self._reducer.reduce(thing)


def dumps_plainly(thing: Any) -> bytes:
    """
    Pickle *thing*, which is known to be picklable, as multiprocessing does.
    """
    # Bytes, where ForkingPickler.dumps() gives a view: a cycle with a view in it may be collected in a bad order.
    file = io.BytesIO()
    ForkingPickler(file).dump(thing)
    return file.getvalue()


def dumps(thing: Any, what: str, start_method: str = "spawn", same_main: bool = False) -> bytes:
    """
    Pickle *thing* for another process; *what* names it in the error.

    *same_main* says that the receiver has the very same main module, as the parent of a forked rank has. Raises
    `pickle.PicklingError` with the reason and the remedy.

    >>> pickle.loads(dumps((1, "a"), "the arguments"))
    (1, 'a')
    """
    return _dumps(_no_reducer, thing, what, start_method, same_main)[0]


def dumps_with(new_reducer: Callable[[], R], thing: Any, what: str, start_method: str) -> tuple[bytes, R]:
    """
    Pickle *thing* as `dumps` does, and return the reducer, too: each attempt has a new one.
    """
    return _dumps(new_reducer, thing, what, start_method, False)


def _no_reducer() -> None:
    return None


def _dumps(new_reducer: Callable[[], N], thing: Any, what: str, start_method: str, same_main: bool) -> tuple[bytes, N]:
    def pickled_by(pickler: Callable[..., Any]) -> tuple[bytes, N]:
        file, reducer = io.BytesIO(), new_reducer()
        pickler(file, reducer, same_main).dump(thing)
        return file.getvalue(), reducer

    try:
        return pickled_by(_Pickler)
    except UNPICKLABLE as error:
        by_value = _by_value()
        if by_value is None:
            raise pickle.PicklingError(
                f"{what} cannot be pickled for start_method={start_method!r}: {error}. Define it at the top "
                f"level of a module, or {EXTRA} for lambdas, closures and notebooks, or use "
                "start_method='fork'"
            ) from error
        try:
            return pickled_by(by_value)
        except UNPICKLABLE as again:
            text = f"{what} cannot be pickled, not even by cloudpickle: {again}"
            raise pickle.PicklingError(text) from error


def _by_value() -> Callable[..., Any] | None:
    """
    Return a pickler that pickles functions by value; None without cloudpickle.
    """
    try:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return None

    class ByValue(cloudpickle.CloudPickler):  # type: ignore[misc, unused-ignore]
        # An attribute of the class: the table is looked up while an instance is made.
        dispatch_table: ClassVar[Any] = ChainMap(_registered(), cloudpickle.CloudPickler.dispatch_table)

        def __init__(self, file: IO[bytes], reducer: Reducer | None, same_main: bool) -> None:
            super().__init__(file, 5, None if reducer is None else reducer.buffers.append)
            self._reducer = reducer

        def reducer_override(self, thing: Any) -> Any:
            found = NotImplemented if self._reducer is None else self._reducer.reduce(thing)
            return super().reducer_override(thing) if found is NotImplemented else found

    return ByValue


def _registered() -> dict[type, Callable[..., Any]]:
    reducers: dict[type, Callable[..., Any]] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    return reducers


def foreign_reducer(kind: type) -> Callable[..., Any] | None:
    """
    Return the reducer of *kind* if a package other than multiprocessing has registered it, else None.
    """
    reduce = _registered().get(kind)
    return None if reduce is None or reduce.__module__.partition(".")[0] == "multiprocessing" else reduce


def main_can_be_imported() -> bool:
    """
    Tell whether a new process can have the contents of this process's `__main__` by importing it again.
    """
    if getattr(sys, "frozen", False):
        return True  # a new process executes the whole program again, which has its main module inside
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        # multiprocessing does not import a package's __main__.py again.
        return not spec.name.endswith("__main__")
    path = getattr(main, "__file__", None)
    return path is not None and os.path.exists(path)


@contextmanager
def main_left_out(always: bool = False) -> Iterator[None]:
    """
    Start processes without the main module if it cannot be imported again, or *always*.

    Otherwise multiprocessing tries to import any main module with a ``__file__``, as ``python - <program`` has.
    """
    main = vars(sys.modules["__main__"])
    if "__file__" not in main or (main_can_be_imported() and not always):
        yield
        return
    file = main.pop("__file__")
    try:
        yield
    finally:
        main["__file__"] = file
