"""The standard queues over locks that outlive their holders: a process may be killed in the middle of a message.

A lock that passes on from a dead reader or writer is not enough: if it was in the middle of a message, the next reader
would take the rest of that message for the beginning of another. So the holder marks the lock while it reads or writes:

    wait until there is something to read | mark | read one message | unmark
                                            mark | write one message | unmark

A process that is killed while it waits leaves no mark, and the queue goes on. A process that is killed in the middle
leaves the mark, and from then on each `get` is a `ReceiveError` and each `put` a `BrokenPipeError`. The price is one
call of poll(2) for each message.

The semaphore that bounds a queue counts messages: its units belong to no process.
"""

from __future__ import annotations

import functools
import select
from collections.abc import Callable
from multiprocessing import queues
from multiprocessing.reduction import ForkingPickler
from typing import Any

from mp_core.errors import ReceiveError
from mp_core.locks import BoundedSemaphore, Lock, before_receiving

__all__ = ["install"]

_FREE, _IN_A_MESSAGE = 0, 1


def _receiver(lock: Any, receive: Callable[..., bytes], reader: Any) -> Callable[..., bytes]:
    semlock = lock._semlock

    def recv_bytes(*args: Any) -> bytes:
        if semlock._mark() != _FREE:
            raise ReceiveError(
                "a process died while it read a message of this queue, so the next message cannot be found; use a "
                "new queue"
            )
        readable = select.poll()
        readable.register(reader.fileno(), select.POLLIN)
        readable.poll()
        semlock._set_mark(_IN_A_MESSAGE)
        try:
            message = receive(*args)
        except (EOFError, OSError):  # the end of the pipe, which is between two messages
            semlock._set_mark(_FREE)
            raise
        semlock._set_mark(_FREE)
        return message

    return recv_bytes


def _sender(lock: Any, send: Callable[..., None]) -> Callable[..., None]:
    semlock = lock._semlock

    def send_bytes(*args: Any) -> None:
        if semlock._mark() != _FREE:
            raise BrokenPipeError("a process died while it wrote a message to this queue; use a new queue")
        semlock._set_mark(_IN_A_MESSAGE)
        send(*args)
        semlock._set_mark(_FREE)

    return send_bytes


def _semlock(lock: Any) -> Any:
    return lock._semlock


def _guard(queue: Any) -> tuple[Callable[..., bytes], Callable[..., None]]:
    """Return the queue's functions that receive and send one message, with its locks held."""
    receive, send = queue._reader.recv_bytes, queue._writer.send_bytes
    if isinstance(queue._rlock, Lock):
        _semlock(queue._rlock)._be_quiet()  # a reader that is killed while it waits harms nobody
        receive = _receiver(queue._rlock, receive, queue._reader)
    if isinstance(queue._wlock, Lock):
        _semlock(queue._wlock)._be_quiet()
        send = _sender(queue._wlock, send)
    return receive, send


def install() -> None:
    """Let the queues of multiprocessing mark their locks. A queue with standard locks is as it was."""
    kind: Any = queues.Queue
    if hasattr(kind._reset, "__wrapped__"):
        return
    reset = kind._reset

    @functools.wraps(reset)
    def guarding_reset(self: Any, *args: Any, **options: Any) -> None:
        reset(self, *args, **options)
        self._recv_bytes, self._send_bytes = _guard(self)
        if isinstance(self._sem, BoundedSemaphore):
            _semlock(self._sem)._count_events()

    kind._reset = guarding_reset
    simple: Any = queues.SimpleQueue
    original_get, original_put = simple.get, simple.put

    @functools.wraps(original_get)
    def get(self: Any) -> Any:
        if not isinstance(self._rlock, Lock):
            return original_get(self)
        receive, _ = _guarded(self)
        with self._rlock:
            message = receive()
        return ForkingPickler.loads(message)

    @functools.wraps(original_put)
    def put(self: Any, thing: Any) -> None:
        if not isinstance(self._wlock, Lock):
            original_put(self, thing)
            return
        _, send = _guarded(self)
        message = ForkingPickler.dumps(thing)
        with self._wlock:
            send(message)

    simple.get, simple.put = get, put


def _guarded(queue: Any) -> tuple[Callable[..., bytes], Callable[..., None]]:
    kept = queue.__dict__.get("_mp_guarded")
    if kept is None:
        kept = queue._mp_guarded = _guard(queue)
    return kept  # type: ignore[no-any-return]


before_receiving.append(install)
