"""Fan-out: pickle `fn` and its arguments once for all ranks; see Note [Inherited descriptors].

Only the parent imports this module, which needs mp-core.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from mp_core.children.inheritance import Inherited, attach, inherited
from mp_core.system.fan_out import fan_out_mode, is_for_one_receiver
from mp_core.system.pickled_call import PickledCall
from mp_spawn.calls.payload import (
    Buffers,
    Payload,
    PickledPayload,
    PickleFile,
    PlainPayload,
    collected_fds,
    per_rank_object,
)
from mp_spawn.calls.pickling import dumps, dumps_plainly, foreign_reducer


def payloads(fn: Callable[..., Any], args: tuple[Any, ...], count: int, start_method: str) -> list[Payload]:
    """Make a payload for each of *count* ranks; `fn` and *args* are pickled once if several ranks may unpickle that."""
    what = _named(fn, args)
    made: list[Payload] = []
    with ExitStack() as on_failure:
        while len(made) < count:
            with collected_fds() as fds:
                found = _OutOfBand()
                call = PickleFile(dumps((fn, args), what, start_method, reducer=found), fds)
            on_failure.callback(call.close)
            buffers = Buffers(found.buffers)
            on_failure.callback(buffers.close)
            for _ in range(count if found.for_all else 1):
                if not made or found.per_rank:
                    with collected_fds() as fds:
                        own = PickleFile(dumps_plainly((attaching(inherited()), found.per_rank)), fds)
                    on_failure.callback(own.close)
                made.append(PickledPayload(call, own, buffers))
        on_failure.pop_all()
    return made


def plain_payload(fn: Callable[..., Any], args: tuple[Any, ...], start_method: str) -> Payload:
    """Make the payload for each rank where descriptors are scarce; `fn` and *args* are pickled for each."""
    what = _named(fn, args)
    return PlainPayload(
        lambda: [dumps_plainly(attaching(inherited())), dumps((fn, args), what, start_method)],
    )


def _named(fn: Callable[..., Any], args: tuple[Any, ...]) -> str:
    kinds = ", ".join(type(arg).__name__ for arg in args)
    return f"fn={getattr(fn, '__qualname__', fn)!s} with args of ({kinds})"


class _OutOfBand:
    """
    Decides what goes beside a pickle that is made for all ranks.

    >>> from mp_core import Block
    >>> found = _OutOfBand()
    >>> found.reduce(Block(100))[1], len(found.per_rank)
    ((0,), 1)
    """

    def __init__(self) -> None:
        #: The objects that each rank is sent for itself.
        self.per_rank: list[Any] = []
        #: The buffers that are too large to be copied into the bytes.
        self.buffers: list[pickle.PickleBuffer] = []
        #: Whether more than one rank may unpickle the bytes.
        self.for_all = True

    def reduce(self, thing: Any) -> Any:
        """Return the reduction of *thing*, or NotImplemented for the usual one."""
        if is_for_one_receiver(thing):
            self.per_rank.append(thing)
            return per_rank_object, (len(self.per_rank) - 1,)
        reducer = foreign_reducer(type(thing))
        if reducer is None:
            return NotImplemented
        way = fan_out_mode(reducer, thing)
        if way == "out of band":
            return thing.__reduce_ex__(5)
        if way == "per receiver":
            self.for_all = False
        return NotImplemented


def attaching(inherited: Inherited | None) -> PickledCall:
    """Return the first object that a rank unpickles: it puts the rank into the session of its parent."""
    return PickledCall(tuple) if inherited is None else PickledCall(attach, *inherited)
