"""From objects to bytes: multiprocessing's pickler first, cloudpickle where that cannot reach.

`multiprocessing.reduction.ForkingPickler` knows queues, locks, connections and whatever else has been
registered with it (arrays, with mp-reductions). It pickles functions by name. A lambda, a closure, a function
of a notebook or of an interactive session has no name that a new process could look up: with cloudpickle
installed those go by value, and everything else in the same pickle still as multiprocessing would have sent
it.
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

__all__ = ["Looker", "dumps", "main_can_be_imported", "main_left_out", "pickled", "plainly", "registered_elsewhere"]

EXTRA = "pip install 'mp-spawn[cloudpickle]'"
#: Set in a rank that was forked.
forked = False

UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError)


class Looker(Protocol):
    """Looks at what is pickled, and has a say in how."""

    buffers: list[pickle.PickleBuffer]

    def reduce(self, thing: Any) -> Any: ...


class _Pickler(ForkingPickler):
    """multiprocessing's; it refuses what a new process could not find."""

    def __init__(self, file: IO[bytes], looker: Looker | None) -> None:
        # ForkingPickler passes on what it gets, but no keywords.
        super().__init__(file, *(() if looker is None else (5, True, looker.buffers.append)))
        self._looker = looker
        self._no_main = not main_can_be_imported()
        # A forked rank sends to the process that has the very same main module.
        self._same_main = forked and looker is None

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, type | FunctionType):
            if thing.__module__ == "__main__" and not self._same_main:
                typed_in = isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith("<")
                if self._no_main or typed_in:
                    # It would go as a name that a new process could not look up.
                    raise pickle.PicklingError(f"{thing!r} stands in no file that a new process could import")
            return NotImplemented
        return NotImplemented if self._looker is None else self._looker.reduce(thing)


def plainly(thing: Any) -> bytes:
    """
    Pickle *thing*, of which it is known that it can be, as multiprocessing does.
    """
    # Bytes, where ForkingPickler.dumps() gives a view: a cycle with a view in it may be collected in a bad order.
    file = io.BytesIO()
    ForkingPickler(file).dump(thing)
    return file.getvalue()


def dumps(thing: Any, what: str, start_method: str = "spawn") -> bytes:
    """
    Pickle *thing* for another process; *what* names it in the error.

    Raises `pickle.PicklingError` with the reason and what to do about it.

    >>> pickle.loads(dumps((1, "a"), "the arguments"))
    (1, 'a')
    """
    return pickled(thing, what, start_method, _nobody)[0]


L = TypeVar("L", bound="Looker | None")


def pickled(thing: Any, what: str, start_method: str, new_looker: Callable[[], L]) -> tuple[bytes, L]:
    """
    As `dumps`, and who has looked at it: each attempt has a new one.
    """
    try:
        return _dump(thing, _Pickler, new_looker())
    except UNPICKLABLE as error:
        by_value = _by_value()
        if by_value is None:
            raise pickle.PicklingError(
                f"{what} cannot be pickled for start_method={start_method!r}: {error}. Define it at the top "
                f"level of a module, or {EXTRA} for lambdas, closures and notebooks, or use "
                "start_method='fork'"
            ) from error
        try:
            return _dump(thing, by_value, new_looker())
        except UNPICKLABLE as again:
            text = f"{what} cannot be pickled, by cloudpickle neither: {again}"
            raise pickle.PicklingError(text) from error


def _nobody() -> None:
    return None


def _dump(thing: Any, pickler: Callable[..., Any], looker: L) -> tuple[bytes, L]:
    file = io.BytesIO()
    pickler(file, looker).dump(thing)
    return file.getvalue(), looker


def _by_value() -> Callable[..., Any] | None:
    """
    A pickler that pickles functions by value; None when cloudpickle is not installed.
    """
    try:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return None

    class ByValue(cloudpickle.CloudPickler):  # type: ignore[misc, unused-ignore]
        # Of the class, as the table is looked up while an instance is made.
        dispatch_table: ClassVar[Any] = ChainMap(_registered(), cloudpickle.CloudPickler.dispatch_table)

        def __init__(self, file: IO[bytes], looker: Looker | None) -> None:
            super().__init__(file, 5, None if looker is None else looker.buffers.append)
            self._looker = looker

        def reducer_override(self, thing: Any) -> Any:
            found = NotImplemented if self._looker is None else self._looker.reduce(thing)
            return super().reducer_override(thing) if found is NotImplemented else found

    return ByValue


def _registered() -> dict[type, Callable[..., Any]]:
    reducers: dict[type, Callable[..., Any]] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    return reducers


def registered_elsewhere(kind: type) -> Callable[..., Any] | None:
    """
    How objects of *kind* are sent, when somebody else than multiprocessing itself has registered that.
    """
    reduce = _registered().get(kind)
    return None if reduce is None or reduce.__module__.partition(".")[0] == "multiprocessing" else reduce


def main_can_be_imported() -> bool:
    """
    Whether a new process can have what is in this process's `__main__` by importing it again.
    """
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        # A package's __main__.py is not imported again by multiprocessing.
        return not spec.name.endswith("__main__")
    path = getattr(main, "__file__", None)
    return path is not None and os.path.exists(path)


@contextmanager
def main_left_out(always: bool = False) -> Iterator[None]:
    """
    Start processes without the main module, where that cannot be imported again, or *always*.

    multiprocessing tries all the same when it has a ``__file__``, as that of ``python - <program`` has.
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
