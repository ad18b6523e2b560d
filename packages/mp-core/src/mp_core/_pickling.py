"""A message that cannot be pickled, or that nobody can receive, takes no memory with it.

A claim is made when a block is pickled, and memory waits for whoever will claim it. When a later object of the same
message turns out not to be picklable, or the pipe says that nobody reads it any more, nobody ever will: so the claims
of that message are made here, and dropped. `native/message.c` keeps the list.
"""

from __future__ import annotations

import functools
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from mp_core._native import message_begin, message_end, rebuild_block

__all__ = ["install"]


def install() -> None:
    """Let `ForkingPickler.dumps` and `Connection.send` undo what a failed message has claimed."""
    dumps: Any = vars(ForkingPickler)["dumps"].__func__
    if getattr(dumps, "_undoes", False):
        return

    def undoing_dumps(cls: type[ForkingPickler], obj: Any, protocol: int | None = None) -> Any:
        message_begin(False)
        try:
            message = dumps(cls, obj, protocol)
        except BaseException:
            _drop(message_end(False))
            raise
        message_end(True)
        return message

    send: Any = Connection.send

    def undoing_send(self: Any, obj: Any) -> None:
        message_begin(True)
        try:
            send(self, obj)
        except (BrokenPipeError, ConnectionResetError):
            # The kernel has not taken the last of its bytes, so nobody can have read it. Of no other error is that
            # known: a ctrl-C may come when the message has arrived.
            _drop(message_end(False))
            raise
        except BaseException:
            message_end(False)
            raise
        message_end(False)

    undoing_dumps._undoes = True  # type: ignore[attr-defined]
    ForkingPickler.dumps = classmethod(undoing_dumps)  # type: ignore[assignment]
    Connection.send = functools.wraps(send)(undoing_send)  # type: ignore[method-assign]


def _drop(handles: list[bytes] | None) -> None:
    for handle in handles or ():
        try:
            rebuild_block(handle)
        except (OSError, ValueError):
            pass  # then it is gone already
