"""Functions that make queues, and stand for their type: ``Queue[int](3)``, ``isinstance(queue, Queue)``."""

from __future__ import annotations

import functools
import types
from multiprocessing import context

from mp_core.system import imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

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
        return _Alias.of(self, item)

    def __instancecheck__(self, thing: object) -> bool:
        return isinstance(thing, self.made)

    @property
    def made(self) -> type:
        """The class of what it makes."""
        made: type = getattr(imports.load("multiprocessing.queues"), self._method.__name__)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return QueueFunction, (self._context, self._method.__name__)

    def __repr__(self) -> str:
        return repr(self._method)


class _Alias(types.GenericAlias):
    """``Queue[int]``: the class to whoever looks at annotations, the function to whoever calls it."""

    _function: QueueFunction

    @classmethod
    def of(cls, function: QueueFunction, item: Any) -> _Alias:
        alias = cls(function.made, item)
        alias._function = function
        return alias

    def __call__(self, *args: Any, **options: Any) -> Any:
        # By itself an alias has the attributes of its class.
        return object.__getattribute__(self, "_function")(*args, **options)


def standard_context() -> Any:
    """Return the context of multiprocessing's own functions."""
    return vars(context)["_default_context"]
