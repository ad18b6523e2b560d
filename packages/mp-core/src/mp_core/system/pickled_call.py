"""`PickledCall`: an object that is pickled as a call."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class PickledCall:
    """
    Is unpickled as what ``function(*arguments)`` returns, by a process that need not have this module.

    >>> import pickle
    >>> pickle.loads(pickle.dumps([PickledCall(abs, -3)]))
    [3]
    """

    __slots__ = ("_call",)

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call
