"""Messages that fail when they are received: the type of the error, and how it reaches the right waiter.

Note [A receive error does not end a pipe]
------------------------------------------
`multiprocessing` takes an `OSError` or an `EOFError` from `get()` for the end of a pipe: a pool's thread ends silently,
and every caller waits. So a system error during unpickling is raised as a `ReceiveError`. Errors of the pipe itself
stay as they are: they come from reading, before unpickling begins.

Pools need more, since they do not expect `get()` to fail at all; see `standard_pools.py`.

Note [Exceptions in frames]
---------------------------
A function that raises an exception from a local variable makes a circle: exception, traceback, frame, exception. It
would keep the frames of all callers, with their arrays and descriptors, until the garbage collector runs, which it
does not in a program that makes few objects. So such a function deletes the variable on its way out.
"""

from __future__ import annotations

from mp_core.messages import standard_pools
from mp_core.sharing import backend
from mp_core.system.errors import ReceiveError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _failed(message: Any, error: BaseException) -> Any:
    """Return the message to receive instead of *message*; NotImplemented to raise *error* unchanged."""
    if not isinstance(error, Exception):
        return NotImplemented
    known = error
    if isinstance(error, OSError | EOFError):
        number = error.errno if isinstance(error, OSError) else None
        known = ReceiveError(f"a message could not be received: {type(error).__name__}: {error}", number)
        known.__cause__ = error
    task = standard_pools.failing(message, known)
    if task is not None:
        return task
    if known is not error:
        del message  # the traceback would keep it, and the buffer under it could not be closed
        try:
            raise known
        finally:
            del known, error  # see Note [Exceptions in frames]
    return NotImplemented


def extend(loads: Any) -> None:
    """Let `backend.loads`, which is to replace *loads* as `ForkingPickler.loads`, handle messages that fail."""
    backend.setup_receiving(loads, None, None, _failed)
