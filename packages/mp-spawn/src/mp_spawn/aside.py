"""What cannot be in the bytes that all ranks get: claims, which are good for one rank each, and large buffers.

A module of its own because only the parent needs it, and it needs mp-core.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from mp_core._fan_out import fan_out_mode
from mp_core.block import Block
from mp_core.lease import Lease, LeaseReference
from mp_spawn.pickling import registered_elsewhere

__all__ = ["Aside"]

CLAIMS = (Block, Lease, LeaseReference)


class Aside:
    """
    Looks at what is pickled for all ranks; *numbered* makes, from its number, what stands for a claim.

    >>> aside = Aside(lambda number: (int, (number,)))
    >>> aside.reduce(Block(100)), len(aside.claims)
    ((<class 'int'>, (0,)), 1)
    """

    def __init__(self, numbered: Callable[[int], Any]) -> None:
        #: What each rank has to be sent for itself.
        self.claims: list[Any] = []
        #: What is too large to be copied into the bytes.
        self.buffers: list[pickle.PickleBuffer] = []
        #: Whether more than one rank may unpickle the bytes.
        self.many = True
        self._numbered = numbered

    def reduce(self, thing: Any) -> Any:
        """
        The pickle of *thing*; NotImplemented where it is to be the usual one.
        """
        reducer = registered_elsewhere(type(thing))
        if reducer is None:
            return NotImplemented
        if isinstance(thing, CLAIMS):
            self.claims.append(thing)
            return self._numbered(len(self.claims) - 1)
        way = fan_out_mode(reducer, thing)
        if way == "out of band":
            return thing.__reduce_ex__(5)
        if way == "per receiver":
            self.many = False
        return NotImplemented
