"""The two ways in which a message is read: in C, and by Python's unpickler."""

from __future__ import annotations

from functools import partial
from multiprocessing.reduction import ForkingPickler

from mp_core.sharing import backend

__all__ = ["by_unpickler", "in_c"]

in_c = backend.loads
#: With an option, the same function leaves the whole message to the unpickler.
by_unpickler = partial(ForkingPickler.loads, encoding="ASCII")
