"""Pickle objects for other processes: as multiprocessing does, functions and classes without a name by definition.

`multiprocessing.reduction.ForkingPickler` knows queues, locks, connections and everything that has been registered with
it (arrays, with mp-reductions). mp_core.messages.definitions adds lambdas, closures, and what a notebook or a prompt
defines.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol


class Reducer(Protocol):
    """Decides how objects are pickled, and takes their out-of-band buffers."""

    buffers: list[pickle.PickleBuffer]

    def reduce(self, thing: Any) -> Any: ...


def dumps_plainly(thing: Any) -> bytes:
    """Pickle *thing*, which is known to be picklable, as multiprocessing does."""
    # Bytes, where ForkingPickler.dumps() gives a view: a cycle with a view in it may be collected in a bad order.
    file = io.BytesIO()
    ForkingPickler(file).dump(thing)
    return file.getvalue()


def dumps(
    thing: Any, what: str, start_method: str = "", same_main: bool = False, reducer: Reducer | None = None
) -> bytes:
    """
    Pickle *thing* for another process; *what* names it in the error, with the *start_method* if that is why.

    *same_main* says that the receiver has the very same main module, as the parent of a forked rank has. Raises
    `pickle.PicklingError` with the reason and the remedy.

    >>> pickle.loads(dumps((1, "a"), "the arguments"))
    (1, 'a')
    """
    # Few starts need them.
    from mp_core.children.main_module import UNPICKLABLE
    from mp_core.messages import definitions

    file = io.BytesIO()
    # ForkingPickler passes positional arguments on, but no keyword arguments.
    pickler = definitions.Pickler(file, *(() if reducer is None else (5, True, reducer.buffers.append)))
    pickler.same_main = same_main
    if reducer is not None:
        pickler.override = reducer.reduce
    try:
        pickler.dump(thing)
    except (*UNPICKLABLE, TypeError) as error:
        remedy = ", or use start_method='fork'" if start_method and "cloudpickle" in str(error) else ""
        why = f" for start_method={start_method!r}" if start_method else ""
        text = f"{what} cannot be pickled{why}: {error}{remedy}"
        raise pickle.PicklingError(text) from error
    return file.getvalue()


def foreign_reducer(kind: type) -> Callable[..., Any] | None:
    """Return the reducer of *kind* if a package other than multiprocessing has registered it, else None."""
    reduce = ForkingPickler._extra_reducers.get(kind)  # type: ignore[attr-defined]
    return None if reduce is None or reduce.__module__.partition(".")[0] == "multiprocessing" else reduce
