"""The in-flight references of messages to workers, and their release when a worker has died.

Note [A reference that was used again]
--------------------------------------
A message that carries a shared array has an in-flight reference to its block, which the receiver takes. When a worker
has died, nobody knows whether it had received the message that it read last; so the pool receives it, which is refused
if the worker had. But a block has 64 such references, which are used again: another message with the same array may
have the same one by now, and would find it gone. So the references of all messages that have no answer yet are counted,
in this process. A reference that two of them have was received by the worker that has died. (The handles of two such
messages differ in their deadlines, if messages expire.)

All messages beyond the 64 have the same reference, so what a dead worker had begun of these keeps its memory. Workers
seldom have as many; the tasks that wait for one could, so they are pickled late: see `Scheduler.prepare_ahead`.

The same array in a queue, or sent by another process at the same moment, is not counted: its message may then be lost,
with a `ReceiveError`.
"""

from __future__ import annotations

import os
from collections import Counter
from multiprocessing.reduction import ForkingPickler

from mp_core.messages.pickling import pickled_for_task
from mp_core.sharing.backend import TryLock, discard, reference_of
from mp_pool.tasks import task_messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mp_core.messages.inherited_globals import Inheritance

Handles = tuple[bytes, ...]

_counts: Counter[bytes] = Counter()
_lock: Any = TryLock()  # a signal handler may submit a task


def dump_tracked(thing: Any, inheritance: Inheritance | None = None, only_names: bool = False) -> tuple[Any, Handles]:
    """
    Pickle *thing* for a worker; return the bytes and the in-flight references in them.

    *inheritance* and *only_names* are those of `pickled_for_task`.
    """
    message = pickled_for_task(ForkingPickler.dumps, thing, None, inheritance, only_names)
    handles = message.handles
    if handles:
        try:
            _lock.wait()
            _counts.update(map(reference_of, handles))
        finally:
            _lock.release()
    message.leave()
    return message.data, handles


def forget(handles: Handles) -> None:
    """Note that the message was received."""
    if not handles:
        return
    try:
        _lock.wait()
        for reference in map(reference_of, handles):
            if _counts[reference] > 1:
                _counts[reference] -= 1
            else:
                del _counts[reference]
    finally:
        _lock.release()


def is_used_again(handles: Handles) -> bool:
    """Tell whether another message that has no answer yet has one of these references as well."""
    return any(_counts[reference] > 1 for reference in map(reference_of, handles))


def withdraw(kind: int, data: Any, handles: Handles) -> None:
    """Release the resources of a message that no worker has received."""
    forget(handles)
    task_messages.drop(kind, data)


def release(kind: int, data: Any, handles: Handles) -> None:
    """Release the resources of a message that a dead worker may have received."""
    try:
        _lock.wait()
        again = {handle for handle in handles if _counts[reference_of(handle)] > 1}
        forget(handles)
    finally:
        _lock.release()
    if not again:
        task_messages.drop(kind, data)
        return
    for handle in handles:
        if handle not in again:
            discard(handle)


def is_interrupted() -> bool:
    """Tell whether this thread is in one of these functions, which a signal handler has interrupted."""
    return bool(_lock.is_mine())


def _begin_in_child() -> None:
    """Forget the parent's messages, and its lock, which another thread may have had at the moment of the fork."""
    global _lock
    _lock = TryLock()
    _counts.clear()


os.register_at_fork(after_in_child=_begin_in_child)
