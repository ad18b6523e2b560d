"""Start ranks as processes of a multiprocessing context: fork, forkserver, or a context of your own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from typing import Any

from mp_spawn import child
from mp_spawn.job import Job, Ticket
from mp_spawn.one_reader import OneReader
from mp_spawn.pickling import main_left_out
from mp_spawn.pidfd import PidFd, has_pidfds, readable
from mp_spawn.rank import Rank
from mp_spawn.signals import FROM_OUTSIDE, held_back

__all__ = ["Classic"]

#: Seconds for a fork server that has closed its connections to end.
END_OF_FORK_SERVER = 10.0
SERVER_SIGNALS = "mp_spawn.forkserver_signals"


class Classic:
    """
    Each rank is a `Process` of *context*. What it is given is small, so that no start waits for another's
    imports.
    """

    def __init__(self, context: BaseContext) -> None:
        self._context: Any = context
        self.start_method: str = context.get_start_method() or ""
        self.witness = 0

    def start(self, job: Job, tickets: list[Ticket]) -> list[Rank]:
        # Helpers that the first start would bring up, and that are not to come up with SIGINT blocked.
        if self.start_method == "forkserver":
            with main_left_out():
                self._ensure_server()
        elif self.start_method == "spawn":
            resource_tracker.ensure_running()
        ranks: list[Rank] = []
        try:
            for ticket in tickets:
                # Elsewhere than under fork it can take seconds until the rank lets signals in again.
                with held_back(FROM_OUTSIDE if self.start_method == "fork" else {signal.SIGINT}) as mask:
                    ranks.append(self._start(job, ticket, mask, tickets))
        except BaseException:
            for rank in ranks:
                rank.kill()
            raise
        return ranks

    def _ensure_server(self) -> None:
        """
        Have a fork server that outlives signals to its group. One that runs already is as it is.
        """
        server: Any = forkserver._forkserver
        if SERVER_SIGNALS not in server._preload_modules:
            server._preload_modules = [*server._preload_modules, SERVER_SIGNALS]
        # Not held back while it starts: if it cannot import the module, its processes would be deaf for ever.
        forkserver.ensure_running()
        self.witness = server._forkserver_pid or 0

    def _start(self, job: Job, ticket: Ticket, mask: frozenset[int], tickets: list[Ticket]) -> Rank:
        place = ticket.place._replace(mask=mask)
        if self.start_method == "fork":
            place = place._replace(leave_behind=self._not_its_own(job, ticket, tickets))
        process = self._context.Process(
            target=child.work,
            args=(job.orders(ticket, place),),
            name=f"rank {ticket.rank}",
            daemon=job.daemon,
        )
        with main_left_out() if self.start_method != "fork" else nullcontext():
            try:
                process.start()
            except (ConnectionError, EOFError):
                if self.start_method != "forkserver" or not _fork_server_has_ended():
                    raise
                _restart_fork_server()
                process.start()
        pidfd = PidFd.of(process)
        process._popen = OneReader(process._popen, pidfd)
        # While the process lives, so does its lifeline, even if nobody keeps the context.
        process.lifeline = job.lifeline
        return Rank(ticket.rank, process, ticket.inbox, pidfd, ticket.restarts)

    @staticmethod
    def _not_its_own(job: Job, ticket: Ticket, tickets: list[Ticket]) -> Callable[[], None]:
        """
        What closes, in a forked rank, our ends of the pipes and the ends of the other ranks.
        """

        def close() -> None:
            for other in tickets:
                # By the object: it would close the number once more when it is collected.
                other.inbox.close()
                if other.stacks is not None and other is not ticket:
                    other.stacks.close()
            mine = {*ticket.place.fds, job.lifeline.fd}
            others = {fd for other in tickets for fd in other.place.fds} | {*job.output.own_fds()}
            for fd in others - mine:
                try:
                    os.close(fd)
                except OSError:
                    pass  # the thread that reads output had closed it just then

        return close


# The fork server of CPython 3.14 imports the main module before it serves, and ends when that raises; 3.15 goes on. A
# new server without the main module starts a rank that imports it and fails, and that failure is reported.
def _fork_server_has_ended() -> bool:
    """
    Wait for the end of the fork server, whose connections have been closed; False when it goes on.
    """
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if pid is None or not has_pidfds():
        return False
    fd = os.pidfd_open(pid)  # of a child that nobody has waited for, so that the number is its own
    try:
        return readable(fd, END_OF_FORK_SERVER)
    finally:
        os.close(fd)


def _restart_fork_server() -> None:
    with main_left_out(always=True):
        forkserver.ensure_running()
