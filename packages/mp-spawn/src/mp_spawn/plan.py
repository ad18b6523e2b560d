"""What the nursery is told, and what it says: the format between `nursery` and `nursery_child`."""

from __future__ import annotations

import struct
from multiprocessing import context
from typing import Any, NamedTuple

from mp_spawn.place import Place

__all__ = ["BIRTH", "BOOT", "STATUS", "Birth", "Plan", "RankProcess", "SameNumber"]

# Of a rank that has been started: its number, its pid, and an error number if it could not be.
BIRTH = struct.Struct("=iii")
# Of a rank that has ended: the status as from waitpid, and when, on the clock of time.monotonic.
STATUS = struct.Struct("=id")

# The program of the nursery. The file begins with a pickled sys.path: this package may be found only there.
BOOT = (
    "import pickle, sys; file = open({plan}, 'rb'); sys.path[:] = pickle.load(file); "
    "from mp_spawn import nursery_child; nursery_child.{entry}"
)


class SameNumber:
    """A descriptor that has the same number in the nursery, and in its ranks, as here."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def detach(self) -> int:
        return self._fd


class Birth(NamedTuple):
    """What a rank is born with."""

    place: Place
    #: The pickled process object.
    process: bytes
    #: The descriptors that the rank keeps.
    fds: frozenset[int]
    #: The pipe into which the nursery writes how it ended.
    status: int


class Plan(NamedTuple):
    """All that the nursery needs to know."""

    #: The interpreter and its options.
    python: list[str]
    #: As multiprocessing prepares a child: the main module, authkey, …
    preparation: dict[str, Any]
    #: The standard library's resource tracker.
    tracker: int
    #: The socket on which births are told.
    socket: int
    births: list[Birth]
    #: Descriptors that are for all.
    shared: frozenset[int]


class RankProcess(context.SpawnProcess):
    """A process that is running already when start() is called."""

    #: What stands for the running process, and the lifeline, which has to live as long as the process.
    ready: Any
    lifeline: Any

    @staticmethod
    def _Popen(process: Any) -> Any:
        return process.ready

    @property
    def ended_at(self) -> float | None:
        """When the nursery saw it end."""
        at: float | None = self.ready.ended_at
        return at
