"""A job: one call of the launcher, with all that it takes to start a rank, the first time or again."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mp_spawn import oom
from mp_spawn.child import Orders
from mp_spawn.lifeline import Lifeline
from mp_spawn.output import Inherit, Output
from mp_spawn.payload import Handed, Source, payloads
from mp_spawn.place import Place
from mp_spawn.rank import Rank
from mp_spawn.report import Inbox
from mp_spawn.stacks import Stacks

__all__ = ["Job", "Starter", "Ticket"]

# The libraries that would otherwise start a thread per core in every rank.
THREADS = ("OMP", "MKL", "OPENBLAS", "BLIS", "NUMEXPR", "NUMBA", "RAYON")

Env = Mapping[str, str] | Callable[[int], Mapping[str, str]] | None


class Starter(Protocol):
    """A way to start ranks."""

    start_method: str
    #: A process in this one's group in which signals stay pending; 0 where there is none.
    witness: int

    def start(self, job: Job, tickets: list[Ticket]) -> list[Rank]: ...


@dataclasses.dataclass
class Ticket:
    """A rank that is about to start."""

    rank: int
    restarts: int
    payload: Source
    place: Place
    inbox: Inbox
    stacks: Stacks | None


@dataclasses.dataclass
class Job:
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    nprocs: int
    starter: Starter
    daemon: bool = False
    env: Env = None
    threads_per_rank: int | None = None
    cpus: Sequence[frozenset[int]] | None = None
    output: Output = dataclasses.field(default_factory=Inherit)
    max_restarts: int = 0
    wants_result: bool = False
    own_group: bool = False
    faulthandler: bool = True
    #: False when no rank needs the `__main__` of this process.
    needs_main: bool = True
    lifeline: Lifeline = dataclasses.field(default_factory=Lifeline)

    def start(self, ranks: Mapping[int, int]) -> list[Rank]:
        """
        Start *ranks*, a rank number to how often it has been started before.
        """
        sources = payloads(self.fn, self.args, len(ranks), self.starter.start_method)
        tickets: list[Ticket] = []
        reports: list[int] = []
        try:
            for (rank, restarts), source in zip(ranks.items(), sources, strict=True):
                read, write = os.pipe()
                reports.append(write)
                stacks = Stacks() if self.faulthandler else None
                place = self._place(rank, restarts, write, stacks)
                tickets.append(Ticket(rank, restarts, source, place, Inbox(read), stacks))
            kills = oom.counters()
            started = self.starter.start(self, tickets)
            for each, ticket in zip(started, tickets, strict=True):
                each.stacks, each.kills_before = ticket.stacks, kills
            return started
        finally:
            for fd in reports:
                os.close(fd)
            for source in sources:
                source.close()
            self.output.started()

    def _place(self, rank: int, restarts: int, report: int, stacks: Stacks | None) -> Place:
        env: dict[str, str] = {}
        if self.threads_per_rank is not None:
            env = dict.fromkeys((f"{name}_NUM_THREADS" for name in THREADS), str(self.threads_per_rank))
        env |= self.env(rank) if callable(self.env) else self.env or {}
        return Place(
            rank,
            Handed(report),
            Handed(self.lifeline.fd),
            self.output.ends_for(rank, restarts),
            Handed(stacks.fd) if stacks else None,
            env,
            self.cpus[rank] if self.cpus else None,
            self.own_group,
        )

    def orders(self, ticket: Ticket, place: Place | None) -> Orders:
        return Orders(ticket.rank, ticket.place.report.fd, ticket.payload, place, self.wants_result)
