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
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import IO, Any, ClassVar, NamedTuple

__all__ = ["Pickle", "dumps", "main_can_be_imported", "plainly", "registered_elsewhere"]

EXTRA = "pip install 'mp-spawn[cloudpickle]'"
UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError)


class Pickle(NamedTuple):
    """Bytes, and whether more than one process may unpickle them."""

    data: bytes
    many: bool


class _Pickler(ForkingPickler):
    """Looks at what it pickles."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.many = True
        self._no_main = not main_can_be_imported()

    def reducer_override(self, thing: Any) -> Any:
        if registered_elsewhere(type(thing)):
            # Somebody's reducer may hand out a claim, a reference that is counted for one receiver.
            self.many = False
        elif isinstance(thing, type | FunctionType) and thing.__module__ == "__main__":
            typed_in = isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith("<")
            if self._no_main or typed_in:
                # It would go as a name that a new process could not look up.
                raise pickle.PicklingError(f"{thing!r} stands in no file that a new process could import")
        return NotImplemented


def plainly(thing: Any) -> bytes:
    """
    Pickle *thing*, of which it is known that it can be, as multiprocessing does.
    """
    # Bytes, where ForkingPickler.dumps() gives a view: a cycle with a view in it may be collected in a bad order.
    file = io.BytesIO()
    ForkingPickler(file).dump(thing)
    return file.getvalue()


def dumps(thing: Any, what: str, start_method: str = "spawn") -> Pickle:
    """
    Pickle *thing* for another process; *what* names it in the error.

    Raises `pickle.PicklingError` with the reason and what to do about it.

    >>> pickle.loads(dumps((1, "a"), "the arguments").data)
    (1, 'a')
    """
    file = io.BytesIO()
    try:
        pickler = _Pickler(file)
        pickler.dump(thing)
        return Pickle(file.getvalue(), pickler.many)
    except UNPICKLABLE as error:
        try:
            by_value = _by_value(thing)
        except UNPICKLABLE as again:
            text = f"{what} cannot be pickled, by cloudpickle neither: {again}"
            raise pickle.PicklingError(text) from error
        if by_value is None:
            raise pickle.PicklingError(
                f"{what} cannot be pickled for start_method={start_method!r}: {error}. Define it at the top "
                f"level of a module, or {EXTRA} for lambdas, closures and notebooks, or use "
                "start_method='fork'"
            ) from error
        return by_value


def _by_value(thing: Any) -> Pickle | None:
    """
    The pickle by cloudpickle; None when that is not installed.
    """
    try:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return None

    class ByValue(cloudpickle.CloudPickler):  # type: ignore[misc, unused-ignore]
        # Of the class, as the table is looked up while an instance is made.
        dispatch_table: ClassVar[Any] = ChainMap(_registered(), cloudpickle.CloudPickler.dispatch_table)

    file = io.BytesIO()
    ByValue(file).dump(thing)
    return Pickle(file.getvalue(), many=False)


def _registered() -> dict[type, Callable[..., Any]]:
    reducers: dict[type, Callable[..., Any]] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    return reducers


def registered_elsewhere(kind: type) -> bool:
    """
    Whether somebody else than multiprocessing itself has registered how objects of *kind* are sent.
    """
    reduce = _registered().get(kind)
    return reduce is not None and reduce.__module__.partition(".")[0] != "multiprocessing"


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
