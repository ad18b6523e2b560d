"""A message whose pickling fails takes no memory with it.

A claim is made when a block is pickled, and memory waits for whoever will claim it. When a later object of the same
message turns out not to be picklable, nobody ever will: so the claims of that message are made here, and dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

__all__ = ["install", "noted"]


class _Message(threading.local):
    handles: list[bytes] | None = None
    """The claims that the message which this thread is pickling has made so far."""


_message = _Message()


def noted(handle: bytes) -> bytes:
    """*handle*, remembered until the message that it belongs to has been pickled."""
    if _message.handles is not None:
        _message.handles.append(handle)
    return handle


def install(claim: Callable[[bytes], object]) -> None:
    """Let `ForkingPickler.dumps` undo with *claim* what a failed message has claimed."""
    original: Any = vars(ForkingPickler)["dumps"].__func__
    if getattr(original, "_undoes", False):
        return

    def dumps(cls: type[ForkingPickler], obj: Any, protocol: int | None = None) -> Any:
        outer = _message.handles
        handles: list[bytes] = []
        _message.handles = handles
        try:
            return original(cls, obj, protocol)
        except BaseException:
            for handle in handles:
                try:
                    claim(handle)
                except (OSError, ValueError):
                    pass  # then it is gone already
            raise
        finally:
            _message.handles = outer

    dumps._undoes = True  # type: ignore[attr-defined]
    ForkingPickler.dumps = classmethod(dumps)  # type: ignore[assignment]
