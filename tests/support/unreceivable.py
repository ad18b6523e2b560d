"""Objects that can be sent and cannot be received."""

from __future__ import annotations

import errno
import os
from typing import Any

import mp_all as mp
from mp_core.sharing import backend
from mp_core.sharing.backend import reduce_block

if backend.LIBSHM:
    from mp_core.sharing.compiled import _block
else:
    from mp_core.sharing.portable import references

    receive = references.receive


class Fails:
    """Raises *error* when it is received."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return raise_, (self.error,)


def raise_(error: Exception) -> Any:
    raise error


class Revoked:
    """Has a block whose message is revoked as soon as it is pickled."""

    def __reduce__(self) -> Any:
        block = mp.Block(100_000)
        reduced = reduce_block(block)
        block._revoke()
        return reduced


class OnlyHere:
    """Can be received in the process that made it; in others the system refuses."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __reduce__(self) -> Any:
        return _only_in, (self.pid,)


def _only_in(pid: int) -> OnlyHere:
    if os.getpid() != pid:
        raise OSError(errno.EMFILE, "no descriptor")
    return OnlyHere()


def refuse_blocks(number: int) -> None:
    """Let this process receive no block, with that error; 0 ends it."""
    if backend.LIBSHM:
        _block.inject(number)
    else:
        references.receive = (lambda kind, handle: -number) if number else receive
