"""Functions that make queues, and stand for their type in annotations: ``Queue[int]``."""

from __future__ import annotations

import functools
import types
from multiprocessing import context

from mp_core import imports

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["NAMES", "QueueFunction", "standard_context"]

NAMES = ("JoinableQueue", "Queue", "SimpleQueue")


class QueueFunction:
    """The method *name*, which makes queues, of the context that the function *context* returns."""

    def __init__(self, context: Callable[[], Any], name: str) -> None:
        self._context = context
        self._method = getattr(context(), name)
        functools.update_wrapper(self, self._method)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._method(*args, **options)

    def __getitem__(self, item: Any) -> Any:
        return types.GenericAlias(getattr(imports.load("multiprocessing.queues"), self._method.__name__), item)

    def __reduce__(self) -> tuple[Any, ...]:
        return QueueFunction, (self._context, self._method.__name__)

    def __repr__(self) -> str:
        return repr(self._method)


def standard_context() -> Any:
    """Return the context of multiprocessing's own functions."""
    return vars(context)["_default_context"]
