"""Which part of an object cannot be pickled: a note for the error, such as "args[1].model._lock, a lock".

It runs only after an error: the object is pickled again, by Python's own pickler, which shows where it stands.
"""

from __future__ import annotations

import functools
import io
import itertools
import pickle
from multiprocessing.reduction import ForkingPickler
from types import FunctionType

from mp_core.messages import pickling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST = 200  # characters of a path
_SIGN = ", cannot be pickled"
_REMEDIES = {
    "should only be shared": "pass it to the workers by initializer= and initargs=, or to a Process by args=",
    "lock": "leave it out by __getstate__, and make it again in __setstate__ or in the child",
}


def note(error: BaseException, where: str, definitions: bool = False, /, **parts: Any) -> None:
    """
    Add to *error* which of the named *parts*, or what in it, cannot be pickled; *where* says of what they are parts.

    With *definitions*, functions and classes that have no name travel, as they do in tasks.

    Examples
    --------
    >>> import threading
    >>> error = TypeError("cannot pickle '_thread.lock' object")
    >>> mp_core.messages.unpicklable.note(error, "the task f", args=(1, [threading.Lock()]))
    >>> error.__notes__[0].partition(";")[0]
    "args[1][0] in the task f, of type 'lock', cannot be pickled"
    """
    # Once: a pool may pickle a task more than one time, and the error may be that of an inner pool.
    is_noted = any(isinstance(text, str) and _SIGN in text for text in getattr(error, "__notes__", ()))
    if is_noted or isinstance(error, MemoryError):
        return
    for name, part in parts.items():
        found = _find(part, definitions)
        if found is not None:
            path, thing = found
            path = path if len(path) <= LONGEST else path[:LONGEST] + "…"
            texts = [f"{name}{path} in {where}, of type {type(thing).__name__!r}{_SIGN}"]
            texts += [remedy for sign, remedy in _REMEDIES.items() if sign in str(error)][:1]
            try:
                error.add_note("; ".join(texts))
            except Exception:
                pass  # an exception of the program that takes no notes
            return


def _find(thing: Any, definitions: bool) -> tuple[str, Any] | None:
    """Return the path to what cannot be pickled in *thing*, and that; None if all can."""
    pickler = _Pickler(io.BytesIO(), 5, buffer_callback=lambda _: None)
    pickler.definitions = definitions
    try:
        pickling.try_to_pickle(pickler.dump, thing)
    except Exception:
        return _path(pickler.stack), pickler.stack[-1] if pickler.stack else thing
    return None


class _Pickler(pickle._Pickler):
    """Leaves the objects that it was pickling in `stack`, the outermost first."""

    definitions = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.stack: list[Any] = []
        self.dispatch_table = ForkingPickler(io.BytesIO()).dispatch_table

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        self.stack.append(obj)
        if not (self.definitions and isinstance(obj, FunctionType | type) and _travels(obj)):
            super().save(obj, save_persistent_id)  # type: ignore[misc]
        self.stack.pop()


def _travels(thing: Any) -> bool:
    try:
        pickling.try_to_pickle(functools.partial(pickling.pickled_for_task, ForkingPickler.dumps), thing)
    except Exception:
        return False
    return True


def _path(stack: list[Any]) -> str:
    path = ""
    for i, (outer, inner) in enumerate(itertools.pairwise(stack)):
        if isinstance(outer, list | tuple):
            place = next((k for k, each in enumerate(outer) if each is inner), None)
            path += "" if place is None else f"[{place}]"
        elif isinstance(outer, dict):
            key = next((key for key, value in outer.items() if value is inner), None)
            owner = stack[i - 1] if i else None
            is_of_object = getattr(owner, "__dict__", None) is outer
            path += "" if key is None else f".{key}" if is_of_object else f"[{key!r}]"
    return path
