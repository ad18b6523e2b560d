"""What becomes of a message: `ForkingPickler.dumps`, with two things added.

Note [A message that fails]
---------------------------
A message that cannot be pickled, or that nobody can receive, takes no memory with it.

A claim is made when a block is pickled, and memory waits for whoever will claim it. When a later object of the same
message turns out not to be picklable, or the pipe says that nobody reads it any more, nobody ever will: so the claims
of that message are discarded. `native/message.c` keeps the list.

Note [Buffers]
--------------
Since protocol 5 an object may offer its memory to the pickler (`pickle.PickleBuffer`: Arrow tables, the text columns of
pandas, whatever holds large memory that is no array). The pickler asks a callback about each; what the callback takes
stays out of the pickle and has to be handed to the unpickler beside it. Receivers call plain `pickle.loads`, so when
something was taken, the pickle is put into a second one, whose loading hands it over:

    nothing taken    pickle
    taken            pickle of (load_with, (bytes of the pickle, [Block, Block, ...]))

Only messages and the arguments of processes are pickled so, and only when no protocol is asked for.
"""

from __future__ import annotations

import functools
import io
import pickle
import threading
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from mp_core import _starting, by_value
from mp_core._native import discard, message_begin, message_begin_by_value, message_end

__all__ = ["can_be_pickled", "install", "load_with", "take_buffers"]


def install() -> None:
    """Let `ForkingPickler.dumps` and `Connection.send` undo what a failed message has claimed."""
    dumps: Any = vars(ForkingPickler)["dumps"].__func__
    if getattr(dumps, "_undoes", False):
        return

    def undoing_dumps(cls: type[ForkingPickler], obj: Any, protocol: int | None = None) -> Any:
        plainly = message_begin(False)
        try:
            if protocol is None and _take is not None and not plainly and cls.__init__ is ForkingPickler.__init__:
                message = _dump(cls, obj, _take)
            else:
                message = dumps(cls, obj, protocol)
        except BaseException:
            _drop(message_end(False))
            raise
        message_end(True)
        return message

    send: Any = Connection.send

    def undoing_send(self: Any, obj: Any) -> None:
        shares = self._mp_shares
        if shares or (shares is None and by_value.find_out(self)):
            message_begin(True)
        else:
            message_begin_by_value()
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
    reduction.dump = _dump_into
    Connection.send = functools.wraps(send)(undoing_send)  # type: ignore[method-assign]
    Connection._mp_shares = None  # type: ignore[attr-defined]


def _drop(handles: list[bytes] | None) -> None:
    for handle in handles or ():
        discard(handle)


def _dump_into(obj: Any, file: Any, protocol: int | None = None) -> None:
    """How multiprocessing pickles what a new process is given: a message like any other."""
    message_begin(True)
    try:
        message = ForkingPickler.dumps(obj, protocol)
    except BaseException:
        message_end(False)
        raise
    claims = message_end(True)
    if _starting.too_many():
        _drop(claims)
        message = ForkingPickler.dumps(obj, protocol)
    file.write(message)


Take = Callable[[pickle.PickleBuffer], Any]
_take: Take | None = None
PROTOCOL = max(5, pickle.DEFAULT_PROTOCOL)


def take_buffers(take: Take) -> None:
    """
    Offer *take* every buffer of a message; what it returns travels in its stead, None leaves it in the pickle.

    It returns (block, offset, nbytes, read-only).
    """
    global _take
    _take = take


def _dump(cls: Any, obj: Any, take: Take) -> memoryview:
    taken: list[Any] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        place = take(buffer)
        if place is not None:
            taken.append(place)
        return place is None

    file = io.BytesIO()
    cls(file, PROTOCOL, True, stays).dump(obj)
    if taken:
        whole = io.BytesIO()
        cls(whole, PROTOCOL).dump(_Loaded(file.getvalue(), taken))
        file = whole
    return file.getbuffer()


class _Loaded:
    """Is pickled as what its parts are loaded as."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return load_with, self.parts


def load_with(data: bytes, places: list[Any]) -> Any:
    """Unpickle *data*, whose buffers are elsewhere: see Note [Buffers]. A place outside its block is a `ValueError`."""
    buffers = []
    for block, offset, nbytes, readonly in places:
        view = memoryview(block)[offset : offset + nbytes]
        if offset < 0 or view.nbytes != nbytes:
            raise ValueError(
                f"the handle of a buffer is damaged: {nbytes} bytes at {offset} of {memoryview(block).nbytes}"
            )
        buffers.append(view.toreadonly() if readonly else view)
    return pickle.loads(data, buffers=buffers)


class _Trial(threading.local):
    under_way = False


_trial = _Trial()


def can_be_pickled(thing: Any) -> bool:
    """Whether a message may hold *thing*: it is pickled, and what that has claimed is given back."""
    if _trial.under_way:
        return True  # that one will tell
    _trial.under_way = True
    message_begin(False)
    try:
        ForkingPickler(io.BytesIO()).dump(thing)
        return True
    except Exception:
        return False
    finally:
        _drop(message_end(False))
        _trial.under_way = False
