"""Start ranks as processes of a multiprocessing context: fork, forkserver, or a context of your own."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from typing import Any

from mp_spawn import child
from mp_spawn.job import Job, Ticket, interrupts_held_back
from mp_spawn.one_reader import OneReader
from mp_spawn.pickling import main_left_out
from mp_spawn.pidfd import PidFd
from mp_spawn.rank import Rank

__all__ = ["Classic"]


class Classic:
    """
    Each rank is a `Process` of *context*. What it is given is small, so that no start waits for another's
    imports.
    """

    def __init__(self, context: BaseContext) -> None:
        self._context: Any = context
        self.start_method: str = context.get_start_method() or ""

    def start(self, job: Job, tickets: list[Ticket]) -> list[Rank]:
        # Helpers that the first start would bring up, and that are not to come up with SIGINT blocked.
        if self.start_method == "forkserver":
            forkserver.ensure_running()
        elif self.start_method == "spawn":
            resource_tracker.ensure_running()
        ranks: list[Rank] = []
        try:
            for ticket in tickets:
                with interrupts_held_back() as interruptible:
                    ranks.append(self._start(job, ticket, interruptible, tickets))
        except BaseException:
            for rank in ranks:
                rank.kill()
            raise
        return ranks

    def _start(self, job: Job, ticket: Ticket, interruptible: bool, tickets: list[Ticket]) -> Rank:
        place = ticket.place._replace(interruptible=interruptible)
        if self.start_method == "fork":
            place = place._replace(leave_behind=self._not_its_own(job, ticket, tickets))
        process = self._context.Process(
            target=child.work,
            args=(job.orders(ticket, place),),
            name=f"rank {ticket.rank}",
            daemon=job.daemon,
        )
        with main_left_out() if self.start_method != "fork" else nullcontext():
            process.start()
        process._popen = OneReader(process._popen)
        # While the process lives, so does its lifeline, even if nobody keeps the context.
        process.lifeline = job.lifeline
        return Rank(ticket.rank, process, ticket.inbox, PidFd.of(process), ticket.restarts)

    @staticmethod
    def _not_its_own(job: Job, ticket: Ticket, tickets: list[Ticket]) -> Callable[[], None]:
        """
        What closes, in a forked rank, our ends of the pipes and the ends of the other ranks.
        """

        def close() -> None:
            for other in tickets:
                # By the object: it would close the number once more when it is collected.
                other.inbox.close()
            mine = {*ticket.place.fds, job.lifeline.fd}
            others = {fd for other in tickets for fd in other.place.fds} | {*job.output.own_fds()}
            for fd in others - mine:
                try:
                    os.close(fd)
                except OSError:
                    pass  # the thread that reads output had closed it just then

        return close
